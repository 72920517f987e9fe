"""Converts weights from one format to another: vit-jax convert --checkpoint B_16.npz --output DIR

The input is recognised by its contents; see docs/weights.md.
"""

import re
from typing import Unpack

from absl import flags

from vit_jax import weights
from vit_jax.core import command
from vit_jax.core.errors import UserError

FLAGS = flags.FLAGS


def convert(
    source: str,
    output: str,
    *,
    to: str,
    approximate: bool = False,
    labels: str | None = None,
    **options: Unpack[weights.Options],
) -> str:
    """Reads weights of any format and writes them in another; returns a line about them.

    Args:
      source: a path or name, as `weights.load` takes it.
      output: as `weights.save` takes it; so are `to` and `approximate`.
      labels: a file of texts' vectors, for a head of classes (weights/zero_shot.py).
      options: those of `weights.load`.
    """
    weights.check_output(output, to)  # before weights are fetched and read
    loaded = weights.with_labels(weights.load_with_info(source, **options), labels)
    weights.save(loaded, output, to, approximate=approximate)
    model = loaded.model
    height, width = model.preprocess.image_size
    classes = f"{model.num_classes:,} classes" if model.num_classes else "no head"
    return f"{loaded.name}, images of {height} x {width} pixels, {classes}: {output}"


def image_size(text: str | None) -> tuple[int, int] | None:
    """ "384" -> (384, 384), "224x160" -> (224, 160). UserError for anything else."""
    if text is None:
        return None
    match = re.fullmatch(r"([1-9]\d{0,5})(?:x([1-9]\d{0,5}))?", text)
    if not match:
        raise UserError(f"--image_size={text}: pixels, such as 384 or HEIGHTxWIDTH, as in 224x160.")
    return int(match[1]), int(match[2] or match[1])


def default_format(output: str) -> str:
    """Returns the format that an output has without --to."""
    return "google_npz" if output.endswith(".npz") else "huggingface"


def main(_: list[str]) -> None:
    """Runs the command."""
    names = ("ema", "head", "num_heads", "position_resize", "approximate", "labels")
    options = command.values(*names) | {"image_size": image_size(FLAGS.image_size)}
    to = FLAGS.to or default_format(FLAGS.output)
    print(convert(FLAGS.checkpoint, FLAGS.output, to=to, **options))


if __name__ == "__main__":
    command.define_checkpoint()
    flags.DEFINE_alias("input", "checkpoint")
    flags.DEFINE_string("output", None, "A file that ends in .npz, or a folder; not there yet.")
    flags.DEFINE_enum(
        "to",
        None,
        ("huggingface", "timm", "google_npz", "checkpoint"),
        "Default: by the output, .npz or huggingface.",
    )
    flags.DEFINE_bool("ema", False, "The EMA of the weights, if the run kept one.")
    flags.DEFINE_enum("head", "keep", ("keep", "drop"), "Whether to keep the classification layer.")
    flags.DEFINE_string(
        "image_size", None, "Resizes learned positions for images of this size: 384, or 224x160."
    )
    flags.DEFINE_integer("num_heads", None, "Heads of a ViT whose weights do not state them.")
    flags.DEFINE_enum(
        "position_resize", None, ("bilinear", "bicubic", "bicubic_antialias", "bicubic_torch"),
        "Method of resizing positions; default: bilinear, but of Dinov2 as Hugging Face's does.",
    )  # fmt: skip
    flags.DEFINE_bool(
        "approximate", False, "Also write what the format's readers compute only nearly the same."
    )
    command.define_labels()
    flags.mark_flags_as_required(["checkpoint", "output"])
    command.run(main)
