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

from vit_jax.core.axes import LAYERS
from vit_jax.core.pytrees import Layers
from vit_jax.core.schema.fields import field
from vit_jax.models.layers import faster
from vit_jax.models.layers.kernels.xla import MIXED, PROJECTED, STATISTICS, WEIGHTS
from vit_jax.models.layers.linear import Numerics
from vit_jax.models.layers.regularization import split_key

OFFLOAD_MEMORY = "pinned_host"  # the JAX memory kind that `offload` needs
BLOCK_INPUT = "block_input"  # name of the tokens that enter a block, for policies
BLOCK = "block"  # and of those that leave it (models/activations.py)


def _dots(primitive: Any, *arguments: Any, **parameters: Any) -> bool:
    """Returns whether to keep a result: matrix products without batch axes, and convolutions."""
    product = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    return primitive is jax.lax.conv_general_dilated_p or bool(
        product(primitive, *arguments, **parameters)
    )


_ATTENTION = jax.checkpoint_policies.save_only_these_names(PROJECTED, WEIGHTS, MIXED, STATISTICS)


def _products(primitive: Any, *arguments: Any, **parameters: Any) -> bool:
    """Returns whether to keep a result: matrix products, and what attention's backward pass reads.

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
    """Fields of a stack of blocks: scanned (compiles one block), or unrolled (runs faster)."""

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


CallBlock = Callable[..., jax.Array]


def call_block(block: Any, x: jax.Array, key: jax.Array | None, drop_rate: Any) -> jax.Array:
    """A block's result."""
    return block(x, key, drop_rate)


