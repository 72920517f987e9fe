"""ONNX graphs under construction, and ONNX's operators for JAX's primitives.

A translation takes (graph, the primitive's parameters, its operands) and gives its results. Among
the parameters is "result", the shape and dtype of the first one in JAX's program.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from vit_jax.core.errors import UserError

Shape = tuple[Any, ...]  # of numbers and expressions of the number of images


def unsupported(operation: str) -> UserError:
    return UserError(f"--to=onnx does not support {operation}: give --to=stablehlo.")


class Node(NamedTuple):
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Value:
    """An array of JAX's program: a constant, or the result of a node.

    The stored array may have axes of 1 where `shape` has more: ONNX broadcasts as NumPy does.
    """

    shape: Shape
    dtype: np.dtype
    stored: Shape  # shape of the stored array, with as many axes as `shape`, or () for a scalar
    name: str = ""  # name of the node's result, or "" for a constant
    array: np.ndarray | None = None  # the constant, or None for a node's result

    @property
    def whole(self) -> np.ndarray | None:
        """The constant in its shape, if that is known."""
        static = all(isinstance(size, int) for size in self.shape)
        if self.array is None or not static:
            return None
        return np.broadcast_to(self.array, self.shape)


def constant(array: Any, shape: Shape | None = None) -> Value:
    """The value of an array; of `shape`, if the array has axes of 1 in its place."""
    array = np.asarray(array)
    return Value(array.shape if shape is None else shape, array.dtype, array.shape, array=array)


class Graph:
    """Nodes and constants, in the order in which they were added, and shapes of inputs by name."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[str, np.ndarray] = {}
        self.inputs: dict[str, Shape] = {}
        self._named: dict[tuple[Any, ...], str] = {}  # small constants are kept once
        self._count = 0
        self._batch: tuple[Any, str] | None = None

    def argument(self, name: str, shape: Shape, dtype: Any) -> Value:
        """An input of the graph; its first axis is the number of images."""
        self.inputs[name] = shape
        size = self.node("Shape", [name])
        first = self.node("Slice", [size, *map(self.integers, ([0], [1], [0]))])
        self._batch = shape[0], first
        return Value(shape, np.dtype(dtype), shape, name)

    def node(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Adds an operation with one result, and gives that one's name."""
        return self.nodes_of(operator, inputs, 1, **attributes)[0]

    def nodes_of(
        self, operator: str, inputs: Sequence[str], results: int, **attributes: Any
    ) -> tuple[str, ...]:
        """Likewise with several results."""
        self._count += 1
        names = tuple(
            f"{operator}_{self._count}" + (f"_{i}" if results > 1 else "") for i in range(results)
        )
        self.nodes.append(Node(operator, tuple(inputs), names, attributes))
        return names

    def named(self, array: np.ndarray) -> str:
        key: tuple[Any, ...] = (id(array),)
        if array.size <= 64:
            key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._named:
            self._named[key] = f"constant_{len(self.constants)}"
            self.constants[self._named[key]] = array
        return self._named[key]

    def integers(self, numbers: Sequence[int]) -> str:
        return self.named(np.array(numbers, np.int64))

    def stored(self, value: Value) -> str:
        """The name of a value's stored array: for operators that broadcast."""
        return value.name if value.array is None else self.named(value.array)

    def full(self, value: Value) -> str:
        """The name of a value in its whole shape."""
        if value.stored == value.shape:
            return self.stored(value)
        whole = value.whole
        if whole is not None:
            return self.named(np.ascontiguousarray(whole))
        return self.node("Expand", [self.stored(value), self.sizes(value.shape)])

    def sizes(self, shape: Shape) -> str:
        """The name of a vector with the sizes of a shape, where one may be unknown."""
        parts = [self._size(size) for size in shape]
        return self.node("Concat", parts, axis=0) if len(parts) > 1 else parts[0]

    def _size(self, size: Any) -> str:
        if isinstance(size, int):
            return self.integers([size])
        assert self._batch is not None
        number, name = self._batch
        factor = size // number
        if not isinstance(factor, int) or factor * number != size:
            raise unsupported(f"a size of {size}, which depends on the number of images")
        return name if factor == 1 else self.node("Mul", [name, self.integers([factor])])

    def reshape(self, value: Value, shape: Shape) -> Value:
        whole = value.whole
        if whole is not None and all(isinstance(size, int) for size in shape):
            return constant(whole.reshape(shape))
        if value.stored == value.shape == shape:
            return value
        unknown = [size for size in shape if not isinstance(size, int)]
        assert len(unknown) <= 1, shape
        sizes = self.integers([size if isinstance(size, int) else -1 for size in shape])
        name = self.node("Reshape", [self.full(value), sizes])
        return Value(shape, value.dtype, shape, name)

    def transpose(self, value: Value, order: Sequence[int]) -> Value:
        order = tuple(order)
        if order == tuple(range(len(value.shape))):
            return value
        shape = tuple(value.shape[axis] for axis in order)
        if value.stored == ():
            return dataclasses.replace(value, shape=shape)
        stored = tuple(value.stored[axis] for axis in order)
        if value.array is not None:
            return constant(np.ascontiguousarray(value.array.transpose(order)), shape)
        name = self.node("Transpose", [value.name], perm=list(order))
        return Value(shape, value.dtype, stored, name)


Translation = Callable[..., Any]  # (Graph, dict, *Value) -> Value or list of Values


def _stored(*values: Value) -> Shape:
    stored: Shape = ()
    for value in values:
        if len(value.stored) < len(stored) or not value.stored:
            continue
        before = stored or (1,) * len(value.stored)
        stored = tuple(a if b == 1 else b for a, b in zip(before, value.stored, strict=True))
    return stored


def elements(operator: str, graph: Graph, params: dict[str, Any], *values: Value) -> Value:
    name = graph.node(operator, [graph.stored(value) for value in values])
    result = params["result"]
    return Value(result.shape, result.dtype, _stored(*values), name)


def _then(value: Value, name: str) -> Value:
    return Value(value.shape, value.dtype, value.stored, name)


def _number(graph: Graph, number: float, value: Value) -> str:
    return graph.named(np.array(number, value.dtype))


def same(_: Graph, __: dict[str, Any], *values: Value) -> list[Value]:
    return list(values)


def rsqrt(graph: Graph, _: dict[str, Any], x: Value) -> Value:
    return _then(x, graph.node("Reciprocal", [graph.node("Sqrt", [graph.stored(x)])]))


def erfc(graph: Graph, _: dict[str, Any], x: Value) -> Value:
    erf = graph.node("Erf", [graph.stored(x)])
    return _then(x, graph.node("Sub", [_number(graph, 1, x), erf]))


def integer_pow(graph: Graph, params: dict[str, Any], x: Value) -> Value:
    """x ** y for a whole y; 2 for the primitive "square"."""
    name, y = graph.stored(x), params.get("y", 2)
    if y not in (2, 3):
        return _then(x, graph.node("Pow", [name, _number(graph, y, x)]))
    product = graph.node("Mul", [name, name])
    return _then(x, product if y == 2 else graph.node("Mul", [product, name]))


def select(graph: Graph, params: dict[str, Any], which: Value, *cases: Value) -> Value:
    """One of two, by a boolean."""
    if which.dtype != np.bool_ or len(cases) != 2:
        raise unsupported("select_n of more than two")
    name = graph.node("Where", [graph.stored(value) for value in (which, *reversed(cases))])
    return Value(params["result"].shape, cases[0].dtype, _stored(which, *cases), name)


def convert(graph: Graph, params: dict[str, Any], x: Value) -> Value:
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
    x = graph.reshape(alone, tuple(stored))
    return Value(shape, x.dtype, x.stored, x.name, x.array)


def reshape(graph: Graph, params: dict[str, Any], x: Value) -> Value:
    return graph.reshape(x, params["result"].shape)


def reduce(operator: str, graph: Graph, params: dict[str, Any], x: Value) -> Value:
    shape = params["result"].shape
    name = graph.node(operator, [graph.full(x), graph.integers(params["axes"])], keepdims=0)
    return Value(shape, x.dtype, shape, name)


def concatenate(graph: Graph, params: dict[str, Any], *values: Value) -> Value:
    axis = params["dimension"]
    size = sum(value.shape[axis] for value in values)
    shape = (*values[0].shape[:axis], size, *values[0].shape[axis + 1 :])
    name = graph.node("Concat", [graph.full(value) for value in values], axis=axis)
    return Value(shape, values[0].dtype, shape, name)


def split(graph: Graph, params: dict[str, Any], x: Value) -> list[Value]:
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
    strides = params["strides"] or (1,) * len(x.shape)
    return cut(graph, x, params["start_indices"], params["limit_indices"], strides)


def dynamic_slice(graph: Graph, params: dict[str, Any], x: Value, *starts: Value) -> Value:
    """A part whose place is a constant by now."""
    sizes = params["slice_sizes"]
    places = []
    for start, size, whole in zip(starts, sizes, x.shape, strict=True):
        if start.whole is None:
            raise unsupported("a slice at a computed place")
        places.append(0 if size == whole else int(np.clip(start.whole, 0, whole - size)))
    limits = [place + size for place, size in zip(places, sizes, strict=True)]
    return cut(graph, x, places, limits, (1,) * len(sizes))


def pad(graph: Graph, params: dict[str, Any], x: Value, filling: Value) -> Value:
    """A border; negative ones cut."""
    config = params["padding_config"]
    if any(inside for _, _, inside in config):
        raise unsupported("padding between elements")
    starts = [max(0, -low) for low, _, _ in config]
    limits = [
        size - max(0, -high) if high < 0 else size
        for size, (_, high, _) in zip(x.shape, config, strict=True)
    ]
    x = cut(graph, x, starts, limits, (1,) * len(config))
    lows, highs = ([max(0, each[i]) for each in config] for i in (0, 1))
    if not any(lows + highs):
        return x
    shape = params["result"].shape
    name = graph.node("Pad", [graph.full(x), graph.integers(lows + highs), graph.stored(filling)])
    return Value(shape, x.dtype, shape, name)


def gather(graph: Graph, params: dict[str, Any], x: Value, indices: Value) -> Value:
    """A part at a constant place; or constant rows of one axis, columns of another and so on."""
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    axes, place = numbers.start_index_map, indices.whole
    if place is None or numbers.operand_batching_dims:
        raise unsupported("gathering at computed indices")
    if place.size == len(axes):  # one place
        starts = [0] * len(x.shape)
        for axis, start in zip(axes, place.reshape(-1), strict=True):
            starts[axis] = int(np.clip(start, 0, x.shape[axis] - sizes[axis]))
        limits = [start + size for start, size in zip(starts, sizes, strict=True)]
        return reshape(graph, params, cut(graph, x, starts, limits, (1,) * len(sizes)))
    lines = [np.moveaxis(place[..., k], k, 0).reshape(place.shape[k], -1) for k in range(len(axes))]
    is_grid = place.ndim == len(axes) + 1 and all((each == each[:, :1]).all() for each in lines)
    if not is_grid or set(axes) != set(numbers.collapsed_slice_dims):
        raise unsupported("gathering at indices that form no grid")
    for axis, each in zip(axes, lines, strict=True):
        x = _rows(graph, x, axis, each[:, 0])
    # JAX puts these axes where `offset_dims` leaves room.
    of_rows, others = list(axes), [i for i in range(len(x.shape)) if i not in axes]
    order = [(others if i in numbers.offset_dims else of_rows).pop(0) for i in range(len(x.shape))]
    return graph.transpose(x, order)


def _rows(graph: Graph, x: Value, axis: int, rows: np.ndarray) -> Value:
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


def dot_general(graph: Graph, params: dict[str, Any], x: Value, y: Value) -> Value:
    """A product of matrices, for which axes are brought together and taken apart again."""
    (over_x, over_y), (batch_x, batch_y) = params["dimension_numbers"]
    free_x = [i for i in range(len(x.shape)) if i not in (*over_x, *batch_x)]
    free_y = [i for i in range(len(y.shape)) if i not in (*over_y, *batch_y)]
    x = graph.transpose(x, (*batch_x, *free_x, *over_x))
    y = graph.transpose(y, (*batch_y, *over_y, *free_y))
    batch, rows = x.shape[: len(batch_x)], x.shape[len(batch_x) : len(batch_x) + len(free_x)]
    inner, columns = x.shape[len(batch_x) + len(free_x) :], y.shape[len(batch_y) + len(over_y) :]
    # Without batch axes MatMul takes all rows' axes as they are, which saves two reshapes.
    merged = (math.prod(rows),) if batch or not rows else rows
    x = graph.reshape(x, (*batch, *merged, math.prod(inner)))
    y = graph.reshape(y, (*batch, math.prod(inner), math.prod(columns)))
    shape = (*batch, *merged, math.prod(columns))
    name = graph.node("MatMul", [graph.full(x), graph.full(y)])
    return reshape(graph, params, Value(shape, x.dtype, shape, name))


def convolution(graph: Graph, params: dict[str, Any], x: Value, kernel: Value) -> Value:
    """A convolution, in ONNX's layout: batch, channels, pixels."""
    layout = params["dimension_numbers"]
    if set(params["lhs_dilation"]) != {1} or params["batch_group_count"] != 1:
        raise unsupported("a transposed convolution")
    x = graph.transpose(x, layout.lhs_spec)
    kernel = graph.transpose(kernel, layout.rhs_spec)
    pads = params["padding"]
    name = graph.node(
        "Conv",
        [graph.full(x), graph.full(kernel)],
        strides=list(params["window_strides"]),
        dilations=list(params["rhs_dilation"]),
        group=params["feature_group_count"],
        pads=[low for low, _ in pads] + [high for _, high in pads],
    )
    return _in_order(graph, params, name, layout.out_spec)


def _in_order(graph: Graph, params: dict[str, Any], name: str, order: Sequence[int]) -> Value:
    result = params["result"]
    shape = tuple(result.shape[axis] for axis in order)
    value = Value(shape, result.dtype, shape, name)
    return graph.transpose(value, np.argsort(order).tolist())


def pooling(operator: str, graph: Graph, params: dict[str, Any], x: Value) -> Value:
    window, strides, pads = (
        params[name] for name in ("window_dimensions", "window_strides", "padding")
    )
    spatial = [i for i in range(len(window)) if window[i] > 1 or strides[i] > 1]
    others = [i for i in range(len(window)) if i not in spatial]
    plain = {1} == {*params["base_dilation"], *params["window_dilation"]}
    if not plain or len(others) < 2 or 0 not in others:
        raise unsupported("pooling with dilation, or over images or channels")
    order = (*others, *spatial)
    attributes: dict[str, Any] = {} if operator == "MaxPool" else {"count_include_pad": 1}
    name = graph.node(
        operator,
        [graph.full(graph.transpose(x, order))],
        kernel_shape=[window[i] for i in spatial],
        strides=[strides[i] for i in spatial],
        pads=[pads[i][side] for side in (0, 1) for i in spatial],
        **attributes,
    )
    if operator == "AveragePool":
        name = graph.node("Mul", [name, _number(graph, math.prod(window), x)])
    return _in_order(graph, params, name, order)


# JAX's primitives, by their names, that are operators of ONNX on elements.
ELEMENTS = {
    "abs": "Abs", "add": "Add", "and": "And", "cos": "Cos", "div": "Div", "eq": "Equal",
    "erf": "Erf", "exp": "Exp", "ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual",
    "log": "Log", "logistic": "Sigmoid", "lt": "Less", "max": "Max", "min": "Min", "mul": "Mul",
    "neg": "Neg", "pow": "Pow", "sin": "Sin", "sqrt": "Sqrt", "sub": "Sub", "tanh": "Tanh",
}  # fmt: skip
OPERATORS: dict[str, Translation] = {
    **{name: partial(elements, operator) for name, operator in ELEMENTS.items()},
    "broadcast_in_dim": broadcast,
    "concatenate": concatenate,
    "conv_general_dilated": convolution,
    "convert_element_type": convert,
    "copy": same,
    "dot_general": dot_general,
    "dynamic_slice": dynamic_slice,
    "erfc": erfc,
    "gather": gather,
    "integer_pow": integer_pow,
    "iota": iota,
    "name": same,
    "optimization_barrier": same,
    "pad": pad,
    "reduce_max": partial(reduce, "ReduceMax"),
    "reduce_min": partial(reduce, "ReduceMin"),
    "reduce_sum": partial(reduce, "ReduceSum"),
    "reduce_window_max": partial(pooling, "MaxPool"),
    "reduce_window_sum": partial(pooling, "AveragePool"),
    "reshape": reshape,
    "rsqrt": rsqrt,
    "select_n": select,
    "sharding_constraint": same,
    "slice": slice_,
    "split": split,
    "square": integer_pow,
    "squeeze": reshape,
    "stop_gradient": same,
    "transpose": lambda graph, params, x: graph.transpose(x, params["permutation"]),
}
