"""EfficientNets (arXiv 1905.11946), the students and teachers of Noisy Student (1911.04252)."""

import dataclasses
import functools
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from flax import nnx
from jax.nn import initializers

from vit_jax.core.axes import BATCH, STREAM, WIDTH, constrain
from vit_jax.core.schema.fields import field
from vit_jax.models.convnet import ConvNet, ConvNetSpec
from vit_jax.models.family import Family
from vit_jax.models.layers.linear import Initializer
from vit_jax.models.layers.mbconv import BatchNorm, MBConv, MBConvSpec, Root, pointwise
from vit_jax.models.layers.regularization import Dropout, dropout_key
from vit_jax.models.layers.resnet import ANY_SIZE
from vit_jax.models.layers.stack import add_stages, run_stages


class Published(NamedTuple):
    """One of the published models."""

    width_coefficient: float
    depth_coefficient: float
    image_size_px: int
    dropout: float


# From the released code of arXiv 1905.11946; L2 from arXiv 1911.04252, table 7.
SIZES = {
    "B0": Published(1.0, 1.0, 224, 0.2),
    "B1": Published(1.0, 1.1, 240, 0.2),
    "B2": Published(1.1, 1.2, 260, 0.3),
    "B3": Published(1.2, 1.4, 300, 0.3),
    "B4": Published(1.4, 1.8, 380, 0.4),
    "B5": Published(1.6, 2.2, 456, 0.4),
    "B6": Published(1.8, 2.6, 528, 0.5),
    "B7": Published(2.0, 3.1, 600, 0.5),
    "L2": Published(4.3, 5.3, 800, 0.5),
}
HUNDREDTHS = range(1, 1001)  # coefficients, in hundredths, that `with_sizes` tries
_NUMBER = r"\d{1,2}(?:\.\d{1,2})?"
_NAME = re.compile(rf"EfficientNet-(?:(B[0-7]|L2)|({_NUMBER})x({_NUMBER}))")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EfficientNetSpec(ConvNetSpec, MBConvSpec):
    """The fields of an EfficientNet."""

    dropout: float = field(
        0.2,
        "rate [0]; of an EfficientNet's features alone, by its name [0.2 to 0.5]",
        bounds=(0, 1),
    )
    stochastic_depth: float = field(
        0.2,
        "rate at the last block, rising linearly from 0 at the first; of an EfficientNet's n units "
        "the last has (n - 1) / n of it, as published [0; of an EfficientNet 0.2]",
        bounds=(0, 1),
    )

    def check(self) -> None:
        """Every combination of fields is a model."""


def named(name: str) -> dict[str, Any] | None:
    """The fields for "EfficientNet-B0", or "EfficientNet-1.5x2" by its coefficients of width and
    depth; None for a name of another form.
    """
    match = _NAME.fullmatch(name)
    if not match:
        return None
    if match[1]:
        own = SIZES[match[1]]
        return {
            "width_coefficient": own.width_coefficient,
            "depth_coefficient": own.depth_coefficient,
            "dropout": own.dropout,
        }
    width, depth = float(match[2]), float(match[3])
    if not width or not depth:
        return None
    return {"width_coefficient": width, "depth_coefficient": depth}


def with_sizes(units: Sequence[int], channels: Sequence[int], map_channels: int) -> str | None:
    """The name of a model with these sizes, a published one if there is one; else None.

    The arguments are the properties of EfficientNetSpec. Several coefficients may give the same
    sizes: the smallest one with two decimals is taken.
    """

    def fits(spec: MBConvSpec) -> tuple[bool, bool]:
        wide = (spec.channels, spec.map_channels) == (tuple(channels), map_channels)
        return wide, spec.units == tuple(units)

    for size in SIZES:
        name = f"EfficientNet-{size}"
        if all(fits(EfficientNetSpec(**(named(name) or {})))):
            return name
    tried = [hundredths / 100 for hundredths in HUNDREDTHS]
    width = next((x for x in tried if fits(MBConvSpec(width_coefficient=x))[0]), None)
    depth = next((x for x in tried if fits(MBConvSpec(depth_coefficient=x))[1]), None)
    return f"EfficientNet-{width:g}x{depth:g}" if width and depth else None


class EfficientNet(ConvNet):
    """An EfficientNet: root, seven stages, a 1 x 1 convolution, the mean over positions, a head."""

    def _make_body(self, image_size: tuple[int, int], rngs: nnx.Rngs) -> None:
        del image_size
        spec = self.spec
        self.root = Root(spec, rngs=rngs)
        add_stages(
            self,
            functools.partial(MBConv, spec=spec),
            spec,
            ANY_SIZE,
            drop_rate=lambda unit: spec.stochastic_depth * unit / spec.depth,
            rngs=rngs,
        )
        self.top = Top(spec, rngs=rngs)
        self.dropout = Dropout(spec.dropout)

    def _head_init(self, num_classes: int) -> Initializer:
        """Uniform within 1 / sqrt(classes) on both sides of 0."""
        bound = 1 / math.sqrt(num_classes)
        return lambda *arguments: initializers.uniform(2 * bound)(*arguments) - bound

    def __call__(self, images: jax.Array, train: bool = False, rngs: Any = None) -> jax.Array:
        """[B, H, W, 3] float32, normalised -> logits [B, C] float32; headless: features [B, D].

        Args:
          images: prepared by `preprocess`.
          train: with dropout and stochastic depth, for which `rngs` is needed; norms take their
            moments from the batch, and their running statistics have gradients of their own.
          rngs: an nnx.Rngs with a stream "dropout", or a key.
        """
        draws = self.spec.dropout or self.spec.stochastic_depth
        keys = jax.random.split(dropout_key(rngs)) if train and draws else (None, None)
        x = self.pool(self._map(images, keys[0], train))
        return self.classify(self.dropout(x, keys[1]))

    def feature_map(self, images: jax.Array) -> jax.Array:
        """[B, H, W, 3] -> [B, h, w, D]: the last feature map, behind norm and swish."""
        return self._map(images, None, False)

    def unit_maps(self, images: jax.Array, layers: tuple[int, ...]) -> tuple[jax.Array, ...]:
        """[B, H, W, 3] -> [B, h', w', D'] after each of these units."""
        return self._run(images, None, False, layers)[1]

    def _map(self, images: jax.Array, key: Any, train: bool) -> jax.Array:
        return self.top(self._run(images, key, train)[0], train)

    def _run(
        self, images: jax.Array, key: Any, train: bool, layers: tuple[int, ...] = ()
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """[B, H, W, 3] -> ([B, h, w, C], feature maps after the units `layers`, from 0)."""
        self.spec.check_images(images, self.preprocess.image_size)
        return run_stages(self, self.root(images, train), key, layers, shared=train)


class Top(nnx.Module):
    """1 x 1 convolution, norm and swish."""

    def __init__(self, spec: EfficientNetSpec, *, rngs: nnx.Rngs):
        channels = spec.channels[-1], spec.map_channels
        self.conv = pointwise(channels, (STREAM, WIDTH), spec, rngs)
        self.norm = BatchNorm(spec.map_channels, WIDTH, spec)

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """[B, h, w, C] -> [B, h, w, D]."""
        x = jax.nn.silu(self.norm(self.conv(x), train))
        return constrain(x, BATCH, None, None, STREAM)


FAMILY = Family(
    kind="An EfficientNet",
    form=f"EfficientNet-<{'|'.join(SIZES)}|width x depth coefficients, as 1.1x1.2>",
    published=tuple(f"EfficientNet-{size}" for size in SIZES),
    spec=EfficientNetSpec,
    named=named,
    module=EfficientNet,
)
