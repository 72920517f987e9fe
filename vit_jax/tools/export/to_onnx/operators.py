"""ONNX's operators for JAX's primitives that act on elements, axes and shapes.

Each function takes (graph, the primitive's parameters, its operands) and gives its results.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import lax

from vit_jax.core.errors import UserError
from vit_jax.tools.export.to_onnx.graph import Graph, Shape, Value, constant

Translation = Callable[..., Any]  # (Graph, dict, *Value) -> Value or list of Values


def _broadcast(*values: Value) -> tuple[Shape, Shape]:
    """(shape, stored) of the result of an operator on elements."""
    shape = max((value.shape for value in values), key=len)
    stored: Shape = ()
    for value in values:
        if len(value.stored) < len(stored) or not value.stored:
            continue
        own = stored or (1,) * len(value.stored)
        stored = tuple(a if b == 1 else b for a, b in zip(own, value.stored, strict=True))
    return shape, stored


def elements(operator: str, dtype: Any = None) -> Translation:
    """An operator on elements; its result has the first operand's dtype, or `dtype`."""

    def translate(graph: Graph, _: dict[str, Any], *values: Value) -> Value:
        shape, stored = _broadcast(*values)
        name = graph.node(operator, [graph.stored(value) for value in values])
        return Value(shape, np.dtype(dtype or values[0].dtype), stored, name)

    return translate


def _then(value: Value, name: str) -> Value:
    """The result of an operator on the elements of one value."""
    return Value(value.shape, value.dtype, value.stored, name)


def _number(graph: Graph, number: float, value: Value) -> str:
    return graph.named(np.array(number, value.dtype))


def same(_: Graph, __: dict[str, Any], *values: Value) -> list[Value]:
    """The operands themselves."""
    return list(values)


def rsqrt(graph: Graph, _: dict[str, Any], x: Value) -> Value:
    """1 / sqrt(x)."""
    return _then(x, graph.node("Reciprocal", [graph.node("Sqrt", [graph.stored(x)])]))


def erfc(graph: Graph, _: dict[str, Any], x: Value) -> Value:
    """1 - erf(x)."""
    erf = graph.node("Erf", [graph.stored(x)])
    return _then(x, graph.node("Sub", [_number(graph, 1, x), erf]))


def square(graph: Graph, _: dict[str, Any], x: Value) -> Value:
    """x * x."""
    return _then(x, graph.node("Mul", [graph.stored(x)] * 2))


def integer_pow(graph: Graph, params: dict[str, Any], x: Value) -> Value:
    """x ** y for a whole y."""
    name, y = graph.stored(x), params["y"]
    if y == 2:
        return square(graph, params, x)
    if y == 3:
        return _then(x, graph.node("Mul", [graph.node("Mul", [name, name]), name]))
    return _then(x, graph.node("Pow", [name, _number(graph, y, x)]))


def select(graph: Graph, _: dict[str, Any], which: Value, *cases: Value) -> Value:
    """One of two, by a boolean."""
    if which.dtype != np.bool_ or len(cases) != 2:
        raise UserError("ONNX: select_n of more than two is not written: export to stablehlo.")
    shape, stored = _broadcast(which, *cases)
    name = graph.node("Where", [graph.stored(value) for value in (which, *reversed(cases))])
    return Value(shape, cases[0].dtype, stored, name)


def convert(graph: Graph, params: dict[str, Any], x: Value) -> Value:
    """Another dtype."""
    dtype = np.dtype(params["new_dtype"])
    if dtype == x.dtype:
        return x
    return Value(x.shape, dtype, x.stored, graph.node("Cast", [graph.stored(x)], to=dtype))


def broadcast(graph: Graph, params: dict[str, Any], x: Value) -> Value:
    """More axes, of which only the old ones are stored."""
    shape, places = params["shape"], params["broadcast_dimensions"]
    if x.stored == ():
        return Value(shape, x.dtype, (), x.name, x.array)
    stored = [1] * len(shape)
    for place, size in zip(places, x.stored, strict=True):
        stored[place] = size
    alone = Value(x.stored, x.dtype, x.stored, x.name, x.array)
    there = graph.reshape(alone, tuple(stored))
    return Value(shape, x.dtype, there.stored, there.name, there.array)


def reshape(graph: Graph, params: dict[str, Any], x: Value) -> Value:
    """Another shape."""
    return graph.reshape(x, params["new_sizes"])


def squeeze(graph: Graph, params: dict[str, Any], x: Value) -> Value:
    """Without axes of 1."""
    kept = [i for i in range(len(x.shape)) if i not in params["dimensions"]]
    return graph.reshape(x, tuple(x.shape[i] for i in kept))


