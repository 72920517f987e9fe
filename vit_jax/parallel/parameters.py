"""Where a model's parameters live: by the logical names that their axes have."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh

from vit_jax.core import axes
from vit_jax.parallel import mesh as meshes


def shardings(variables: nnx.State, mesh: Mesh, rules: axes.Rules = meshes.RULES) -> Any:
    """Of each parameter; a plain nested dictionary."""
    place = lambda v: meshes.sharding(mesh, _names(v), v.shape, rules)
    return nnx.to_pure_dict(jax.tree.map(place, variables, is_leaf=_is_param))


def layout(variables: nnx.State, mesh: Mesh) -> Any:
    """Shapes, dtypes and shardings of the parameters; a plain nested dictionary."""
    place = lambda v, s: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=s)
    return jax.tree.map(place, nnx.to_pure_dict(variables), shardings(variables, mesh))


def undivided(
    variables: nnx.State, mesh: Mesh, rules: axes.Rules
) -> dict[axes.Undivided, list[str]]:
    """What is divided less than the rules say, and the names of the parameters of which it is."""
    causes: dict[axes.Undivided, list[str]] = {}
    for path, variable in nnx.to_flat_state(variables):
        for cause in axes.undivided(_names(variable), variable.shape, rules, mesh.shape):
            causes.setdefault(cause, []).append("/".join(map(str, path)))
    return causes


def _names(variable: nnx.Param) -> tuple[str | None, ...]:
    return variable.get_metadata()["axes"]


def _is_param(x: Any) -> bool:
    return isinstance(x, nnx.Param)
