"""Histograms of gradients and activations, counted on the devices.

They are a separate function, compiled apart from the step and called with the same state and batch:
the step's program is unaffected, and without histograms nothing is compiled.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.core import axes, pytrees
from vit_jax.core.pytrees import STACKED, is_stacked, layer_name
from vit_jax.learning.losses import Batch, Objective
from vit_jax.learning.state import StateLayout, TrainState
from vit_jax.learning.step import examples, make_loss_and_grads
from vit_jax.parallel import mesh as meshes

# Bins are the same for all arrays and steps: logarithmic in absolute value, on both sides of zero.
# Larger values count in the outermost ones, smaller values in the one around zero.
DECADES = (-10, 4)
BINS_PER_DECADE = 5
SIDE = (DECADES[1] - DECADES[0]) * BINS_PER_DECADE  # bins on one side of zero
SIZES = 10.0 ** (DECADES[0] + np.arange(SIDE + 1) / BINS_PER_DECADE)
EDGES = np.concatenate([-SIZES[::-1], SIZES])


class Histogram(NamedTuple):
    """The number of values between neighbouring edges."""

    counts: np.ndarray  # int [K]
    edges: np.ndarray  # float64 [K + 1], ascending


class Distributions(NamedTuple):
    """Statistics of one step by name; names begin with "gradients" or "activations"."""

    # Norms of gradients; root mean square, mean, standard deviation and largest absolute value of
    # activations. float32 [].
    scalars: dict[str, Any]
    counts: dict[str, Any]  # int32 [K] over EDGES; NaNs are not counted


def make_distributions(
    layout: StateLayout, objective: Objective, seed: int
) -> Callable[..., Distributions]:
    """Returns distributions(state, batch, *layout.teacher_params) for the next update.

    It is compiled when it is first called.

    The gradients are the update's own, before clipping, for each parameter, and for each layer if
    layers are stacked. The activations are the outputs of the blocks for the same images, without
    dropout, in the first of the `optim.grad_accum_steps` microbatches.
    """
    loss_and_grads = make_loss_and_grads(layout, objective, seed)

    def distributions(state: TrainState, batch: Batch, *teacher_params: Any) -> Distributions:
        grads = pytrees.without_statistics(loss_and_grads(state, batch, *teacher_params).grads)
        grads = pytrees.flatten({"gradients": grads})
        images, _, _ = examples(batch, objective, seed=seed, done=state.step)
        model = nnx.merge(layout.graph, state.params)
        layers = tuple(range(model.spec.depth))
        tokens = model.tokens(images[:: objective.grad_accum_steps], layers=layers)
        if len({x.shape for x in tokens}) == 1:
            outputs = {f"activations/blocks/{STACKED}": jnp.stack(tokens)}
        else:  # in a ResNet
            outputs = {f"activations/blocks/{i}": x for i, x in enumerate(tokens)}
        outputs = {name: x.astype(jnp.float32) for name, x in outputs.items()}
        statistics = pytrees.flatten(_each(_statistics, outputs))
        return Distributions(
            scalars=_norms(_each(lambda x: jnp.sum(jnp.square(x)), grads)) | statistics,
            counts=_each(count, grads | outputs),
        )

    jitted = jax.jit(distributions, out_shardings=meshes.replicated(layout.mesh))

    def on_mesh(state: TrainState, batch: Batch, *teacher_params: Any) -> Distributions:
        with jax.set_mesh(layout.mesh), axes.use_rules(meshes.RULES):
            return jitted(state, batch, *teacher_params)

    return on_mesh


def count(x: jax.Array) -> jax.Array:
    """Any shape -> int32 [K]: the number of values in each bin of EDGES."""
    place = (jnp.log10(jnp.abs(x)) - DECADES[0]) * BINS_PER_DECADE
    place = 1 + jnp.clip(jnp.floor(place), -1, SIDE - 1).astype(jnp.int32)  # 0: around zero
    place = jnp.where(x < 0, SIDE - place, SIDE + place)
    place = jnp.where(jnp.isnan(x), 2 * SIDE + 1, place)
    return jnp.bincount(place.ravel(), length=2 * SIDE + 2)[:-1]


def histogram(counts: np.ndarray) -> Histogram:
    """A histogram without empty bins at both ends; all-zero counts keep the bin around zero."""
    filled = np.flatnonzero(counts)
    first, last = (filled[0], filled[-1]) if len(filled) else (SIDE, SIDE)
    return Histogram(np.asarray(counts[first : last + 1]), EDGES[first : last + 2])


def _each(function: Callable[[jax.Array], Any], arrays: dict[str, jax.Array]) -> dict[str, Any]:
    """The function's values by name; a stacked array gives one per layer, by the layers' names."""
    values: dict[str, Any] = {}
    for name, x in arrays.items():
        if is_stacked(name):
            # A sequential map, compiled once: deep models compile no more slowly.
            stacked = jax.lax.map(function, x)
            for i in range(x.shape[0]):
                values[layer_name(name, i)] = jax.tree.map(lambda value, i=i: value[i], stacked)
        else:
            values[name] = function(x)
    return values


def _norms(squares: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Norms of each layer, "gradients/blocks/3/norm", and of each part outside the layers."""
    totals: dict[str, jax.Array] = {}
    for name, square in squares.items():
        parts = name.split("/")
        layer = next((i for i, part in enumerate(parts) if part.isdigit()), 1)
        part = "/".join(parts[: layer + 1])
        totals[part] = totals.get(part, jnp.zeros(())) + square
    return {f"{part}/norm": jnp.sqrt(total) for part, total in totals.items()}


def _statistics(x: jax.Array) -> dict[str, jax.Array]:
    return {
        "rms": jnp.sqrt(jnp.mean(jnp.square(x))),
        "mean": jnp.mean(x),
        "std": jnp.std(x),
        "abs_max": jnp.max(jnp.abs(x)),
    }
