"""Exports a model: vit-jax export --checkpoint runs/digits --output digits.onnx

--to=huggingface writes a folder that transformers loads; --to=stablehlo a program that JAX runs
without this package, on any of the platforms it was made for; --to=onnx a file for ONNX's runtimes;
--to=tflite one for LiteRT; see docs/export.md.
"""

from typing import Any

from absl import flags

from vit_jax import weights
from vit_jax.core import arrays, cloud, command
from vit_jax.models.layers.linear import quantise
from vit_jax.tools.export import tflite
from vit_jax.tools.export.onnx_file import save as onnx
from vit_jax.tools.export.program import INPUT, PLATFORMS, new_file, stablehlo

FLAGS = flags.FLAGS
FORMATS = {
    "huggingface": "a folder for transformers",
    "stablehlo": "a program for JAX",
    "onnx": "a file for ONNX's runtimes",
    "tflite": "a file for LiteRT",
}
READ_BY = {"batch_size": ("tflite",), "int8": ("onnx", "stablehlo")}
READ_BY |= {"platforms": ("stablehlo",), "dtype": ("stablehlo",)}
IN_FLOAT32 = ("onnx", "tflite")


def chosen_format() -> str:
    """The format of --to, or else of --output's ending, after checks of the other flags."""
    ending = FLAGS.output.rpartition(".")[2]
    to = FLAGS.to or (ending if ending in IN_FLOAT32 else "huggingface")
    for name, readers in READ_BY.items():
        rule = f"is for --to={' and '.join(readers)} alone."
        command.refuse_flags(name, when=to not in readers, rule=rule)
    if to in IN_FLOAT32:
        new_file(FLAGS.output, to)
    else:
        cloud.check_new(FLAGS.output)
    return to


def describe_input(model: Any, batch: int | str) -> str:
    """ "takes images, float32 [1, 224, 224, 3]: (pixel / 255 - [0.5]) / [0.5]"."""
    about = model.preprocess
    shape = ", ".join(map(str, (batch, *about.image_size, about.channels)))
    pixel = f"pixel / {arrays.largest(about.dtype):g}"
    return f"takes {INPUT}, float32 [{shape}]: ({pixel} - {[*about.mean]}) / {[*about.std]}"


def main(_: list[str]) -> None:
    to = chosen_format()
    dtype = "float32" if to in IN_FLOAT32 else FLAGS.dtype
    loaded = weights.load_with_info(FLAGS.checkpoint, ema=FLAGS.ema, head=FLAGS.head, dtype=dtype)
    if FLAGS.int8:
        quantise(loaded.model)
    loaded, notice = weights.with_class_names(loaded)
    with cloud.staged(FLAGS.output) as output:
        if to == "huggingface":
            weights.save(loaded, output, "huggingface")
        elif to == "onnx":
            onnx(loaded, output)
        elif to == "tflite":
            tflite.save(loaded, output, FLAGS.batch_size)
        else:
            stablehlo(loaded, output, FLAGS.platforms)
    print(f"saved {FLAGS.output}, {FORMATS[to]}: {loaded.name}")
    if to != "huggingface":  # whose processor prepares images
        print(describe_input(loaded.model, FLAGS.batch_size if to == "tflite" else "any number"))
    if notice:
        print(notice)


if __name__ == "__main__":
    command.define_checkpoint()
    flags.DEFINE_string("output", None, "New folder, or new file for onnx and tflite.")
    kinds = "; ".join(f"{name}: {what}" for name, what in FORMATS.items())
    flags.DEFINE_enum("to", None, FORMATS, f"{kinds}; default: as --output ends, else huggingface.")
    flags.DEFINE_bool("ema", False, "Export the EMA of the weights, if the run kept one.")
    flags.DEFINE_bool("int8", False, "Store dense layers' kernels in 8 bits (stablehlo, onnx).")
    flags.DEFINE_enum("head", "keep", ("keep", "drop"), "Keep or drop the classification layer.")
    flags.DEFINE_enum("dtype", None, ("float32", "bfloat16"), "Of the computation (stablehlo).")
    flags.DEFINE_list("platforms", ["cpu", "cuda", "tpu"], "Platforms to run on (stablehlo).")
    flags.register_validator(
        "platforms", {*PLATFORMS}.issuperset, f"has others than {', '.join(PLATFORMS)}."
    )
    flags.DEFINE_integer("batch_size", 1, "Images that a call takes (tflite).", lower_bound=1)
    flags.mark_flags_as_required(["checkpoint", "output"])
    command.run(main)
