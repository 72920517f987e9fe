"""ONNX's operators for JAX's products, convolutions and pooling."""

import math
from collections.abc import Sequence
from typing import Any

from jax import lax

from vit_jax.core.errors import UserError
from vit_jax.tools.export.to_onnx.graph import Graph, Value, product
from vit_jax.tools.export.to_onnx.operators import Translation


def dot_general(graph: Graph, params: dict[str, Any], x: Value, y: Value) -> Value:
    """A product of matrices, for which axes are brought together and taken apart again."""
    (over_x, over_y), (batch_x, batch_y) = params["dimension_numbers"]
    free_x = [i for i in range(len(x.shape)) if i not in (*over_x, *batch_x)]
    free_y = [i for i in range(len(y.shape)) if i not in (*over_y, *batch_y)]
    x = graph.transpose(x, (*batch_x, *free_x, *over_x))
    y = graph.transpose(y, (*batch_y, *over_y, *free_y))
    batch, rows = x.shape[: len(batch_x)], x.shape[len(batch_x) : len(batch_x) + len(free_x)]
    inner, columns = x.shape[len(batch_x) + len(free_x) :], y.shape[len(batch_y) + len(over_y) :]
    result = (*batch, *rows, *columns)
    # Without batch axes MatMul takes all rows' axes as they are, which saves two reshapes.
    merged = (product(rows),) if batch or not rows else rows
    x = graph.reshape(x, (*batch, *merged, math.prod(inner)))
    y = graph.reshape(y, (*batch, math.prod(inner), product(columns)))
    shape = (*batch, *merged, product(columns))
    name = graph.node("MatMul", [graph.full(x), graph.full(y)])
    return graph.reshape(Value(shape, x.dtype, shape, name), result)


def convolution(graph: Graph, params: dict[str, Any], x: Value, kernel: Value) -> Value:
    """A convolution, in ONNX's layout: batch, channels, pixels."""
    layout = params["dimension_numbers"]
    if set(params["lhs_dilation"]) != {1} or params["batch_group_count"] != 1:
        raise UserError("ONNX: a transposed convolution is not written: export to stablehlo.")
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
    spread = [
        dilation * (size - 1) + 1
        for dilation, size in zip(params["rhs_dilation"], kernel.shape[2:], strict=True)
    ]
    pixels = _windows(x.shape[2:], spread, params["window_strides"], pads)
    shape = (x.shape[0], kernel.shape[0], *pixels)
    return graph.transpose(Value(shape, x.dtype, shape, name), _inverse(layout.out_spec))


def _windows(
    sizes: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[tuple[int, int]],
) -> list[int]:
    """How many windows fit along each axis."""
    each = zip(sizes, window, strides, pads, strict=True)
    return [(size + low + high - w) // stride + 1 for size, w, stride, (low, high) in each]


def _inverse(order: Sequence[int]) -> list[int]:
    return [list(order).index(i) for i in range(len(order))]


def pooling(operator: str) -> Translation:
    """The maximum or sum of windows of pixels of [B, H, W, C]."""

    def translate(graph: Graph, params: dict[str, Any], x: Value) -> Value:
        window, strides, pads = (
            params[name] for name in ("window_dimensions", "window_strides", "padding")
        )
        spatial = [i for i in range(len(window)) if window[i] > 1 or strides[i] > 1]
        others = [i for i in range(len(window)) if i not in spatial]
        plain = {1} == {*params["base_dilation"], *params["window_dilation"]}
        if not plain or len(others) < 2 or 0 not in others:
            raise UserError("ONNX: pooling of this form is not written: export to stablehlo.")
        order = (*others, *spatial)
        shape = list(x.shape)
        for i in spatial:
            ((shape[i],)) = _windows([x.shape[i]], [window[i]], [strides[i]], [pads[i]])
        own = lambda each: [each[i] for i in spatial]
        attributes: dict[str, Any] = {} if operator == "MaxPool" else {"count_include_pad": 1}
        turned = graph.transpose(x, order)
        name = graph.node(
            operator,
            [graph.full(turned)],
            kernel_shape=own(window),
            strides=own(strides),
            pads=[pads[i][0] for i in spatial] + [pads[i][1] for i in spatial],
            **attributes,
        )
        if operator == "AveragePool":
            number = graph.named(_scalar(math.prod(window), x))
            name = graph.node("Mul", [name, number])
        there = tuple(shape[i] for i in order)
        return graph.transpose(Value(there, x.dtype, there, name), _inverse(order))

    return translate


def _scalar(number: float, like: Value) -> Any:
    return like.dtype.type(number)


PRODUCTS: dict[Any, Translation] = {
    lax.conv_general_dilated_p: convolution,
    lax.dot_general_p: dot_general,
    lax.reduce_window_max_p: pooling("MaxPool"),
    lax.reduce_window_sum_p: pooling("AveragePool"),
}
