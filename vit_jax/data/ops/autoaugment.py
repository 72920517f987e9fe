"""RandAugment and AutoAugment: distortions drawn for each image (arXiv 1909.13719, 1805.09501)."""

from __future__ import annotations

from vit_jax.core.errors import nearest
from vit_jax.data.host_tf import tf
from vit_jax.data.ops.distortions import DISTORTIONS, NOTHING, Reach, distort
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


_Step = tuple[str, float, int]

_REACH = Reach(translate_px=250, cutout_px=100)


def autoaugment(policy: str) -> Op:
    """Applies a uniformly drawn sub-policy of `policy`, each distortion with its probability.

    The meaning of levels is defined in distortions.py.
    """
    check(
        isinstance(policy, str) and policy in POLICIES,
        f"there is no policy {policy!r}. {nearest(str(policy), POLICIES)}".removesuffix("."),
    )
    sub_policies = POLICIES[policy]
    names = sorted({name for steps in sub_policies for name, _, _ in steps})
    choices = [[names.index(name) for name, _, _ in steps] for steps in sub_policies]
    probabilities = [[probability for _, probability, _ in steps] for steps in sub_policies]
    arguments = [
        [DISTORTIONS[name].argument(level, _REACH) for name, _, level in steps]
        for steps in sub_policies
    ]

    def apply(pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        draws = tf.random.stateless_uniform([9], seed)
        chosen = tf.cast(draws[0] * len(sub_policies), tf.int32)
        happens = draws[1:3] < tf.constant(probabilities)[chosen]
        choice = tf.where(happens, tf.constant(choices)[chosen], NOTHING)
        argument, chance = tf.constant(arguments)[chosen], tf.reshape(draws[3:], [2, 3])
        for i in range(2):
            pixels = distort(pixels, names, choice[i], argument[i], chance[i])
        return pixels

    return same_size(apply)


# The published policies: (distortion, probability, level) twice, 25 times. `v0` is the one that the
# authors released with their TensorFlow implementation. The others are the paper's (appendix; its
# tables give ops without an argument a level, which is 0 here); they translate by a part of the
# image's side, as for the images that the policies were searched on.
POLICIES: dict[str, tuple[tuple[_Step, _Step], ...]] = {
    "v0": (
        (("Equalize", 0.8, 1), ("ShearY", 0.8, 4)),
        (("Color", 0.4, 9), ("Equalize", 0.6, 3)),
        (("Color", 0.4, 1), ("Rotate", 0.6, 8)),
        (("Solarize", 0.8, 3), ("Equalize", 0.4, 7)),
        (("Solarize", 0.4, 2), ("Solarize", 0.6, 2)),
        (("Color", 0.2, 0), ("Equalize", 0.8, 8)),
        (("Equalize", 0.4, 8), ("SolarizeAdd", 0.8, 3)),
        (("ShearX", 0.2, 9), ("Rotate", 0.6, 8)),
        (("Color", 0.6, 1), ("Equalize", 1.0, 2)),
        (("Invert", 0.4, 9), ("Rotate", 0.6, 0)),
        (("Equalize", 1.0, 9), ("ShearY", 0.6, 3)),
        (("Color", 0.4, 7), ("Equalize", 0.6, 0)),
        (("Posterize", 0.4, 6), ("AutoContrast", 0.4, 7)),
        (("Solarize", 0.6, 8), ("Color", 0.6, 9)),
        (("Solarize", 0.2, 4), ("Rotate", 0.8, 9)),
        (("Rotate", 1.0, 7), ("TranslateY", 0.8, 9)),
        (("ShearX", 0.0, 0), ("Solarize", 0.8, 4)),
        (("ShearY", 0.8, 0), ("Color", 0.6, 4)),
        (("Color", 1.0, 0), ("Rotate", 0.6, 2)),
        (("Equalize", 0.8, 4), ("Equalize", 0.0, 8)),
        (("Equalize", 1.0, 4), ("AutoContrast", 0.6, 2)),
        (("ShearY", 0.4, 7), ("SolarizeAdd", 0.6, 7)),
        (("Posterize", 0.8, 2), ("Solarize", 0.6, 10)),
        (("Solarize", 0.6, 8), ("Equalize", 0.6, 1)),
        (("Color", 0.8, 6), ("Rotate", 0.4, 5)),
    ),
    "imagenet": (
        (("Posterize", 0.4, 8), ("Rotate", 0.6, 9)),
        (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 0)),
        (("Equalize", 0.8, 0), ("Equalize", 0.6, 0)),
        (("Posterize", 0.6, 7), ("Posterize", 0.6, 6)),
        (("Equalize", 0.4, 0), ("Solarize", 0.2, 4)),
        (("Equalize", 0.4, 0), ("Rotate", 0.8, 8)),
        (("Solarize", 0.6, 3), ("Equalize", 0.6, 0)),
        (("Posterize", 0.8, 5), ("Equalize", 1.0, 0)),
        (("Rotate", 0.2, 3), ("Solarize", 0.6, 8)),
        (("Equalize", 0.6, 0), ("Posterize", 0.4, 6)),
        (("Rotate", 0.8, 8), ("Color", 0.4, 0)),
        (("Rotate", 0.4, 9), ("Equalize", 0.6, 0)),
        (("Equalize", 0.0, 0), ("Equalize", 0.8, 0)),
        (("Invert", 0.6, 0), ("Equalize", 1.0, 0)),
        (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
        (("Rotate", 0.8, 8), ("Color", 1.0, 2)),
        (("Color", 0.8, 8), ("Solarize", 0.8, 7)),
        (("Sharpness", 0.4, 7), ("Invert", 0.6, 0)),
        (("ShearX", 0.6, 5), ("Equalize", 1.0, 0)),
        (("Color", 0.4, 0), ("Equalize", 0.6, 0)),
        (("Equalize", 0.4, 0), ("Solarize", 0.2, 4)),
        (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 0)),
        (("Invert", 0.6, 0), ("Equalize", 1.0, 0)),
        (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
        (("Equalize", 0.8, 0), ("Equalize", 0.6, 0)),
    ),
    "cifar10": (
        (("Invert", 0.1, 0), ("Contrast", 0.2, 6)),
        (("Rotate", 0.7, 2), ("TranslateX of width", 0.3, 9)),
        (("Sharpness", 0.8, 1), ("Sharpness", 0.9, 3)),
        (("ShearY", 0.5, 8), ("TranslateY of height", 0.7, 9)),
        (("AutoContrast", 0.5, 0), ("Equalize", 0.9, 0)),
        (("ShearY", 0.2, 7), ("Posterize", 0.3, 7)),
        (("Color", 0.4, 3), ("Brightness", 0.6, 7)),
        (("Sharpness", 0.3, 9), ("Brightness", 0.7, 9)),
        (("Equalize", 0.6, 0), ("Equalize", 0.5, 0)),
        (("Contrast", 0.6, 7), ("Sharpness", 0.6, 5)),
        (("Color", 0.7, 7), ("TranslateX of width", 0.5, 8)),
        (("Equalize", 0.3, 0), ("AutoContrast", 0.4, 0)),
        (("TranslateY of height", 0.4, 3), ("Sharpness", 0.2, 6)),
        (("Brightness", 0.9, 6), ("Color", 0.2, 8)),
        (("Solarize", 0.5, 2), ("Invert", 0.0, 0)),
        (("Equalize", 0.2, 0), ("AutoContrast", 0.6, 0)),
        (("Equalize", 0.2, 0), ("Equalize", 0.6, 0)),
        (("Color", 0.9, 9), ("Equalize", 0.6, 0)),
        (("AutoContrast", 0.8, 0), ("Solarize", 0.2, 8)),
        (("Brightness", 0.1, 3), ("Color", 0.7, 0)),
        (("Solarize", 0.4, 5), ("AutoContrast", 0.9, 0)),
        (("TranslateY of height", 0.9, 9), ("TranslateY of height", 0.7, 9)),
        (("AutoContrast", 0.9, 0), ("Solarize", 0.8, 3)),
        (("Equalize", 0.8, 0), ("Invert", 0.1, 0)),
        (("TranslateY of height", 0.7, 9), ("AutoContrast", 0.9, 0)),
    ),
    "svhn": (
        (("ShearX", 0.9, 4), ("Invert", 0.2, 0)),
        (("ShearY", 0.9, 8), ("Invert", 0.7, 0)),
        (("Equalize", 0.6, 0), ("Solarize", 0.6, 6)),
        (("Invert", 0.9, 0), ("Equalize", 0.6, 0)),
        (("Equalize", 0.6, 0), ("Rotate", 0.9, 3)),
        (("ShearX", 0.9, 4), ("AutoContrast", 0.8, 0)),
        (("ShearY", 0.9, 8), ("Invert", 0.4, 0)),
        (("ShearY", 0.9, 5), ("Solarize", 0.2, 6)),
        (("Invert", 0.9, 0), ("AutoContrast", 0.8, 0)),
        (("Equalize", 0.6, 0), ("Rotate", 0.9, 3)),
        (("ShearX", 0.9, 4), ("Solarize", 0.3, 3)),
        (("ShearY", 0.8, 8), ("Invert", 0.7, 0)),
        (("Equalize", 0.9, 0), ("TranslateY of height", 0.6, 6)),
        (("Invert", 0.9, 0), ("Equalize", 0.6, 0)),
        (("Contrast", 0.3, 3), ("Rotate", 0.8, 4)),
        (("Invert", 0.8, 0), ("TranslateY of height", 0.0, 2)),
        (("ShearY", 0.7, 6), ("Solarize", 0.4, 8)),
        (("Invert", 0.6, 0), ("Rotate", 0.8, 4)),
        (("ShearY", 0.3, 7), ("TranslateX of width", 0.9, 3)),
        (("ShearX", 0.1, 6), ("Invert", 0.6, 0)),
        (("Solarize", 0.7, 2), ("TranslateY of height", 0.6, 7)),
        (("ShearY", 0.8, 4), ("Invert", 0.8, 0)),
        (("ShearX", 0.7, 9), ("TranslateY of height", 0.8, 3)),
        (("ShearY", 0.8, 5), ("AutoContrast", 0.7, 0)),
        (("ShearX", 0.7, 2), ("Invert", 0.1, 0)),
    ),
}
