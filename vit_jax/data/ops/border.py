"""Removal of a frame around images, as ObjectNet's have."""

from vit_jax.data.host_tf import tf
from vit_jax.data.ops.op import KnownSize, Op, check_pixels


def crop_border(pixels: int) -> Op:
    """Cuts so many pixels off at each side. An image of which nothing is left is a bad image."""
    check_pixels("pixels", pixels, at_least=1)
    cut = 2 * pixels

    def apply(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        left = tf.shape(image)[:2] - cut
        message = f"the image is smaller than its border of {pixels} pixels"
        with tf.control_dependencies([tf.debugging.assert_positive(left, message)]):
            return image[pixels:-pixels, pixels:-pixels]

    def output_size(before: KnownSize) -> KnownSize:
        if before is None:
            return None
        shorter = before if isinstance(before, int) else min(before)
        if shorter <= cut:
            raise ValueError(f"leaves nothing of {shorter} pixels: cut off fewer")
        return before - cut if isinstance(before, int) else (before[0] - cut, before[1] - cut)

    return Op(apply, output_size, is_random=False)
