"""RandAugment: a few distortions drawn for each image, all at one magnitude (arXiv 1909.13719)."""

from vit_jax.data.host_tf import tf
from vit_jax.data.ops.distortions import DISTORTIONS, Reach, distort
from vit_jax.data.ops.op import Op, check, check_number, same_size

CHOICES = (
    "AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "Color", "Contrast",
    "Brightness", "Sharpness", "ShearX", "ShearY", "TranslateX", "TranslateY", "Cutout",
    "SolarizeAdd",
)  # fmt: skip
AS_PUBLISHED = tuple(
    f"{name} as published" if f"{name} as published" in DISTORTIONS else name for name in CHOICES
)
REACH = Reach(translate_px=100, cutout_px=40)
_MAX_MAGNITUDE = 30  # the limit of the paper's search, section 4


def randaugment(num_ops: int, magnitude: float, legacy: bool = False) -> Op:
    """`num_ops` distortions one after the other, each drawn uniformly from sixteen.

    `magnitude`, 0 to 30, is a level of distortions.py; with `legacy` it has the bugs of the
    published code.
    """
    most = len(CHOICES)
    check(
        type(num_ops) is int and 1 <= num_ops <= most,
        f"num_ops must be a whole number from 1 to {most}",
    )
    check_number("magnitude", magnitude, at_least=0, at_most=_MAX_MAGNITUDE)
    check(type(legacy) is bool, "legacy must be True or False")
    names = AS_PUBLISHED if legacy else CHOICES
    arguments = [DISTORTIONS[name].argument(magnitude, REACH) for name in names]

    def apply(pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        draws = tf.random.stateless_uniform([num_ops, 4], seed)
        choices = tf.cast(draws[:, 0] * len(names), tf.int32)
        chosen = tf.gather(tf.constant(arguments), choices)
        for i in range(num_ops):
            pixels = distort(pixels, names, choices[i], chosen[i], draws[i, 1:])
        return pixels

    return same_size(apply)
