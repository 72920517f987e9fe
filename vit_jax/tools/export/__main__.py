"""Exporting a model: vit-jax export --checkpoint runs/digits --output digits_hf

--to=huggingface writes a folder that transformers loads; --to=stablehlo a program that JAX runs
without this package, on any of the platforms it was made for; --to=onnx a file for ONNX's runtimes;
--to=tflite one for LiteRT; see docs/export.md.
"""

from absl import flags

from vit_jax import weights
from vit_jax.core import cloud, command
from vit_jax.core.errors import UserError
from vit_jax.models.layers.linear import quantise
from vit_jax.tools.export import tflite
from vit_jax.tools.export.onnx_file import save as onnx
from vit_jax.tools.export.program import new_file, stablehlo

FLAGS = flags.FLAGS
FORMATS = {
    "huggingface": "a folder for transformers",
    "stablehlo": "a program for JAX",
    "onnx": "a file for ONNX's runtimes",
    "tflite": "a file for LiteRT",
}
READ_BY = {"batch_size": "tflite", "platforms": "stablehlo"}
IN_FLOAT32 = ("onnx", "tflite")


def chosen_format() -> str:
    """The format of --to, or else of --output's ending.

    UserError for flags that do not fit it, or an output that is there.
    """
    for name in ("checkpoint", "output", "platforms"):
        if not FLAGS[name].value:
            raise UserError(f"--{name} is empty: give a value.")
    ending = FLAGS.output.rpartition(".")[2]
    to = FLAGS.to or (ending if ending in IN_FLOAT32 else "huggingface")
    for name, reader in READ_BY.items():
        if FLAGS[name].present and to != reader:
            raise UserError(f"--{name} is read by --to={reader} alone: leave it out.")
    if to != "stablehlo" and FLAGS.dtype == "bfloat16":
        raise UserError(f"--to={to} computes in float32: leave --dtype=bfloat16 out.")
    if FLAGS.int8 and to not in ("onnx", "stablehlo"):
        raise UserError(f"--to={to} cannot be with --int8: give --to=onnx or stablehlo.")
    if to in IN_FLOAT32:
        new_file(FLAGS.output, to, f".{to}")
    else:
        cloud.check_new(FLAGS.output)
    return to


def main(_: list[str]) -> None:
    """The command."""
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
    height, width = loaded.model.preprocess.image_size
    print(
        f"saved {FLAGS.output}, {FORMATS[to]}: {loaded.name}, images of {height} x {width} pixels"
    )
    if notice:
        print(notice)


if __name__ == "__main__":
    command.define_checkpoint()
    flags.DEFINE_string("output", None, "A folder; of onnx and tflite a file. Not there yet.")
    flags.DEFINE_enum(
        "to",
        None,
        FORMATS,
        "; ".join(f"{name}: {what}" for name, what in FORMATS.items())
        + "; default: by the ending of --output, .onnx or .tflite, else huggingface.",
    )
    flags.DEFINE_bool("ema", False, "The EMA of the weights, if the run kept one.")
    flags.DEFINE_bool("int8", False, "Of stablehlo and onnx: dense layers' kernels in 8 bits.")
    flags.DEFINE_enum("head", "keep", ("keep", "drop"), "Whether to keep the classification layer.")
    flags.DEFINE_enum(
        "dtype", None, ("float32", "bfloat16"), "Of stablehlo: type of the computation."
    )
    flags.DEFINE_list("platforms", ["cpu", "cuda", "tpu"], "Of stablehlo: platforms to run on.")
    flags.DEFINE_integer("batch_size", 1, "Of tflite: images that a call takes.", lower_bound=1)
    flags.mark_flags_as_required(["checkpoint", "output"])
    command.run(main)
