"""Dense prediction: heads that give logits for each place of an image, not for the whole."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from vit_jax.core.axes import BATCH, PATCH, STREAM, WIDTH, constrain
from vit_jax.core.errors import UserError
from vit_jax.core.schema.fields import ABOVE_0, UP_TO_1, field
from vit_jax.models.head import head
from vit_jax.models.layers.linear import FLOAT32, Initializer, Linear
from vit_jax.models.layers.norm import BatchNorm, BatchNormFields, norm

# A field of evaluations.
STRIDE = field(
    2 / 3,
    "of images larger than the model's: from one window to the next, as a share of a window",
    bounds=(ABOVE_0, UP_TO_1),
)
_CONV_WIDTH = 256  # channels of a convolutional head


class DenseHead(nnx.Module):
    """What dense heads have in common."""

    classes: Linear

    @property
    def kernel(self) -> nnx.Param:
        """That of the last product."""
        return self.classes.kernel


class LinearHead(DenseHead):
    """Batch norm and a 1 x 1 convolution, as DINOv2 evaluates features (arXiv 2304.07193, 7.4)."""

    def __init__(
        self, spec: Any, num_classes: int, grid: tuple[int, int], init: Initializer, rngs: nnx.Rngs
    ):
        self.grid = grid
        self.norm = BatchNorm(spec.width, WIDTH, BatchNormFields(FLOAT32))
        self.classes = head(spec, spec.width, num_classes, kernel_init=init, rngs=rngs)

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """[B, N, D] -> [B, h, w, C]."""
        x = x.reshape(x.shape[0], *self.grid, x.shape[-1])
        return self.classes(self.norm(x, train))


class ConvHead(DenseHead):
    """Twice a 3 x 3 convolution, layer norm, GELU and upsampling by 2; then a 1 x 1 convolution.

    The progressive upsampling of SETR-PUP (arXiv 2012.15840, section 3.2), half as deep; it has no
    batch statistics. Arguments as of LinearHead.
    """

    def __init__(
        self, spec: Any, num_classes: int, grid: tuple[int, int], init: Initializer, rngs: nnx.Rngs
    ):
        self.grid = grid
        kernel_init = nnx.with_metadata(
            initializers.variance_scaling(2.0, "fan_in", "normal"),
            axes=(PATCH, PATCH, STREAM, WIDTH),
        )
        bias_init = nnx.with_metadata(initializers.zeros, axes=(WIDTH,))
        conv = functools.partial(
            nnx.Conv, kernel_size=(3, 3), kernel_init=kernel_init, bias_init=bias_init, rngs=rngs
        )
        make_norm = functools.partial(
            norm, "layer", _CONV_WIDTH, WIDTH, precision=FLOAT32, rngs=rngs
        )
        self.conv1, self.norm1 = conv(spec.width, _CONV_WIDTH), make_norm()
        self.conv2, self.norm2 = conv(_CONV_WIDTH, _CONV_WIDTH), make_norm()
        self.classes = head(spec, _CONV_WIDTH, num_classes, kernel_init=init, rngs=rngs)

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """[B, N, D] -> [B, 4 h, 4 w, C]."""
        x = x.reshape(x.shape[0], *self.grid, x.shape[-1])
        for conv, normed in ((self.conv1, self.norm1), (self.conv2, self.norm2)):
            x = jax.nn.gelu(normed(conv(x)))
            x = resized(x, (2 * x.shape[1], 2 * x.shape[2]))
        return self.classes(x)


def resized(x: jax.Array, size: tuple[int, int]) -> jax.Array:
    """[B, h, w, C] -> [B, H, W, C]: bilinear, as torch's interpolate(align_corners=False)."""
    x = jax.image.resize(x, (x.shape[0], *size, x.shape[3]), "bilinear", antialias=False)
    return constrain(x, BATCH, None, None, None)


def sliding(model: Any, images: jax.Array, stride: float) -> jax.Array:
    """Logits of images of any size from the model's on, [B, H, W, 3] -> [B, H, W, C].

    Windows of the model's size lie `stride` of it apart, the last ones at the border; where they
    overlap, the mean of their upsampled logits counts, as in mmsegmentation's `slide`.
    """
    if getattr(model.spec, "dense", None) is None:
        raise UserError("This model gives no logits of places: train it with model.dense=linear.")
    size, window = images.shape[1:3], model.preprocess.image_size
    starts = [
        [*range(0, whole - side, max(1, round(stride * side))), whole - side]
        for whole, side in zip(size, window, strict=True)
    ]
    places = jnp.array(list(itertools.product(*starts)))

    def add(sums: Any, place: jax.Array) -> Any:
        at = (0, place[0], place[1], 0)
        part = jax.lax.dynamic_slice(images, at, (len(images), *window, images.shape[3]))
        logits = resized(model(part), window)
        logits = jnp.concatenate([logits, jnp.ones_like(logits[..., :1])], -1)
        before = jax.lax.dynamic_slice(sums, at, logits.shape)
        return jax.lax.dynamic_update_slice(sums, before + logits, at), None

    sums = jnp.zeros((len(images), *size, model.num_classes + 1))
    sums = jax.lax.scan(add, constrain(sums, BATCH, None, None, None), places)[0]
    return sums[..., :-1] / sums[..., -1:]
