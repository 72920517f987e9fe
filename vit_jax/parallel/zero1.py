"""Parameters that are divided over devices between steps, and whole in them (ZeRO stage 1).

With `mesh.shard_optimizer` each device along `data` holds its part of parameters, their average and
the optimizer's arrays (arXiv 1910.02054, section 5.1). A step begins by gathering the parameters;
of the gradients each device then takes its part, and updates what it holds. The compiler's
estimates of that are in docs/benchmarks.md.
"""

import functools
from typing import Any

import jax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import NamedSharding

from vit_jax.core import axes, pytrees


def gather(params: Any, between_steps: Any, in_step: Any) -> Any:
    """The parameters of a step, in their own dtype; those that are not divided as they are.

    Args:
      params: of the state.
      between_steps: jax.ShapeDtypeStruct of each, nested likewise, with its sharding in the state.
      in_step: the same with its sharding in a step, and the dtype that its product takes: that is
        what devices send.
    """
    return jax.tree.map(_gather, params, between_steps, in_step, divided(between_steps, in_step))


def divided(between_steps: Any, in_step: Any) -> Any:
    """Whether devices hold less of an array than they compute with, for each; see `gather`."""
    return jax.tree.map(
        lambda a, b: not a.sharding.is_equivalent_to(b.sharding, len(a.shape)),
        between_steps,
        in_step,
    )


def _gather(
    x: jax.Array,
    between_steps: jax.ShapeDtypeStruct,
    in_step: jax.ShapeDtypeStruct,
    is_divided: bool,
) -> jax.Array:
    if not is_divided:
        return x
    part = jax.lax.with_sharding_constraint(x.astype(in_step.dtype), between_steps.sharding)
    part = jax.lax.optimization_barrier(part)  # else XLA gathers float32, and then converts
    return jax.lax.with_sharding_constraint(part, in_step.sharding).astype(x.dtype)


def pin_kernel_layouts(params: Any, between_steps: Any, in_step: Any, gradients: Any) -> Any:
    """Pins the layout of kernels with several axes, and of their gradients, in a TPU's memory.

    Their longest axis is contiguous, as in arrays that are not divided. By itself XLA would keep
    them in the order of a device's part, in which their products take twice as long.
    """
    if axes.target().platform != "tpu":
        return params

    def pin(name: str, x: jax.Array, is_divided: bool, to: Any, grad: Any) -> jax.Array:
        if not is_divided or x.ndim < 3 or pytrees.is_stacked(name):
            return x
        return _ordered(x, (to.sharding, to.dtype, grad.dtype))

    return pytrees.map_named(pin, params, divided(between_steps, in_step), in_step, gradients)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _ordered(x: jax.Array, to: tuple[NamedSharding, Any, Any]) -> jax.Array:
    sharding, dtype, _ = to
    return _pinned(x.astype(dtype), sharding).astype(x.dtype)


def _pinned(x: jax.Array, sharding: NamedSharding) -> jax.Array:
    longest = max(range(x.ndim), key=lambda i: x.shape[i])
    order = Layout(major_to_minor=(*(i for i in range(x.ndim) if i != longest), longest))
    spec = sharding.spec
    return jax.shard_map(
        lambda x: with_layout_constraint(x, order), in_specs=spec, out_specs=spec, check_vma=False
    )(x)


def _ordered_gradient(to: tuple[NamedSharding, Any, Any], _: None, dy: jax.Array) -> Any:
    sharding, _, dtype = to
    return (_pinned(dy.astype(dtype), sharding).astype(dy.dtype),)


_ordered.defvjp(lambda x, to: (_ordered(x, to), None), _ordered_gradient)