def expand_dims(graph: Graph, params: dict[str, Any], x: Value) -> Value:
    """With axes of 1 more."""
    sizes = iter(x.shape)
    rank = len(x.shape) + len(params["dimensions"])
    shape = tuple(1 if i in params["dimensions"] else next(sizes) for i in range(rank))
    return graph.reshape(x, shape)


def transpose(graph: Graph, params: dict[str, Any], x: Value) -> Value:
    """Axes in another order."""
    return graph.transpose(x, params["permutation"])


def reduce(operator: str) -> Translation:
    """Over some axes, which the result lacks."""

    def translate(graph: Graph, params: dict[str, Any], x: Value) -> Value:
        axes = params["axes"]
        shape = tuple(size for i, size in enumerate(x.shape) if i not in axes)
        name = graph.node(operator, [graph.full(x), graph.integers(axes)], keepdims=0)
        return Value(shape, x.dtype, shape, name)

    return translate


def concatenate(graph: Graph, params: dict[str, Any], *values: Value) -> Value:
    """One behind the other along an axis."""
    axis = params["dimension"]
    size = sum(value.shape[axis] for value in values)
    shape = (*values[0].shape[:axis], size, *values[0].shape[axis + 1 :])
    name = graph.node("Concat", [graph.full(value) for value in values], axis=axis)
    return Value(shape, values[0].dtype, shape, name)


def split(graph: Graph, params: dict[str, Any], x: Value) -> list[Value]:
    """Parts along an axis."""
    axis, sizes = params["axis"], params["sizes"]
    if len(sizes) == 1:
        return [x]
    inputs = [graph.full(x), graph.integers(sizes)]
    names = graph.nodes_of("Split", inputs, len(sizes), axis=axis)
    shapes = [(*x.shape[:axis], size, *x.shape[axis + 1 :]) for size in sizes]
    return [Value(s, x.dtype, s, name) for s, name in zip(shapes, names, strict=True)]


