"""Activations by name: values that layers tag in the program of the forward pass, as outputs."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx

from vit_jax.core.errors import UserError, nearest
from vit_jax.models.layers.kernels.xla import MIXED, PROJECTED, STATISTICS, WEIGHTS
from vit_jax.models.layers.stack import BLOCK, BLOCK_INPUT, Stack

FOR_REMAT = frozenset((BLOCK_INPUT, PROJECTED, WEIGHTS, MIXED, STATISTICS))


def activations(model: Any, images: jax.Array, names: Sequence[str]) -> dict[str, jax.Array]:
    """Normalised images [B, H, W, 3] -> these activations of the evaluation, of all tokens.

    Names, from 0: `blocks/3` after a block of a ViT or a unit of a ConvNet, [B, N, D] or
    [B, h, w, C]; `blocks/3/attention` and `blocks/3/mlp`, what is added in it, before LayerScale;
    in an Axial-ViT attentions count one by one. Of ViTs `patches`, `embed` with positions and
    learned tokens, and `norm`. `features` [B, D], `logits` [B, C]. UserError for another one.
    """
    return _run(*nnx.split(model), tuple(names), images)


def names(model: Any, images: jax.Array) -> list[str]:
    """The names that a model has; images by their shape."""
    graph, state = nnx.split(model)
    return list(_tagged(jax.make_jaxpr(functools.partial(_forward, graph))(state, images).jaxpr))


@functools.partial(jax.jit, static_argnums=(0, 2))
def _run(graph: Any, state: Any, names: tuple[str, ...], images: jax.Array) -> dict[str, jax.Array]:
    program = jax.make_jaxpr(functools.partial(_forward, graph))(state, images)
    tagged = _tagged(program.jaxpr)
    for name in names:
        if name not in tagged:
            raise UserError(f"The model has no activation {name!r}. {nearest(name, tagged)}")
    info = program.jaxpr.debug_info._replace(result_paths=names)
    jaxpr = program.jaxpr.replace(outvars=[tagged[name] for name in names], debug_info=info)
    values = jax.core.eval_jaxpr(jaxpr, program.consts, *jax.tree.leaves((state, images)))
    return dict(zip(names, values, strict=True))


def _forward(graph: Any, state: Any, images: jax.Array) -> jax.Array:
    """The logits, block by block in the program, with all tokens of the last one."""
    model = nnx.merge(graph, state)
    for _, node in nnx.iter_graph(model):
        if isinstance(node, Stack):
            node.run, node.remat = Stack.unroll, "none"
    return model.of_all_tokens(images)


def _tagged(jaxpr: Any) -> dict[str, Any]:
    """The variables of tagged values by name; those of blocks are numbered in order."""
    found: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for equation in jaxpr.eqns:
        if equation.primitive.name == "name":
            name = equation.params["name"]
            number = counts[name] = counts.get(name, -1) + 1
            block, slash, part = name.partition("/")
            name = f"blocks/{number}{slash}{part}" if block == BLOCK else name
            found[name] = equation.outvars[0]
    return {name: variable for name, variable in found.items() if name not in FOR_REMAT}
