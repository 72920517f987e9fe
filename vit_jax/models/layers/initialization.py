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
# torch's, which is not truncated.
XAVIER_NORMAL = initializers.variance_scaling(1.0, "fan_avg", "normal")
ZEROS = initializers.zeros
POSITIONS = initializers.normal(0.02)


class Initialization(NamedTuple):
    """Initializers, called with (key, shape, dtype); kernels have shape [in, out] unless noted."""

    # Attention and MLP, query, key and value each separately; the probe as [1, D].
    kernel: Initializer
    mlp_bias: Initializer  # the MLP's layers
    patch_kernel: Initializer  # [P, P, channels, D]
    patch_bias: Callable[..., jax.Array]  # called with `inputs` too, P * P * channels
    positions: Initializer  # tables of positions, and registers
    class_token: Initializer  # [D]
    pre_logits: Initializer  # [D, D]
    head: Initializer  # [D, C]
    qkv: Initializer | None = None  # query, key and value, if not as `kernel`


def _zero_bias(key: Any, shape: tuple[int, ...], dtype: Any, inputs: int) -> jax.Array:
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


def _vit_lite(width: int) -> Initialization:
    """Initialisation of ViT-Lite (arXiv 2104.05704; SHI-Labs/Compact-Transformers, src).

    Its normals are truncated at -2 and 2, ten and a hundred standard deviations away.
    """
    return _deit(width)._replace(
        patch_kernel=initializers.variance_scaling(2.0, "fan_in", "normal"),
        positions=initializers.normal(0.2),
        class_token=ZEROS,
    )


def _spt(width: int) -> Initialization:
    """Initialisation of the ViTs of arXiv 2112.13492 (aanna0701/SPT_LSA_ViT, models/vit.py).

    Xavier's normal, by torch: query, key and value are one layer, and patches a dense one.
    """
    normal = initializers.normal(1.0)
    return Initialization(
        kernel=XAVIER_NORMAL,
        qkv=initializers.normal(math.sqrt(2 / (4 * width))),
        mlp_bias=ZEROS,
        patch_kernel=_dense_xavier_normal,
        patch_bias=_zero_bias,
        positions=normal,
        class_token=normal,
        pre_logits=XAVIER_NORMAL,
        head=XAVIER_NORMAL,
    )


def _dense_xavier_normal(key: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """[P, P, channels, D], as a dense layer of [P * P * channels, D]."""
    return XAVIER_NORMAL(key, (math.prod(shape[:-1]), shape[-1]), dtype).reshape(shape)


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
    "vit_lite": _vit_lite,
    "spt": _spt,
}
