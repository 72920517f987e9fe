"""Equal blocks one after the other: one stacked parameter tree, run by a scan or unrolled.

The parameters of all L blocks are in one tree with a leading axis L, however they are run, so
checkpoints, optimizers and results do not depend on that choice. A convolutional network has
stages, each a unit that changes the feature map's shape and a stack of equal ones.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from vit_jax.core.axes import LAYERS, target
from vit_jax.core.pytrees import Layers
from vit_jax.core.schema.fields import field
from vit_jax.models.layers.kernels import scanned
from vit_jax.models.layers.kernels.xla import MIXED, PROJECTED, STATISTICS, WEIGHTS
from vit_jax.models.layers.linear import Numerics

OFFLOAD_MEMORY = "pinned_host"  # the JAX memory kind that `offload` needs
BLOCK_INPUT = "block_input"  # name of the tokens that enter a block, for policies


def _dots(primitive: Any, *arguments: Any, **parameters: Any) -> bool:
    """Whether to keep a result: matrix products without batch axes, and convolutions."""
    product = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    return primitive is jax.lax.conv_general_dilated_p or bool(
        product(primitive, *arguments, **parameters)
    )


_ATTENTION = jax.checkpoint_policies.save_only_these_names(PROJECTED, WEIGHTS, MIXED, STATISTICS)


def _products(primitive: Any, *arguments: Any, **parameters: Any) -> bool:
    """Whether to keep a result: matrix products, and what attention's backward pass reads.

    The sums of norms are kept too: they are small, and recomputing one reads all that it sums.
    """
    wanted = (policy(primitive, *arguments, **parameters) for policy in (_dots, _ATTENTION))
    return any(wanted) or primitive is jax.lax.reduce_sum_p


# Value of model.remat -> what is kept for the backward pass; the rest of a block is
# recomputed.
REMAT_POLICIES: dict[str, Callable[..., bool] | None] = {
    "none": None,  # no rematerialisation: every intermediate may be kept
    "dots": _products,
    "dots_no_batch": _dots,
    "full": jax.checkpoint_policies.nothing_saveable,
    # As `full`, with the blocks' inputs kept in host memory.
    "offload": jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=[BLOCK_INPUT],
        offload_src="device",
        offload_dst=OFFLOAD_MEMORY,
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackSpec(Numerics):
    """How a stack of blocks is run: scanned (compiles one block), or unrolled (runs faster)."""

    scan: bool = field(
        False,
        "the blocks, or the units of a ResNet's stage, by one compiled loop (true) or unrolled "
        "[false]",
    )
    remat: str = field(
        "none",
        "what is computed again on the way back: `none` [this]: no matrix product, and in a scan "
        "the cheap operations between them; `dots`: those operations, and on a TPU the fused "
        "attention of fewer than 256 tokens, as in a scan; `dots_no_batch`: attention's "
        "products too; `full`: a whole block; `offload`: likewise, and the blocks' inputs wait in "
        "the host's memory, where the platform can do that",
        choices=REMAT_POLICIES,
    )


class Stack(nnx.Module):
    """`depth` blocks made by `make_block(rngs=...)`.

    Args:
      make_block: its result is called as block(x, key, drop_rate).
      stochastic_depth: drop rate of the last block; it rises linearly from `first_depth`.
      constant_depth: use that rate for every block instead.
      first_depth: drop rate of the first block.
    """

    def __init__(
        self,
        make_block: Callable[..., nnx.Module],
        spec: StackSpec,
        *,
        depth: int,
        stochastic_depth: float = 0.0,
        constant_depth: bool = False,
        first_depth: float = 0.0,
        rngs: nnx.Rngs,
    ):
        keys = jax.random.split(rngs.params(), depth)
        self.block = nnx.vmap(lambda key: make_block(rngs=nnx.Rngs(key)))(keys)
        for _, variable in nnx.iter_graph(self.block):
            if isinstance(variable, nnx.Param):
                variable.set_metadata(axes=(LAYERS, *variable.get_metadata()["axes"]))
        self.depth = depth
        self.stochastic_depth = stochastic_depth
        self.first_depth = stochastic_depth if constant_depth else first_depth
        self.scan, self.remat = spec.scan, spec.remat
        self.converts = spec.precision.compute != jnp.float32

    def __call__(
        self,
        x: jax.Array,
        key: jax.Array | None,
        layers: tuple[int, ...] = (),
        shared: Any = None,
        num_output_tokens: int | None = None,
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """[B, N, D] -> ([B, N, D] after the last block, the same after blocks `layers`, from 0).

        Any other shape that the blocks keep, such as a feature map's, works too. With `shared`
        every block is called as block(x, key, drop_rate, shared).

        num_output_tokens: only the first tokens after the last block are wanted, so many: that
          block is told (`num_output_tokens=`), unless a loop runs it, in which all are alike.
        """
        graph, params = nnx.split(self.block)
        read: Callable[[Any], Any] = lambda params: params
        if self.scan and self.converts and target().platform == "tpu":
            params, read = scanned.converted_inside(self.block, params)
        extra = () if shared is None else (shared,)

        def layer(x: jax.Array, inputs: Any, **arguments: int) -> jax.Array:
            params, key, rate = inputs
            block = nnx.merge(graph, read(params))
            return block(checkpoint_name(x, BLOCK_INPUT), key, rate, *extra, **arguments)

        # None rather than zeros: then no random bits are drawn.
        rate = self.stochastic_depth
        rates = jnp.linspace(self.first_depth, rate, self.depth) if rate else None
        keys = None if key is None else jax.random.split(key, self.depth)
        outputs: Any
        if self.scan:
            run = self._rematerialised(layer)
            step = lambda x, inputs: (y := run(x, inputs), y if layers else None)
            x, outputs = jax.lax.scan(step, x, (params, keys, rates))
            x = x[:, :num_output_tokens]
        else:
            outputs = []
            run = self._rematerialised(layer)
            for i, layer_params in enumerate(unstack(params, self.depth)):
                if i == self.depth - 1 and num_output_tokens is not None:
                    last = functools.partial(layer, num_output_tokens=num_output_tokens)
                    run = self._rematerialised(last)
                x = run(x, (layer_params, *jax.tree.map(lambda a, i=i: a[i], (keys, rates))))
                outputs.append(x)
        return x, tuple(outputs[i] for i in layers)

    def _rematerialised(self, layer: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        """Wraps the layer so that its backward pass recomputes what `remat` says."""
        # A scan writes all that it keeps to memory, so it does not keep what is cheap to compute.
        policy = REMAT_POLICIES["dots" if self.scan and self.remat == "none" else self.remat]
        if policy is None:
            return layer
        # Inside a scan nothing can be merged back by CSE, so the barrier is not needed.
        return jax.checkpoint(layer, policy=policy, prevent_cse=not self.scan)


def unstack(tree: Any, depth: int) -> list[Any]:
    """Splits a tree of [L, ...] arrays, or of `Layers`, into L trees of [...]."""
    leaves, structure = jax.tree.flatten(tree)
    parts = [leaf.each if isinstance(leaf, Layers) else _split(leaf) for leaf in leaves]
    return [jax.tree.unflatten(structure, [p[i] for p in parts]) for i in range(depth)]


def _split(x: jax.Array) -> tuple[jax.Array, ...]:
    """The layers by lax.split: its gradient is one concatenation, indexing's a sum of L arrays."""
    return tuple(jnp.squeeze(part, 0) for part in jax.lax.split(x, [1] * x.shape[0]))


