"""The model in a checkpoint or in another project's file, and the reading of its parameters."""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax import models
from vit_jax.core import pytrees
from vit_jax.core.errors import UserError
from vit_jax.core.token_layout import TokenLayout
from vit_jax.store import checkpoint_dir
from vit_jax.weights.external import ExternalWeights


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """The model in a checkpoint, or in another project's file; no array is read.

    Attributes:
      folder: the step's folder, or the file.
      name: the model's name, such as "ViT-B/16".
      spec: the model's fields.
      preprocess: how prediction prepares images.
      shapes: shapes of arrays by name; parameters are under "params/", their EMA under "ema/".
      external: the contents of another project's file; None for a checkpoint of this one.
      adapter_scale: of a checkpoint's low-rank adapters, which are merged into its kernels wherever
        these are read; None: it has none.
      fetched_by: the pinned name of weights that were fetched; None of a path.
    """

    folder: epath.Path
    name: str
    spec: Any
    num_classes: int
    class_names: tuple[str, ...] | None
    preprocess: models.Preprocess
    shapes: dict[str, tuple[int, ...]]
    external: ExternalWeights | None = None
    adapter_scale: float | None = None
    fetched_by: str | None = None

    @property
    def origin(self) -> str:
        """What messages call it: the name, or the path."""
        return self.fetched_by or str(self.folder)

    @property
    def step(self) -> int:
        """The number of updates done; 0 for other projects' files, which do not state it."""
        return 0 if self.external else int(self.folder.name)

    @property
    def tokens(self) -> TokenLayout:
        """The origin of each of the model's tokens, and so of its positions."""
        stated = self.external.positions_for if self.external else None
        return self.spec.token_layout(stated or self.preprocess.image_size)

    def param_shapes(self, *, ema: bool) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters or their EMA. UserError if there is no EMA."""
        shapes = self._shapes_under(self._under(ema) + "/")
        return {n: shape for n, shape in shapes.items() if not pytrees.is_adapter(n)}

    def fingerprint(self) -> str:
        """A hash of its arrays, hexadecimal; of another project's file all of them are read."""
        hashed = hashlib.sha256()
        if self.external:
            for name, tensor in sorted(self.external.match.tensors.items()):
                hashed.update(name.encode() + np.ascontiguousarray(tensor.read()).tobytes())
        else:
            arrays = checkpoint_dir.read_description(self.folder)["arrays"]
            hashed.update(json.dumps(arrays, sort_keys=True).encode())
        return hashed.hexdigest()

    def parameters(self, *, ema: bool) -> int:
        """Their number. UserError if there is no EMA."""
        return sum(map(math.prod, self.param_shapes(ema=ema).values()))

    def read(
        self, layout: Mapping[str, jax.ShapeDtypeStruct], *, ema: bool
    ) -> dict[str, jax.Array]:
        """Parameters with these names, verified where there are checksums; no others are read.

        Args:
          layout: shapes as in `param_shapes`; arrays without a sharding go to the first device.
          ema: the EMA instead of the parameters.

        Raises:
          UserError: there is no EMA.
          DamagedError: the checkpoint cannot be read, or its bits have changed.
        """
        under = self._under(ema)
        if self.external:
            return {name: _placed(self.external.array(name), x) for name, x in layout.items()}
        shapes = self._shapes_under(f"{under}/")
        factors = {name: _factors(name, shapes) for name in layout}
        wanted = dict(layout)
        for name, pair in factors.items():
            sharding = layout[name].sharding
            if isinstance(sharding, NamedSharding):
                sharding = NamedSharding(sharding.mesh, PartitionSpec())
            for n in pair:
                wanted[n] = jax.ShapeDtypeStruct(shapes[n], layout[name].dtype, sharding=sharding)
        arrays = checkpoint_dir.read_some(
            self.folder, {f"{under}/{n}": x for n, x in wanted.items()}
        )
        read = {name: arrays[f"{under}/{name}"] for name in wanted}
        return {name: self._merged(name, read, pair) for name, pair in factors.items()}

    def _merged(
        self, name: str, arrays: Mapping[str, jax.Array], factors: tuple[str, ...]
    ) -> jax.Array:
        """The array of this name with its adapter, sharded as it is."""
        kernel = arrays[name]
        if not factors:
            return kernel
        a, b = (arrays[factor] for factor in factors)
        assert self.adapter_scale is not None
        sum_ = merged(kernel, a, b, self.adapter_scale, stacked=pytrees.is_stacked(name))
        return jax.device_put(sum_, kernel.sharding)

    def _shapes_under(self, under: str) -> dict[str, tuple[int, ...]]:
        return {n.removeprefix(under): s for n, s in self.shapes.items() if n.startswith(under)}

    def _under(self, ema: bool) -> str:
        if self.external and ema:
            raise UserError(f"{self.origin} has no moving average (EMA): it is one set of weights.")
        return (
            checkpoint_dir.PARAMS
            if self.external
            else checkpoint_dir.params_or_ema(self.folder, ema=ema)
        )


def _factors(kernel: str, shapes: Mapping[str, object]) -> tuple[str, ...]:
    """Names of the factors that a kernel's adapter has among `shapes`; () if it has none."""
    above, _, last = kernel.rpartition("/")
    names = (f"{above}/{pytrees.LORA_A}", f"{above}/{pytrees.LORA_B}")
    return names if last == "kernel" and all(name in shapes for name in names) else ()


@functools.partial(jax.jit, static_argnames="stacked")
def merged(
    kernel: jax.Array, a: jax.Array, b: jax.Array, scale: float, *, stacked: bool
) -> jax.Array:
    """kernel + scale * a b, which computes what the kernel does with this adapter.

    The shapes are those of nn.linear.Linear; `stacked`: whether they have a leading layer axis.
    """
    product: Any = functools.partial(jnp.tensordot, axes=1, precision="highest")
    if a.ndim + b.ndim - kernel.ndim - 2 > stacked:  # projections side by side, [*in, n, H, K]
        product = jax.vmap(product, in_axes=(-2, 0), out_axes=a.ndim - 2 - stacked)
    if stacked:
        product = jax.vmap(product)
    return kernel + scale * product(a, b)


def _placed(array: np.ndarray, x: jax.ShapeDtypeStruct) -> jax.Array:
    if x.sharding is None:
        return jax.device_put(array, jax.local_devices()[0])
    return jax.make_array_from_callback(array.shape, x.sharding, lambda index: array[index])
