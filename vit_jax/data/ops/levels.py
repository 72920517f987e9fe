"""Images that were stored with other levels than 0 to 255."""

from vit_jax.data.host_tf import tf
from vit_jax.data.ops.op import Op, check

_WHITE = 255


def white_level(level: int) -> Op:
    """Stretches the levels 0 to `level` to 0 to 255, rounded down; higher ones become white.

    For images that a data set holds in fewer levels, such as dSprites: black is 0 and white is 1.
    """
    check(type(level) is int and 1 <= level <= _WHITE, "level must be a whole number from 1 to 255")

    def apply(pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        stretched = tf.cast(tf.minimum(pixels, level), tf.int32) * _WHITE // level
        return tf.cast(stretched, tf.uint8)

    return Op(apply, output_size=lambda size: size, is_random=False)
