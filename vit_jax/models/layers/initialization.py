"""Initialisations of a ViT's parameters, by the code that a recipe comes from.

Recipes differ here, and their learning rates, optimizers and decays were chosen accordingly. The
rest starts alike in all of them: norms' scales at 1, their offsets and the other biases at 0.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.nn import initializers

from vit_jax.models.layers.linear import Initializer

XAVIER, LECUN = initializers.xavier_uniform(), initializers.lecun_normal()
ZEROS = initializers.zeros
POSITIONS = initializers.normal(0.02)


class Initialization(NamedTuple):
    """Initializers, called with (key, shape, dtype); kernels have shape [in, out] unless noted.

    Attributes:
      kernel: attention and MLP, query, key and value each separately; the probe as [1, D].
      mlp_bias: the MLP's layers.
      patch_kernel: [P, P, channels, D].
      patch_bias: called with `inputs` too, P * P * channels.
      positions: tables of positions, and registers.
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
    """Initialisation of the released code (google-research/vision_transformer, models_vit.py)."""
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
    """Initialisation of google-research/big_vision, models/vit.py: positions as long as patches."""
    return _vit(width)._replace(positions=initializers.normal(1 / math.sqrt(width)))


def _deit(_: int) -> Initialization:
    """Initialisation of DeiT III (arXiv 2204.07118; facebookresearch/deit, models_v2.py).

    Its normal is truncated at -2 and 2, a hundred standard deviations away. It leaves the patch
    embedding to torch's default for a convolution.
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
    """Uniform in +-1 / sqrt(inputs) (torch.nn.Conv2d, kernel and bias)."""
    bound = 1 / math.sqrt(inputs)
    return jax.random.uniform(key, shape, dtype, -bound, bound)


# Value of model.initialization -> width D -> initializers.
MAKERS: dict[str, Callable[[int], Initialization]] = {
    "vit": _vit,
    "big_vision": _big_vision,
    "deit": _deit,
}
