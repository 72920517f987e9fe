"""Exporting a model: python -m vit_jax.export --checkpoint runs/digits --output digits_hf

--to=huggingface writes a folder that transformers loads; --to=stablehlo a program that JAX runs
without this package, on any of the platforms it was made for; --to=onnx a file for ONNX's runtimes;
see docs/export.md.
"""

from absl import flags

from vit_jax.core import command

if __name__ == "__main__":  # --help and a mistake do not wait for the imports below
    flags.DEFINE_string("checkpoint", None, "Work directory, or a step's folder; or other weights.")
    flags.DEFINE_string("output", None, "A folder, or a file of --to=onnx; not there yet.")
    flags.DEFINE_enum(
        "to",
        "huggingface",
        ("huggingface", "stablehlo", "onnx"),
        "For transformers, a program for JAX, or a file for ONNX's runtimes.",
    )
    flags.DEFINE_bool("ema", False, "The EMA of the weights, if the run kept one.")
    flags.DEFINE_enum("head", "keep", ("keep", "drop"), "Whether to keep the classification layer.")
    flags.DEFINE_enum(
        "dtype", None, ("float32", "bfloat16"), "Of stablehlo: type of the computation."
    )
    flags.DEFINE_list("platforms", ["cpu", "cuda", "tpu"], "Of stablehlo: platforms to run on.")
    flags.mark_flags_as_required(["checkpoint", "output"])
    command.parse()

from vit_jax import weights
from vit_jax.core import cloud
from vit_jax.core.errors import UserError
from vit_jax.export.program import stablehlo
from vit_jax.export.to_onnx.file import save as onnx

FLAGS = flags.FLAGS


def main(_: list[str]) -> None:
    """The command."""
    if FLAGS.to == "onnx" and FLAGS.dtype == "bfloat16":
        raise UserError("--to=onnx computes in float32: leave --dtype=bfloat16 out.")
    dtype = "float32" if FLAGS.to == "onnx" else FLAGS.dtype
    loaded = weights.load_with_info(FLAGS.checkpoint, ema=FLAGS.ema, head=FLAGS.head, dtype=dtype)
    loaded, notice = weights.with_class_names(loaded)
    with cloud.staged(FLAGS.output) as output:
        if FLAGS.to == "huggingface":
            weights.save(loaded, output, "huggingface")
        elif FLAGS.to == "onnx":
            onnx(loaded, output)
        else:
            stablehlo(loaded, output, FLAGS.platforms)
    height, width = loaded.model.preprocess.image_size
    print(f"{loaded.name}, images of {height} x {width} pixels: {FLAGS.output}")
    if notice:
        print(notice)


if __name__ == "__main__":
    command.run(main)
