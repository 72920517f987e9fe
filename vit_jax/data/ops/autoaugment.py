"""AutoAugment: a sub-policy of two distortions drawn for each image (arXiv 1805.09501)."""

from __future__ import annotations

from vit_jax.core.errors import nearest
from vit_jax.data.host_tf import tf
from vit_jax.data.ops.distortions import DISTORTIONS, NOTHING, Reach, distort
from vit_jax.data.ops.op import Op, check, same_size
from vit_jax.data.ops.policies import POLICIES

_REACH = Reach(translate_px=250, cutout_px=100)


def autoaugment(policy: str) -> Op:
    """One of the policy's sub-policies, drawn uniformly: each distortion with its probability.

    Levels mean what distortions.py says.
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
