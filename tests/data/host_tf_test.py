import pytest

from tests.tools.prepare.conftest import jpeg
from vit_jax.data.host_tf import tf


def test_no_gpu_is_visible_to_tensorflow():
    assert tf.config.get_visible_devices("GPU") == []


def test_a_bad_image_is_an_exception_and_nothing_else(capfd):
    """Messages of TensorFlow itself would break up the progress line."""
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.io.decode_jpeg(jpeg(0)[:-100])
    assert capfd.readouterr().err == ""


def test_keras_is_imported_when_it_is_used(run_python):
    code = (
        "from vit_jax.data.host_tf import load; import sys; tf = load()\n"
        "print({'keras', 'matplotlib'} & {*sys.modules})\n"
        "print(tf.keras.layers.Dense.__name__, 'keras' in sys.modules)"
    )
    assert run_python("-c", code, fresh=True).stdout.splitlines() == ["set()", "Dense True"]
