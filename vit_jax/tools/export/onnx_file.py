"""An ONNX file of a model: the graph, its weights, and metadata that make it usable alone.

An ONNX node is written for each operation of the model's JAX program on what is not constant. What
depends on constants alone, such as a standardised kernel or a resized position embedding, is
computed here; loops are unrolled.
"""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import export as jax_export
from jax.extend import core

from vit_jax.core import cloud
from vit_jax.core.errors import UserError, writing
from vit_jax.models.layers.kernels import choice
from vit_jax.tools.export import onnx_operators
from vit_jax.tools.export.onnx_operators import Graph, Node, Value, constant
from vit_jax.tools.export.program import INPUT, about, new_file
from vit_jax.weights import Loaded

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
    consts: Sequence[Any] = ()
    if hasattr(program, "jaxpr"):
        program, consts = program.jaxpr, program.consts
    known: dict[Any, Value] = {}
    known.update(zip(program.constvars, map(constant, consts), strict=True))
    known.update(zip(program.invars, arguments, strict=True))

    def values(variables: Sequence[Any]) -> list[Value]:
        return [constant(v.val) if isinstance(v, core.Literal) else known[v] for v in variables]

    for equation in program.eqns:
        results = _results(graph, equation, values(equation.invars))
        known.update(zip(equation.outvars, results, strict=True))
    return values(program.outvars)


def _results(graph: Graph, equation: Any, operands: list[Value]) -> Sequence[Value]:
    name, params = equation.primitive.name, equation.params
    if name in CALLS:
        return write(graph, params[CALLS[name]], operands)
    if name == "scan":
        return _loop(graph, params, operands)
    folded = _folded(equation, operands)
    if folded is not None:
        return folded
    translate = onnx_operators.OPERATORS.get(name)
    if translate is None:
        raise onnx_operators.unsupported(name)
    results = translate(graph, params | {"result": equation.outvars[0].aval}, *operands)
    return results if isinstance(results, list) else [results]


def _folded(equation: Any, operands: list[Value]) -> list[Value] | None:
    """The results of an operation on constants alone; those of 8 bits are not widened."""
    arrays = [operand.whole for operand in operands]
    static = all(isinstance(s, int) for v in equation.outvars for s in v.aval.shape)
    widens = equation.primitive.name == "convert_element_type" and operands[0].dtype == np.int8
    if not static or widens or any(array is None for array in arrays):
        return None
    results = equation.primitive.bind(*arrays, **equation.params)
    several = equation.primitive.multiple_results
    return [constant(np.asarray(x)) for x in (results if several else [results])]


def _loop(graph: Graph, params: dict[str, Any], operands: list[Value]) -> list[Value]:
    shared, carry, each = _parts_of_loop(params, operands)
    rounds = range(params["length"])
    outputs: dict[int, list[Value]] = {}
    for i in reversed(rounds) if params["reverse"] else rounds:
        rows = [_row(graph, x, i) for x in each]
        results = write(graph, params["jaxpr"], [*shared, *carry, *rows])
        carry, outputs[i] = results[: len(carry)], results[len(carry) :]
    stacks = [
        _stacked(graph, [outputs[i][k] for i in rounds])
        for k in range(len(outputs[0]) if outputs else 0)
    ]
    return [*carry, *stacks]


def _parts_of_loop(params: dict[str, Any], operands: list[Value]) -> list[list[Value]]:
    """The operands that all rounds share, that one hands to the next, and that have a row each."""
    if "ft_in" in params:  # since JAX 0.12
        return [list(part) for part in params["ft_in"].update(operands).unpack()]
    first, last = params["num_consts"], params["num_consts"] + params["num_carry"]
    return [operands[:first], operands[first:last], operands[last:]]


def _row(graph: Graph, x: Value, i: int) -> Value:
    whole = x.whole
    if whole is not None:
        return constant(whole[i])
    rest = x.shape[1:]
    starts, limits = (i, *(0 for _ in rest)), (i + 1, *rest)
    return graph.reshape(onnx_operators.cut(graph, x, starts, limits, (1,) * len(limits)), rest)


