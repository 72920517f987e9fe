"""How the parameters of a ViT start, by the code that a recipe comes from.

Recipes differ in it, and their learning rates, optimizers and decays were chosen with it. What is
not here starts alike in all: norms' scales at 1, their offsets and the other biases at 0.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.nn import initializers

from vit_jax.nn.linear import Initializer

XAVIER, LECUN = initializers.xavier_uniform(), initializers.lecun_normal()
ZEROS = initializers.zeros
POSITIONS = initializers.normal(0.02)


class Initialization(NamedTuple):
    """Initializers, called with (key, shape, dtype); kernels' with [in, out] unless it says more.

    Attributes:
      kernel: of attention and MLP, each of query, key and value by itself; of the probe as [1, D].
      mlp_bias: of the MLP's layers.
      patch_kernel: [P, P, channels, D].
      patch_bias: called with `inputs` besides, P * P * channels.
      positions: of tables of positions, and of registers.
      class_token: [D].
      pre_logits: [D, D].
      head: [D, C].
    """

    kernel: Initializer
    mlp_bias: Initializer
    patch_kernel: Initializer
    patch_bias: Callable[..., jax.Array]
    positions: Initializer
    class_token: Initializer
    pre_logits: Initializer
    head: Initializer


def _zero_bias(key: Any, shape: tuple[int, ...], dtype: Any, inputs: int) -> jax.Array:
    del inputs
    return ZEROS(key, shape, dtype)


def _vit(_: int) -> Initialization:
    """The released code (github.com/google-research/vision_transformer, models_vit.py)."""
    return Initialization(
        kernel=XAVIER,
        mlp_bias=initializers.normal(1e-6),
        patch_kernel=LECUN,
        patch_bias=_zero_bias,
        positions=POSITIONS,
        class_token=ZEROS,
        pre_logits=LECUN,
        head=ZEROS,
    )


def _big_vision(width: int) -> Initialization:
    """github.com/google-research/big_vision, models/vit.py: positions are as long as patches."""
    return _vit(width)._replace(positions=initializers.normal(1 / math.sqrt(width)))


def _deit(_: int) -> Initialization:
    """DeiT III (arXiv 2204.07118; github.com/facebookresearch/deit, models_v2.py).

    Theirs is cut off at -2 and 2, a hundred standard deviations away. The patches are not among
    what it initialises: theirs is how torch starts a convolution.
    """
    normal = initializers.normal(0.02)
    return Initialization(
        kernel=normal,
        mlp_bias=ZEROS,
        patch_kernel=_torch_kernel,
        patch_bias=_torch_uniform,
        positions=normal,
        class_token=normal,
        pre_logits=normal,
        head=normal,
    )


def _torch_kernel(key: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    return _torch_uniform(key, shape, dtype, math.prod(shape[:-1]))


def _torch_uniform(key: Any, shape: tuple[int, ...], dtype: Any, inputs: int) -> jax.Array:
    """Uniform in +-1 / sqrt(inputs) (torch.nn.Conv2d, of kernel and bias)."""
    bound = 1 / math.sqrt(inputs)
    return jax.random.uniform(key, shape, dtype, -bound, bound)


# Name -> width D -> initializers.
INITIALIZATIONS: dict[str, Callable[[int], Initialization]] = {
    "vit": _vit,
    "big_vision": _big_vision,
    "deit": _deit,
}
VIT = _vit(0)  # whatever the width
