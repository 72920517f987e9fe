"""Google's .npz; tests/outside/models_test.py has the logits of its own code."""

import ml_dtypes
import numpy as np
import pytest

from tests.messages import refused
from vit_jax import models, weights
from vit_jax.convert import convert

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture
def arrays(tmp_path, toy):
    """`arrays(pool="map")`: the arrays of a toy's file, by name."""

    def make(**fields):
        weights.save(toy(**fields), tmp_path / "toy.npz", "google_npz")
        return dict(np.load(tmp_path / "toy.npz"))

    return make


def stacked(arrays):
    """Stacks each array's layers along a leading axis."""
    result = {n: x for n, x in arrays.items() if "encoderblock_" not in n}
    for name, first in arrays.items():
        if "encoderblock_0/" in name:
            second = arrays[name.replace("encoderblock_0/", "encoderblock_1/")]
            result[name.replace("encoderblock_0/", "encoderblock/")] = np.stack([first, second])
    return result


def test_without_positions_they_are_fixed(tmp_path, arrays, images):
    """big_vision's files are such; tests/outside/models_test.py has its own code's logits."""
    arrays = arrays(pool="map")
    arrays.pop("pos_embedding")
    np.savez(tmp_path / "x.npz", **arrays)
    np.savez(tmp_path / "stacked.npz", **stacked(arrays))
    for file in ("x.npz", "stacked.npz"):
        model = weights.load(tmp_path / file)
        assert model.spec.position_embedding == "sincos_2d"
        assert model.preprocess.image_size == (224, 224)
        model = weights.load(tmp_path / file, image_size=12)
        assert model(images).shape == (2, 3)


def test_layers_may_be_stacked_and_names_prefixed(tmp_path, arrays, same):
    arrays = arrays(pool="map")
    np.savez(tmp_path / "plain.npz", **arrays)
    np.savez_compressed(tmp_path / "stacked.npz", **stacked(arrays))
    state = {"opt/0/count": np.zeros(3), "opt/0/mu/head/kernel": np.zeros((16, 3))}
    prefixed = {f"params/{name}": x for name, x in arrays.items()}
    np.savez(tmp_path / "state.npz", **state, **prefixed)
    plain = weights.load(tmp_path / "plain.npz")
    same(weights.load(tmp_path / "stacked.npz"), plain)
    same(weights.load(tmp_path / "state.npz"), plain)


def test_arrays_with_and_without_a_prefix_are_refused(tmp_path, arrays):
    prefixed = {f"params/{name}": x for name, x in arrays().items()}
    np.savez(tmp_path / "x.npz", **prefixed, **{"head/bias": np.full(3, 9, np.float32)})
    with refused("params/head/bias"):
        weights.load(tmp_path / "x.npz")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64, ">f4"])
def test_other_floats(tmp_path, arrays, dtype):
    arrays = {name: np.asfortranarray(x.astype(dtype)) for name, x in arrays().items()}
    np.savez(tmp_path / "x.npz", **arrays)
    kernel = weights.load(tmp_path / "x.npz").head.kernel[...]
    np.testing.assert_array_equal(kernel, arrays["head/kernel"].astype(np.float32))


def test_what_the_arrays_do_not_say_is_told(tmp_path, toy, capsys):
    about = models.Preprocess((12, 12), 14, (12, 12), (0.4, 0.5, 0.6), interpolation="bicubic")
    ours = toy(preprocess=about)
    weights.save(ours, tmp_path / "x.npz", "google_npz")
    told = capsys.readouterr().err
    for name in ("resize=14", "crop=(12, 12)", "mean=(0.4, 0.5, 0.6)", "=bicubic", "classes"):
        assert name in told
    assert "std=" not in told
    again = weights.load_with_info(tmp_path / "x.npz")
    capsys.readouterr()
    weights.save(again, tmp_path / "y.npz", "google_npz")
    assert not capsys.readouterr().err


def test_differences_are_reported_at_once(tmp_path, arrays):
    arrays = arrays()
    arrays["head/kernal"] = arrays.pop("head/kernel")
    arrays["Transformer/encoderblock_1/MlpBlock_3/Dense_0/bias"] = np.zeros(23)
    np.savez(tmp_path / "x.npz", **arrays)
    with refused("head/kernel", "MlpBlock_3/Dense_0/bias", "(23,)", "(24,)", "head/kernal"):
        weights.load(tmp_path / "x.npz")


def test_unnamed_sizes_are_named_after_their_dimensions(tmp_path, toy):
    weights.save(toy(), tmp_path / "x.npz", "google_npz")
    assert weights.checkpoint_info(tmp_path / "x.npz").name == "ViT-2x16/4"
    weights.save(toy(layer_scale=1.0, num_classes=0, mlp_dim=32), tmp_path / "d", "huggingface")
    assert weights.checkpoint_info(tmp_path / "d").name == "ViT-2x16/4"
    # Such a name goes into a checkpoint and back.
    notice = convert(str(tmp_path / "x.npz"), str(tmp_path / "c"), to="checkpoint")
    assert notice.startswith("ViT-2x16/4, images of 12 x 12 pixels, 3 classes")
    assert weights.checkpoint_info(tmp_path / "c").name == "ViT-2x16/4"
    assert models.spec("ViT-2x128/4") == models.spec(
        "ViT-B/4", depth=2, width=128, mlp_dim=512, num_heads=2
    )
