"""Accuracy and size of kernels in 8 bits, beside float32 and onnxruntime's own quantisation.

    python -m benchmarks.int8 --checkpoint WEIGHTS --data_dir DATA --images 1000

The same images, prepared by Pillow, go through the model as it is, with the kernels of its dense
layers in int8 (models/layers/linear.py), and through its ONNX file after onnxruntime's dynamic
quantisation (weights and activations in 8 bits, a scale for each output). Classes are those of the
data set, by their ImageNet names.
"""

import io
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import app, flags
from flax import nnx
from PIL import Image

from benchmarks import rows
from vit_jax import weights
from vit_jax.core import synsets
from vit_jax.data.sources import table as sources
from vit_jax.models import images
from vit_jax.models.layers.linear import quantise
from vit_jax.tools.export.onnx_file import save

FLAGS = flags.FLAGS
BATCH = 50


def compiled(model: Any) -> Callable[[np.ndarray], Any]:
    """The model's logits."""
    graph, params = nnx.split(model, nnx.Param)
    forward = jax.jit(lambda p, x: nnx.merge(graph, p)(x))
    return lambda x: forward(params, x)


def by_onnxruntime(loaded: weights.Loaded, scratch: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Logits of the ONNX file and of it quantised, and the files' bytes."""
    import onnxruntime
    from onnxruntime import quantization

    plain, eight = scratch / "plain.onnx", scratch / "eight.onnx"
    save(loaded, plain)
    quantization.quantize_dynamic(
        plain, eight, per_channel=True, weight_type=quantization.QuantType.QInt8
    )
    sessions = {"onnx": plain, "onnx_dynamic_int8": eight}
    calls = {}
    for name, path in sessions.items():
        session = onnxruntime.InferenceSession(path)
        calls[name] = lambda x, session=session: session.run(None, {"images": x})[0]
    return calls, {name: path.stat().st_size for name, path in sessions.items()}


def batches(source: Any, preprocess: Any) -> Iterator[tuple[np.ndarray, list[int]]]:
    """Images from all over the split, and their labels."""
    chosen = np.linspace(0, source.num_examples - 1, FLAGS.images).astype(int)
    for some in np.array_split(chosen, max(1, FLAGS.images // BATCH)):
        examples = source.read(some)
        photos = [Image.open(io.BytesIO(each.image)).convert("RGB") for each in examples]
        yield (
            np.stack([images.load(p, preprocess) for p in photos]),
            [e.labels[0] for e in examples],
        )


def main(_: list[str]) -> None:
    """Appends a row for each way to compute."""
    loaded = weights.load_with_info(FLAGS.checkpoint, dtype="float32", scan=True)
    source = sources.create(
        "tfds", sources.Request(data_dir=FLAGS.data_dir, split="validation", where="--data_dir")
    )
    known = list(synsets.names_1k())
    columns = [known.index(name.split()[0]) for name in source.class_names]
    with tempfile.TemporaryDirectory() as scratch:
        ways, sizes = by_onnxruntime(loaded, Path(scratch))
    bytes_of = lambda m: sum(x.nbytes for x in jax.tree.leaves(nnx.state(m, nnx.Param)))
    sizes["float32"], ways["float32"] = bytes_of(loaded.model), compiled(loaded.model)
    quantised = quantise(loaded.model)
    sizes["int8"], ways["int8"] = bytes_of(quantised), compiled(quantised)
    found: dict[str, list[Any]] = {name: [] for name in ways}
    labels: list[int] = []
    for pixels, own in batches(source, loaded.model.preprocess):
        labels += own
        for name, logits in ways.items():
            found[name].append(np.asarray(logits(pixels))[:, columns])
    together = {name: np.concatenate(parts) for name, parts in found.items()}
    for name, logits in together.items():
        row = {
            "weights": loaded.name,
            "way": name,
            "bytes": sizes[name],
            "images": len(labels),
            "accuracy": round(float((logits.argmax(-1) == labels).mean()), 5),
            "same_class": round(
                float((logits.argmax(-1) == together["float32"].argmax(-1)).mean()), 5
            ),
            "largest_difference": round(float(np.abs(logits - together["float32"]).max()), 5),
        }
        code = "vit_jax/models vit_jax/tools/export"
        rows.record("int8", code, "jax flax numpy onnxruntime", row, keep=FLAGS.record)


if __name__ == "__main__":
    flags.DEFINE_string("checkpoint", None, "Trained weights with ImageNet's classes.")
    flags.DEFINE_string("data_dir", None, "A data set of TFDS with classes of ImageNet.")
    flags.DEFINE_integer("images", 1000, "How many images of its validation split.")
    flags.DEFINE_bool("record", True, "Append to benchmarks/results/int8.csv.")
    flags.mark_flags_as_required(["checkpoint", "data_dir"])
    app.run(main)
