"""Shardings of a model's parameters, by the logical names of their axes."""

from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh

from vit_jax.core import axes
from vit_jax.parallel import mesh as meshes


def shardings(variables: nnx.State, mesh: Mesh, rules: axes.Rules = meshes.RULES) -> Any:
    """Shardings of the parameters, as a plain nested dictionary."""
    place = lambda v: meshes.sharding(mesh, _names(v), v.shape, rules)
    return nnx.to_pure_dict(jax.tree.map(place, variables, is_leaf=_is_param))


def layout(variables: nnx.State, mesh: Mesh) -> Any:
    """Shapes, dtypes and shardings of the parameters, as a plain nested dictionary."""
    place = lambda v, s: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=s)
    return jax.tree.map(place, nnx.to_pure_dict(variables), shardings(variables, mesh))


def unsharded(
    variables: nnx.State, mesh: Mesh, rules: axes.Rules
) -> dict[axes.UnshardedAxis, list[str]]:
    """Axes that are sharded less than the rules say, with the parameters that have them."""
    causes: dict[axes.UnshardedAxis, list[str]] = {}
    for path, variable in nnx.to_flat_state(variables):
        for cause in axes.unsharded(_names(variable), variable.shape, rules, mesh.shape):
            causes.setdefault(cause, []).append("/".join(map(str, path)))
    return causes


def _names(variable: nnx.Param) -> tuple[str | None, ...]:
    return variable.get_metadata()["axes"]


def _is_param(x: Any) -> bool:
    return isinstance(x, nnx.Param)