def cut(graph: Graph, x: Value, starts: Any, limits: Any, strides: Any) -> Value:
    """x[start:limit:stride] along each axis; axes that stay whole may be unknown."""
    axes = [
        i
        for i, size in enumerate(x.shape)
        if not (starts[i] == 0 and strides[i] == 1 and limits[i] == size)
    ]
    if not axes:
        return x
    shape = list(x.shape)
    for i in axes:
        shape[i] = -(-(limits[i] - starts[i]) // strides[i])
    numbers = ([each[i] for i in axes] for each in (starts, limits, range(len(shape)), strides))
    name = graph.node("Slice", [graph.full(x), *map(graph.integers, numbers)])
    return Value(tuple(shape), x.dtype, tuple(shape), name)


def slice_(graph: Graph, params: dict[str, Any], x: Value) -> Value:
    """A part of each axis."""
    strides = params["strides"] or (1,) * len(x.shape)
    return cut(graph, x, params["start_indices"], params["limit_indices"], strides)


def dynamic_slice(graph: Graph, params: dict[str, Any], x: Value, *starts: Value) -> Value:
    """A part whose place is a constant by now."""
    sizes = params["slice_sizes"]
    places = []
    for start, size, whole in zip(starts, sizes, x.shape, strict=True):
        if start.whole is None:
            raise UserError(
                "ONNX: a slice at a computed place is not written: export to stablehlo."
            )
        places.append(0 if size == whole else int(np.clip(start.whole, 0, whole - size)))
    limits = [place + size for place, size in zip(places, sizes, strict=True)]
    return cut(graph, x, places, limits, (1,) * len(sizes))


def pad(graph: Graph, params: dict[str, Any], x: Value, filling: Value) -> Value:
    """A border; negative ones cut."""
    config = params["padding_config"]
    if any(inside for _, _, inside in config):
        raise UserError("ONNX: padding between elements is not written: export to stablehlo.")
    starts = [max(0, -low) for low, _, _ in config]
    limits = [
        size - max(0, -high) if high < 0 else size
        for size, (_, high, _) in zip(x.shape, config, strict=True)
    ]
    x = cut(graph, x, starts, limits, (1,) * len(config))
    lows, highs = ([max(0, each[i]) for each in config] for i in (0, 1))
    if not any(lows + highs):
        return x
    shape = tuple(a + s + b for a, s, b in zip(lows, x.shape, highs, strict=True))
    name = graph.node("Pad", [graph.full(x), graph.integers(lows + highs), graph.stored(filling)])
    return Value(shape, x.dtype, shape, name)


def gather(graph: Graph, params: dict[str, Any], x: Value, indices: Value) -> Value:
    """A part at a constant place; or constant rows of one axis, columns of another and so on."""
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    axes, place = numbers.start_index_map, indices.whole
    if place is None or numbers.operand_batching_dims:
        raise UserError("ONNX: indices that are computed are not written: export to stablehlo.")
    if place.size == len(axes):  # one place
        starts = [0] * len(x.shape)
        for axis, start in zip(axes, place.reshape(-1), strict=True):
            starts[axis] = int(np.clip(start, 0, x.shape[axis] - sizes[axis]))
        limits = [start + size for start, size in zip(starts, sizes, strict=True)]
        part = cut(graph, x, starts, limits, (1,) * len(sizes))
        kept = [s for i, s in enumerate(part.shape) if i not in numbers.collapsed_slice_dims]
        rank = range(len(kept) + place.ndim - 1)
        return graph.reshape(
            part, tuple(kept.pop(0) if i in numbers.offset_dims else 1 for i in rank)
        )
    lines = [np.moveaxis(place[..., k], k, 0).reshape(place.shape[k], -1) for k in range(len(axes))]
    is_grid = place.ndim == len(axes) + 1 and all((each == each[:, :1]).all() for each in lines)
    if not is_grid or set(axes) != set(numbers.collapsed_slice_dims):
        raise UserError("ONNX: indices of this form are not written: export to stablehlo.")
    for axis, each in zip(axes, lines, strict=True):
        x = _rows(graph, x, axis, each[:, 0])
    # JAX puts these axes where `offset_dims` leaves room.
    of_rows, others = list(axes), [i for i in range(len(x.shape)) if i not in axes]
    order = [(others if i in numbers.offset_dims else of_rows).pop(0) for i in range(len(x.shape))]
    return graph.transpose(x, order)


def _rows(graph: Graph, x: Value, axis: int, rows: np.ndarray) -> Value:
    """Some of x along an axis."""
    steps = np.unique(np.diff(rows))
    if len(steps) == 1 and steps[0] > 0:
        starts, limits, strides = [0] * len(x.shape), list(x.shape), [1] * len(x.shape)
        starts[axis], limits[axis] = int(rows[0]), int(rows[-1]) + 1
        strides[axis] = int(steps[0])
        return cut(graph, x, starts, limits, strides)
    name = graph.node("Gather", [graph.full(x), graph.integers(rows.tolist())], axis=axis)
    shape = (*x.shape[:axis], len(rows), *x.shape[axis + 1 :])
    return Value(shape, x.dtype, shape, name)


def iota(_: Graph, params: dict[str, Any]) -> Value:
    """0, 1, 2 ... along an axis; the others may be unknown."""
    shape, axis = params["shape"], params["dimension"]
    row = np.arange(shape[axis], dtype=params["dtype"])
    return constant(row.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape)


OPERATORS: dict[Any, Translation] = {
    lax.abs_p: elements("Abs"),
    lax.add_p: elements("Add"),
    lax.and_p: elements("And"),
    lax.broadcast_in_dim_p: broadcast,
    lax.concatenate_p: concatenate,
    lax.convert_element_type_p: convert,
    lax.copy_p: same,
    lax.cos_p: elements("Cos"),
    lax.div_p: elements("Div"),
    lax.dynamic_slice_p: dynamic_slice,
    lax.eq_p: elements("Equal", np.bool_),
    lax.erf_p: elements("Erf"),
    lax.erfc_p: erfc,
    lax.exp_p: elements("Exp"),
    lax.gather_p: gather,
    lax.ge_p: elements("GreaterOrEqual", np.bool_),
    lax.gt_p: elements("Greater", np.bool_),
    lax.integer_pow_p: integer_pow,
    lax.iota_p: iota,
    lax.le_p: elements("LessOrEqual", np.bool_),
    lax.log_p: elements("Log"),
    lax.logistic_p: elements("Sigmoid"),
    lax.lt_p: elements("Less", np.bool_),
    lax.max_p: elements("Max"),
    lax.min_p: elements("Min"),
    lax.mul_p: elements("Mul"),
    lax.neg_p: elements("Neg"),
    lax.optimization_barrier_p: same,
    lax.pad_p: pad,
    lax.pow_p: elements("Pow"),
    lax.reduce_max_p: reduce("ReduceMax"),
    lax.reduce_min_p: reduce("ReduceMin"),
    lax.reduce_sum_p: reduce("ReduceSum"),
    lax.reshape_p: reshape,
    lax.rsqrt_p: rsqrt,
    lax.select_n_p: select,
    lax.sin_p: elements("Sin"),
    lax.slice_p: slice_,
    lax.split_p: split,
    lax.sqrt_p: elements("Sqrt"),
    lax.square_p: square,
    lax.squeeze_p: squeeze,
    lax.sub_p: elements("Sub"),
    lax.tanh_p: elements("Tanh"),
    lax.transpose_p: transpose,
}