class UnitShape(NamedTuple):
    """A unit of a convolutional network, and the feature maps before and after it."""

    kernel_size: int
    stride: int
    inputs: int  # channels
    hidden: int
    outputs: int
    size_in: tuple[int, int]
    size_out: tuple[int, int]

    @property
    def adds(self) -> bool:
        """Whether the output has the input's shape, so that they can be added as they are."""
        return self.stride == 1 and self.inputs == self.outputs


def unit_input_bytes(shapes: Iterable[UnitShape]) -> int:
    """Bytes of one image in bfloat16 that enter the units: the least that is kept."""
    return 2 * sum(shape.inputs * math.prod(shape.size_in) for shape in shapes)


class Stage(nnx.Module):
    """The units of a stage: the first changes the feature map's shape, the rest are equal.

    Args:
      make_unit: called as make_unit(shape, rngs=...).
      shapes: of its units.
      drop_rate: a unit's number, from 0 -> its rate of stochastic depth.
    """

    def __init__(
        self,
        make_unit: Callable[..., nnx.Module],
        shapes: Sequence[UnitShape],
        spec: StackSpec,
        *,
        drop_rate: Callable[[int], float],
        rngs: nnx.Rngs,
    ):
        def stack(start: int, stop: int) -> Stack:
            return Stack(
                functools.partial(make_unit, shapes[start]),
                dataclasses.replace(spec, scan=spec.scan and stop - start > 1),
                depth=stop - start,
                first_depth=drop_rate(start),
                stochastic_depth=drop_rate(stop - 1),
                rngs=rngs,
            )

        self.units = len(shapes)
        self.first = stack(0, 1)
        if self.units > 1:
            self.rest = stack(1, self.units)

    def __call__(
        self, x: jax.Array, key: jax.Array | None, shared: Any, keep: bool
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """[B, H, W, I] -> ([B, H', W', O], with `keep` the feature maps after all units)."""
        keys = (None, None) if key is None else jax.random.split(key)
        x, _ = self.first(x, keys[0], shared=shared)
        if self.units == 1:
            return x, (x,)
        y, others = self.rest(x, keys[1], tuple(range(self.units - 1)) if keep else (), shared)
        return y, (x, *others)


def add_stages(
    network: nnx.Module,
    make_unit: Callable[..., nnx.Module],
    spec: Any,
    image_size: tuple[int, int],
    *,
    drop_rate: Callable[[int], float] = lambda unit: 0.0,
    rngs: nnx.Rngs,
) -> None:
    """Gives a network its stages, as `stage1`, `stage2` and so on.

    Args:
      network: is changed.
      make_unit: as in Stage.
      spec: has `units`, the number of units of each stage, and `each_unit`, their shapes.
      image_size: (height, width) in pixels.
      drop_rate: a unit's number in the network, from 0 -> its rate of stochastic depth.
      rngs: nnx.Rngs with a stream for "params".
    """
    shapes, start = list(spec.each_unit(image_size)), 0
    for number, units in enumerate(spec.units, 1):
        rate = lambda i, start=start: drop_rate(start + i)
        part = shapes[start : start + units]
        setattr(network, f"stage{number}", Stage(make_unit, part, spec, drop_rate=rate, rngs=rngs))
        start += units


def run_stages(
    network: Any,
    x: jax.Array,
    key: jax.Array | None = None,
    layers: tuple[int, ...] = (),
    shared: Any = None,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """[B, H, W, I] -> ([B, h, w, C], feature maps after the units `layers`, from 0).

    key, shared: as in Stack.
    """
    number = len(network.spec.units)
    keys = [None] * number if key is None else jax.random.split(key, number)
    all_maps: list[jax.Array] = []
    for i, own_key in enumerate(keys, 1):
        x, maps = getattr(network, f"stage{i}")(x, own_key, shared, bool(layers))
        all_maps += maps
    return x, tuple(all_maps[i] for i in layers)
