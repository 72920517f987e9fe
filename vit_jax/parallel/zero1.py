"""Parameters that are divided over devices between steps, and whole in them (ZeRO stage 1).

With `mesh.shard_optimizer` each device along `data` holds its part of parameters, their average and
the optimizer's arrays (arXiv 1910.02054, section 5.1). A step begins by gathering the parameters;
of the gradients each device then takes its part, and updates what it holds.
"""

from typing import Any

import jax


def gather(params: Any, held: Any, computed: Any) -> Any:
    """The parameters of a step, in their own dtype; those that are not divided as they are.

    Args:
      params: of the state.
      held: jax.ShapeDtypeStruct of each, nested likewise, with its sharding in the state.
      computed: the same with its sharding in a step, and the dtype that its product takes: that is
        what devices send.
    """
    return jax.tree.map(_gather, params, held, computed, divided(held, computed))


def divided(held: Any, computed: Any) -> Any:
    """Whether devices hold less of an array than they compute with, for each; see `gather`."""
    equal = lambda a, b: a.sharding.is_equivalent_to(b.sharding, len(a.shape))
    return jax.tree.map(lambda a, b: not equal(a, b), held, computed)


def _gather(
    x: jax.Array,
    held: jax.ShapeDtypeStruct,
    computed: jax.ShapeDtypeStruct,
    is_divided: bool,
) -> jax.Array:
    if not is_divided:
        return x
    part = jax.lax.with_sharding_constraint(x.astype(computed.dtype), held.sharding)
    part = jax.lax.optimization_barrier(part)  # else XLA gathers float32, and then converts
    return jax.lax.with_sharding_constraint(part, computed.sharding).astype(x.dtype)
