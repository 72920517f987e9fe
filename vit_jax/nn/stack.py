"""Equal blocks one after the other: one stacked parameter tree, run by a scan or unrolled.

The parameters of all L blocks are in one tree with a leading axis L, however they are run, so
checkpoints, optimizers and results do not depend on that choice.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from vit_jax.core.axes import LAYERS, target
from vit_jax.core.pytrees import Layers
from vit_jax.nn.block_spec import StackSpec
from vit_jax.nn.kernels.saved import MIXED, PROJECTED, STATISTICS, WEIGHTS
from vit_jax.nn.linear import Linear

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


# One of REMATS (block_spec.py) -> what is kept for the backward pass; the rest of a block is
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
        results: int | None = None,
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """[B, N, D] -> ([B, N, D] after the last block, the same after blocks `layers`, from 0).

        Any other shape that the blocks keep, such as a feature map's, works too. With `shared`
        every block is called as block(x, key, drop_rate, shared).

        results: only the first tokens after the last block are wanted, so many: that block is told
          (`results=`), unless a loop runs it, in which all are alike.
        """
        graph, params = nnx.split(self.block)
        converts = self.scan and self.converts and target().platform == "tpu"
        structure = jax.tree.structure(params)
        also = () if shared is None else (shared,)

        def layer(x: jax.Array, each: Any, results: int | None) -> jax.Array:
            params, key, rate = each
            last = {} if results is None else {"results": results}
            if converts:
                params = jax.tree.unflatten(structure, _joined(params))
            block = nnx.merge(graph, params)
            return block(checkpoint_name(x, BLOCK_INPUT), key, rate, *also, **last)

        # A scan writes all that it keeps to memory, so it does not keep what is cheap to compute.
        remat = "dots" if self.scan and self.remat == "none" else self.remat
        policy = REMAT_POLICIES[remat]
        if policy is not None:
            # Inside a scan nothing can be merged back by CSE, so the barrier is not needed.
            layer = jax.checkpoint(
                layer, policy=policy, prevent_cse=not self.scan, static_argnums=(2,)
            )

        # None rather than zeros: then no random bits are drawn.
        rate = self.stochastic_depth
        rates = jnp.linspace(self.first_depth, rate, self.depth) if rate else None
        keys = None if key is None else jax.random.split(key, self.depth)

        outputs: Any
        if self.scan:
            step = lambda x, e: (y := layer(x, e, None), y if layers else None)
            apart: Any = self._with_gradients_apart(params) if converts else params
            x, outputs = jax.lax.scan(step, x, (apart, keys, rates))
            x = x[:, :results]
        else:
            outputs = []
            each_alone = unstack(params, self.depth, converted=self.converts)
            for i, one in enumerate(each_alone):
                own = jax.tree.map(lambda a, i=i: a[i], (keys, rates))
                x = layer(x, (one, *own), results if i == self.depth - 1 else None)
                outputs.append(x)
        return x, tuple(outputs[i] for i in layers)

    def _with_gradients_apart(self, params: Any) -> list[tuple[jax.Array, jax.Array | None]]:
        """Each stack [L, ...], and a place for its gradient if that is not computed in float32.

        A loop would convert kernels' gradients to float32 before it stacks them, in twice the
        memory.
        """
        dtypes = {
            (*path, "kernel"): module.precision.kernel_gradient
            for path, module in nnx.iter_graph(self.block)
            if isinstance(module, Linear)
        }

        def apart(path: Any, stack: jax.Array) -> tuple[jax.Array, jax.Array | None]:
            dtype = dtypes.get(path, stack.dtype)
            if dtype == stack.dtype:
                return stack, None
            return jax.lax.stop_gradient(stack), _place(stack, dtype)

        paths = (path for path, _ in nnx.to_flat_state(params))
        return list(map(apart, paths, jax.tree.leaves(params)))


def _joined(params: list[tuple[jax.Array, jax.Array | None]]) -> list[jax.Array]:
    """The parameters of one block from its part of what `_with_gradients_apart` gave.

    XLA would convert whole stacks before the loop, in a pass of its own over all parameters, and
    keep them. It does not if there is a product in float32 before the conversion, here by a 1 that
    it cannot see; then it fuses slice, product and conversion into what reads them.
    """
    one = jax.lax.optimization_barrier(jnp.float32(1))
    params = [(x * one if x.ndim > 1 else x, place) for x, place in params]
    return [x if place is None else _with_gradient_in(x, place) for x, place in params]


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _place(x: jax.Array, dtype: Any) -> jax.Array:
    """Zeros like x that are never read; their gradient, of `dtype`, becomes that of x."""
    return jnp.zeros(x.shape, dtype)


_place.defvjp(lambda x, dtype: (_place(x, dtype), None), lambda _, __, d: (d.astype(jnp.float32),))


@jax.custom_vjp
def _with_gradient_in(x: jax.Array, place: jax.Array) -> jax.Array:
    """x; its gradient, which numbers of the dtype of `place` hold, becomes that of `place`."""
    return x


_with_gradient_in.defvjp(
    lambda x, place: (x, jnp.zeros((), place.dtype)),
    lambda like, d: (None, d.astype(like.dtype)),
)


def unstack(tree: Any, depth: int, *, converted: bool) -> list[Any]:
    """A tree of [L, ...] arrays as L trees of [...].

    If layers are converted to another dtype one by one, XLA would merge the conversions into one
    and keep its result through both passes. So `converted` layers are cut out by indices that it
    cannot see through: then it fuses conversions into the products. Others are read in place, by
    constant indices. What is `Layers` already is left as it is.
    """
    leaves, structure = jax.tree.flatten(tree)
    cut = _cut_out if converted else _split
    parts = [leaf.each if isinstance(leaf, Layers) else cut(leaf) for leaf in leaves]
    return [jax.tree.unflatten(structure, [p[i] for p in parts]) for i in range(depth)]


def _split(x: jax.Array) -> tuple[jax.Array, ...]:
    """The layers by lax.split: its gradient is one concatenation, indexing's a sum of L arrays."""
    return tuple(jnp.squeeze(part, 0) for part in jax.lax.split(x, [1] * x.shape[0]))


@jax.custom_vjp
def _cut_out(x: jax.Array) -> tuple[jax.Array, ...]:
    indices = jax.lax.optimization_barrier(tuple(jnp.int32(i) for i in range(x.shape[0])))
    return tuple(jax.lax.dynamic_index_in_dim(x, i, keepdims=False) for i in indices)


_cut_out.defvjp(lambda x: (_cut_out(x), None), lambda _, dy: (jnp.stack(dy),))
