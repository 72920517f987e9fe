from vit_jax.data.host_tf import tf


def test_no_gpu_is_visible_to_tensorflow() -> None:
    assert tf.config.get_visible_devices("GPU") == []