class Stack(nnx.Module):
    """`depth` blocks made by `make_block(rngs=...)`.

    Args:
      make_block: its result is called as by `call_block`.
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
        self.run: Callable[..., Any] = Stack.scan if spec.scan else Stack.unroll
        # A scan writes all that it keeps to memory, so it does not keep what is cheap to compute.
        self.remat = "dots" if spec.scan and spec.remat == "none" else spec.remat
        self.converts = spec.precision.compute != jnp.float32

    def __call__(
        self,
        x: jax.Array,
        key: jax.Array | None = None,
        call: CallBlock = call_block,
        call_last: CallBlock | None = None,
    ) -> jax.Array:
        """[B, N, D] -> [B, N, D] after the last block.

        Any other shape that the blocks keep, such as a feature map's, works too.

        key: for dropout and stochastic depth; None in evaluation. call: computes a block, call_last
        the last one, unless a loop runs it, in which all are alike.
        """
        return self.run(self, x, key, call, call_last or call, keep=False)[0]

    def outputs(
        self, x: jax.Array, key: Any = None, call: CallBlock = call_block, call_last: Any = None
    ) -> Sequence[jax.Array]:
        """[B, N, D] -> the same after each block."""
        return self.run(self, x, key, call, call, keep=True)[1]

    def unroll(
        self, x: jax.Array, key: Any, call: CallBlock, call_last: CallBlock, *, keep: bool
    ) -> tuple[jax.Array, list[jax.Array]]:
        """[B, N, D] -> (after the last block, after each), block by block in the program."""
        graph, params = nnx.split(self.block)
        run, run_last = (self._rematerialised(_layer(graph, c), True) for c in (call, call_last))
        randoms, outputs = self._randoms(key), []
        layers = zip(
            [run] * (self.depth - 1) + [run_last], unstack(params, self.depth), strict=True
        )
        for i, (run, layer_params) in enumerate(layers):
            x = run(x, (layer_params, *jax.tree.map(lambda a, i=i: a[i], randoms)))
            outputs.append(x)
        return x, outputs

    def scan(
        self, x: jax.Array, key: Any, call: CallBlock, call_last: CallBlock, *, keep: bool
    ) -> tuple[jax.Array, Any]:
        """[B, N, D] -> (after the last block, with `keep` after each, [L, B, N, D]), in a loop."""
        graph, params = nnx.split(self.block)
        read: Callable[[Any], Any] = _as_stored
        if self.converts:
            convert = faster.replacing("scanned_parameters", lambda params: (params, read))
            params, read = convert(params)
        # Inside a scan nothing can be merged back by CSE, so the barrier is not needed.
        run = self._rematerialised(_layer(graph, call, read), False)

        def step(x: jax.Array, inputs: Any) -> tuple[jax.Array, Any]:
            y = run(x, inputs)
            return y, y if keep else None

        return jax.lax.scan(step, x, (params, *self._randoms(key)))

    def _randoms(self, key: jax.Array | None) -> tuple[Any, Any]:
        """Keys and drop rates of all blocks; None rather than zeros, to draw no random bits."""
        rate = self.stochastic_depth
        rates = jnp.linspace(self.first_depth, rate, self.depth) if rate else None
        return jax.tree.map(lambda k: jax.random.split(k, self.depth), key), rates

    def _rematerialised(
        self, layer: Callable[..., jax.Array], prevent_cse: bool
    ) -> Callable[..., jax.Array]:
        """Wraps the layer so that its backward pass recomputes what `remat` says."""
        policy = REMAT_POLICIES[self.remat]
        if policy is None:
            return layer
        return jax.checkpoint(layer, policy=policy, prevent_cse=prevent_cse)


def _as_stored(params: Any) -> Any:
    return params


def _layer(
    graph: Any, call: CallBlock, read: Callable[[Any], Any] = _as_stored
) -> Callable[[jax.Array, Any], jax.Array]:
    """A block as a function of its input and of (its parameters, key, drop rate)."""

    def layer(x: jax.Array, inputs: Any) -> jax.Array:
        params, key, rate = inputs
        block = nnx.merge(graph, read(params))
        return checkpoint_name(call(block, checkpoint_name(x, BLOCK_INPUT), key, rate), BLOCK)

    return layer


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
    """The units of a stage: the first changes the feature map's shape, the rest are equal."""

    def __init__(
        self,
        make_unit: Callable[..., nnx.Module],
        shapes: Sequence[UnitShape],
        spec: StackSpec,
        *,
        drop_rates: Sequence[float],
        rngs: nnx.Rngs,
    ):
        def stack(start: int, stop: int) -> Stack:
            return Stack(
                functools.partial(make_unit, shapes[start]),
                dataclasses.replace(spec, scan=spec.scan and stop - start > 1),
                depth=stop - start,
                first_depth=drop_rates[start],
                stochastic_depth=drop_rates[stop - 1],
                rngs=rngs,
            )

        self.units = len(shapes)
        self.first = stack(0, 1)
        if self.units > 1:
            self.rest = stack(1, self.units)

    def __call__(
        self, x: jax.Array, key: jax.Array | None, call: CallBlock, keep: bool
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """[B, H, W, I] -> ([B, H', W', O], with `keep` the feature maps after all units)."""
        first_key, rest_key = split_key(key, 2)
        x = self.first(x, first_key, call)
        if self.units == 1:
            return x, (x,)
        if not keep:
            return self.rest(x, rest_key, call), ()
        others = self.rest.outputs(x, rest_key, call)
        return others[-1], (x, *others)


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
      spec: has `units`, the number of units of each stage, and `each_unit`, their shapes.
      drop_rate: a unit's number in the network, from 0 -> its rate of stochastic depth.
    """
    shapes, start = list(spec.each_unit(image_size)), 0
    rates = [drop_rate(i) for i in range(len(shapes))]
    for number, units in enumerate(spec.units, 1):
        part = slice(start, start + units)
        stage = Stage(make_unit, shapes[part], spec, drop_rates=rates[part], rngs=rngs)
        setattr(network, f"stage{number}", stage)
        start += units


def run_stages(
    network: Any,
    x: jax.Array,
    key: jax.Array | None = None,
    layers: tuple[int, ...] = (),
    call: CallBlock = call_block,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """[B, H, W, I] -> ([B, h, w, C], feature maps after the units `layers`, from 0)."""
    all_maps: list[jax.Array] = []
    for i, stage_key in enumerate(split_key(key, len(network.spec.units)), 1):
        x, maps = getattr(network, f"stage{i}")(x, stage_key, call, bool(layers))
        all_maps += maps
    return x, tuple(all_maps[i] for i in layers)
