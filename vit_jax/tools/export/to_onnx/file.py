"""An ONNX file of a model: the graph, its weights, and metadata that make it usable alone."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import export as jax_export

from vit_jax.core.errors import UserError
from vit_jax.nn.kernels import choice
from vit_jax.tools.export.about import about
from vit_jax.tools.export.to_onnx.graph import Graph, Node, Value, constant
from vit_jax.tools.export.to_onnx.program import write
from vit_jax.weights import Loaded

# ReduceMax takes its axes as an input, and Split its number of parts, since 18 (ONNX 1.13).
OPSET, IR_VERSION = 18, 8
# A file of protocol buffers holds less than 2 GiB: larger weights are in a second file.
MOST_BYTES = 2**31 - 2**20
SMALL_BYTES = 1024  # constants below are never in the second file
ENDING = ".onnx"
INPUT, BATCH = "images", "batch"


def save(loaded: Loaded, path: str | Path) -> None:
    """Writes a model as an ONNX file, which must not exist yet.

    The graph takes `images` [batch, H, W, 3] float32, normalised, for any number of images, and
    gives `logits` [batch, C], or `features` [batch, D] of a model without a head. Weights of 2 GiB
    and more are in a second file beside it, of the same name with .data behind.

    Raises:
      UserError: another ending; a file is there, or cannot be written; `onnx` is not installed; or
        the model has an operation without a translation.
    """
    path = Path(path).expanduser()
    beside = path.with_name(path.name + ".data")
    if path.suffix != ENDING:
        raise UserError(f"--output={path}: of --to=onnx it is a file that ends in {ENDING}.")
    for each in (path, beside):
        if os.path.lexists(each):
            raise UserError(f"{each} is there already: give another output, or delete it.")
    onnx = _package()
    proto = as_proto(onnx, loaded)
    large = sum(len(array.raw_data) for array in proto.graph.initializer) >= MOST_BYTES
    how: dict[str, Any] = {"location": beside.name, "size_threshold": SMALL_BYTES}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            written = Path(folder) / path.name
            onnx.save_model(proto, str(written), save_as_external_data=large, **how)
            if large:
                (Path(folder) / beside.name).replace(beside)
            written.replace(path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}.") from error


def _package() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise UserError(
            "--to=onnx needs the package onnx, which is not installed: pip install onnx, or "
            "install this project with the extra, '.[onnx]'."
        ) from error
    return onnx


def as_graph(model: Any) -> tuple[Graph, Value]:
    """The graph of a model's forward pass, and its result."""
    structure, state = nnx.split(model, nnx.Param)
    params = jax.tree.map(np.asarray, nnx.to_pure_dict(state))
    (batch,) = jax_export.symbolic_shape("batch")
    images = jax.ShapeDtypeStruct((batch, *model.preprocess.image_size, 3), np.float32)
    with choice.portable():
        program = jax.jit(lambda p, x: nnx.merge(structure, p)(x)).trace(params, images).jaxpr
    graph = Graph()
    argument = graph.argument(INPUT, images.shape, images.dtype)
    weights = [constant(x) for x in jax.tree.leaves(params)]
    (result,) = write(graph, program, [*weights, argument])
    return graph, result


def as_proto(onnx: Any, loaded: Loaded) -> Any:
    """The model as ONNX's message."""
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
    info = lambda name, shape: helper.make_tensor_value_info(
        name, onnx.TensorProto.FLOAT, [x if isinstance(x, int) else BATCH for x in shape]
    )
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
