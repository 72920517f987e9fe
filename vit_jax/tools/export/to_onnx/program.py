"""Walks through a JAX program and writes an ONNX node for each operation on what is not constant.

What depends on constants alone, such as a standardised kernel or a resized position embedding, is
computed here; loops are unrolled.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend import core

from vit_jax.core.errors import UserError
from vit_jax.tools.export.to_onnx.graph import Graph, Value, constant
from vit_jax.tools.export.to_onnx.operators import OPERATORS, concatenate, cut, same
from vit_jax.tools.export.to_onnx.products import PRODUCTS

TABLE = OPERATORS | PRODUCTS
# Of primitives that JAX has no public name for.
BY_NAME = {"name": same, "sharding_constraint": same, "stop_gradient": same}
# Calls of a program within the program, by the parameter that holds it.
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}


def write(graph: Graph, program: Any, arguments: Sequence[Value]) -> list[Value]:
    """Adds the nodes of a (closed) program; its results.

    Raises UserError for a primitive that has no translation.
    """
    consts: Sequence[Any] = ()
    if hasattr(program, "jaxpr"):
        program, consts = program.jaxpr, program.consts
    known: dict[Any, Value] = {}
    known.update(zip(program.constvars, map(constant, consts), strict=True))
    known.update(zip(program.invars, arguments, strict=True))
    read = lambda v: constant(v.val) if isinstance(v, core.Literal) else known[v]
    for equation in program.eqns:
        results = _results(graph, equation, [read(v) for v in equation.invars])
        known.update(zip(equation.outvars, results, strict=True))
    return [read(v) for v in program.outvars]


def _results(graph: Graph, equation: Any, operands: list[Value]) -> Sequence[Value]:
    name, params = equation.primitive.name, equation.params
    if name in CALLS:
        return write(graph, params[CALLS[name]], operands)
    if name == "scan":
        return _loop(graph, params, operands)
    folded = _folded(equation, operands)
    if folded is not None:
        return folded
    translate = TABLE.get(equation.primitive) or BY_NAME.get(name)
    if translate is None:
        raise UserError(
            f"ONNX: {name}, an operation of this model, has no translation "
            "(vit_jax/tools/export/to_onnx/operators.py has those there are): export to stablehlo."
        )
    results = translate(graph, params, *operands)
    return results if isinstance(results, list) else [results]


def _folded(equation: Any, operands: list[Value]) -> list[Value] | None:
    """The results of an operation on constants; None if there are others.

    Integers of 8 bits stay as they are, which is what they are for.
    """
    arrays = [operand.whole for operand in operands]
    static = all(isinstance(s, int) for v in equation.outvars for s in v.aval.shape)
    widens = equation.primitive.name == "convert_element_type" and operands[0].dtype == np.int8
    if not static or widens or any(array is None for array in arrays):
        return None
    results = equation.primitive.bind(*arrays, **equation.params)
    several = equation.primitive.multiple_results
    return [constant(np.asarray(x)) for x in (results if several else [results])]


def _loop(graph: Graph, params: dict[str, Any], operands: list[Value]) -> list[Value]:
    """The rounds of a loop, one after the other."""
    shared, carry, each = _parts_of_loop(params, operands)
    rounds = range(params["length"])
    outputs: dict[int, list[Value]] = {}
    for i in reversed(rounds) if params["reverse"] else rounds:
        own = [_row(graph, x, i) for x in each]
        results = write(graph, params["jaxpr"], [*shared, *carry, *own])
        carry, outputs[i] = results[: len(carry)], results[len(carry) :]
    stacks = [
        _stacked(graph, [outputs[i][k] for i in rounds])
        for k in range(len(outputs[0]) if outputs else 0)
    ]
    return [*carry, *stacks]


def _parts_of_loop(params: dict[str, Any], operands: list[Value]) -> list[list[Value]]:
    """What all rounds share, what goes from one to the next, and what has a row for each."""
    if "ft_in" in params:  # since JAX 0.12
        return [list(part) for part in params["ft_in"].update(operands).unpack()]
    first, last = params["num_consts"], params["num_consts"] + params["num_carry"]
    return [operands[:first], operands[first:last], operands[last:]]


def _row(graph: Graph, x: Value, i: int) -> Value:
    """x[i]."""
    whole = x.whole
    if whole is not None:
        return constant(whole[i])
    rest = x.shape[1:]
    starts, limits = (i, *(0 for _ in rest)), (i + 1, *rest)
    return graph.reshape(cut(graph, x, starts, limits, (1,) * len(limits)), rest)


def _stacked(graph: Graph, rows: list[Value]) -> Value:
    """Values along a new first axis."""
    wider = [graph.reshape(row, (1, *row.shape)) for row in rows]
    return wider[0] if len(wider) == 1 else concatenate(graph, {"dimension": 0}, *wider)