def _stacked(graph: Graph, rows: list[Value]) -> Value:
    wider = [graph.reshape(row, (1, *row.shape)) for row in rows]
    return (
        wider[0] if len(wider) == 1 else onnx_operators.concatenate(graph, {"dimension": 0}, *wider)
    )


# ReduceMax takes its axes as an input, and Split its number of parts, since 18 (ONNX 1.13).
OPSET, IR_VERSION = 18, 8
# A file of protocol buffers holds less than 2 GiB: larger weights are in a second file.
MOST_BYTES = 2**31 - 2**20
SMALL_BYTES = 1024  # constants below are never in the second file
BATCH = "batch"


def save(loaded: Loaded, path: str | Path) -> None:
    """Writes a model as an ONNX file, which must not exist yet.

    The graph takes `images` [batch, H, W, 3] float32, normalised, for any number of images, and
    gives `logits` [batch, C], or `features` [batch, D] of a model without a head. Weights of 2 GiB
    and more are in a second file beside it, of the same name with .data behind.
    """
    path = new_file(path, "onnx")
    beside = path.with_name(path.name + ".data")
    cloud.check_new(beside)
    try:
        import onnx
    except ImportError as error:
        raise UserError("needs pip install onnx.", field="--to", value="onnx") from error
    proto = as_proto(onnx, loaded)
    large = sum(len(array.raw_data) for array in proto.graph.initializer) >= MOST_BYTES
    how: dict[str, Any] = {"location": beside.name, "size_threshold": SMALL_BYTES}
    with writing("--output", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            written = Path(folder) / path.name
            onnx.save_model(proto, str(written), save_as_external_data=large, **how)
            if large:
                (Path(folder) / beside.name).replace(beside)
            written.replace(path)


def as_graph(model: Any) -> tuple[Graph, Value]:
    structure, state = nnx.split(model, nnx.Param)
    params = jax.tree.map(np.asarray, nnx.to_pure_dict(state))
    (batch,) = jax_export.symbolic_shape("batch")
    images = jax.ShapeDtypeStruct(
        (batch, *model.preprocess.image_size, model.spec.channels), np.float32
    )
    with choice.portable():
        program = jax.jit(lambda p, x: nnx.merge(structure, p)(x)).trace(params, images).jaxpr
    graph = Graph()
    argument = graph.argument(INPUT, images.shape, images.dtype)
    weights = [constant(x) for x in jax.tree.leaves(params)]
    (result,) = write(graph, program, [*weights, argument])
    return graph, result


def as_proto(onnx: Any, loaded: Loaded) -> Any:
    graph, result = as_graph(loaded.model)
    facts = about(loaded)
    last = graph.full(result)
    graph.nodes.append(Node("Identity", (last,), (facts["gives"],), {}))
    helper, of_array = onnx.helper, onnx.numpy_helper.from_array
    used, nodes = {facts["gives"]}, []
    for node in reversed(graph.nodes):
        if used.intersection(node.outputs):
            used.update(node.inputs)
            nodes.append(_node(helper, node))

    def info(name: str, shape: Sequence[Any]) -> Any:
        sizes = [x if isinstance(x, int) else BATCH for x in shape]
        return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, sizes)

    proto = helper.make_model(
        helper.make_graph(
            nodes[::-1],
            name=loaded.name,
            inputs=[info(name, shape) for name, shape in graph.inputs.items()],
            outputs=[info(facts["gives"], result.shape)],
            initializer=[of_array(x, n) for n, x in graph.constants.items() if n in used],
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="vit_jax",
        producer_version=facts["made_with"]["vit_jax"],
    )
    text = {key: x if isinstance(x, str) else json.dumps(x) for key, x in facts.items()}
    helper.set_model_props(proto, text)
    return proto


def _node(helper: Any, node: Node) -> Any:
    attributes = {
        key: helper.np_dtype_to_tensor_dtype(x) if isinstance(x, np.dtype) else x
        for key, x in node.attributes.items()
    }
    return helper.make_node(node.operator, node.inputs, node.outputs, node.outputs[0], **attributes)
