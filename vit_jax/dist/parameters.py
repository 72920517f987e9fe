"""Where a model's parameters live: by the logical names that their axes have."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh

from vit_jax.core import axes, pytrees
from vit_jax.dist import mesh as meshes


def shardings(variables: nnx.State, mesh: Mesh, rules: axes.Rules = meshes.RULES) -> Any:
    """Of each parameter; a plain nested dictionary."""
    place = lambda v: meshes.sharding(mesh, _names(v), v.shape, rules)
    return nnx.to_pure_dict(jax.tree.map(place, variables, is_leaf=_is_param))


def layout(variables: nnx.State, mesh: Mesh) -> Any:
    """Shapes, dtypes and shardings of the parameters; a plain nested dictionary."""
    place = lambda v, s: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=s)
    return jax.tree.map(place, nnx.to_pure_dict(variables), shardings(variables, mesh))


def undivided(variables: nnx.State, mesh: Mesh, rules: axes.Rules) -> dict[str, str]:
    """What stays whole against the rules, since it does not divide, by the parameter's name."""
    say = lambda v: ", ".join(axes.undivided(_names(v), v.shape, rules, mesh.shape))
    said = jax.tree.map(say, variables, is_leaf=_is_param)
    return {name: text for name, text in pytrees.flatten(nnx.to_pure_dict(said)).items() if text}


def _names(variable: nnx.Param) -> tuple[str | None, ...]:
    return variable.get_metadata()["axes"]


def _is_param(x: Any) -> bool:
    return isinstance(x, nnx.Param)
