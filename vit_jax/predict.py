"""Classifies images: python -m vit_jax.predict --checkpoint runs/digits IMAGE|FOLDER...

Needs only the checkpoint, which states its model and the preparation of images.
"""

from absl import flags

from vit_jax.core import command

if __name__ == "__main__":  # --help and a mistake do not wait for the imports below
    flags.DEFINE_string(
        "checkpoint", None, "Work directory, or a step's folder in it; or other weights."
    )
    flags.DEFINE_integer("top_k", 5, "How many classes to show for an image.")
    flags.DEFINE_integer("batch_size", 32, "How many images are computed at once.")
    flags.DEFINE_bool("ema", False, "The EMA of the weights, where the run kept one.")
    flags.DEFINE_bool("json", False, "One JSON object a line instead of text.")
    flags.mark_flag_as_required("checkpoint")
    command.parse(positional=True)

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from vit_jax import weights
from vit_jax.core.errors import NonFiniteError, UserError
from vit_jax.models import images


def predict(
    checkpoint: str, paths: list[str], *, top_k: int, ema: bool = False, batch_size: int = 32
) -> Iterator[tuple[Path, list[dict]]]:
    """Yields (file, its `top_k` classes): {"class", "name", "probability"}, most likely first.

    With `ema` the EMA of the weights is used instead of the weights themselves.
    The probability is the softmax over classes, also for models trained with a sigmoid loss.
    """
    for flag, value in (("top_k", top_k), ("batch_size", batch_size)):
        if value < 1:
            raise UserError(f"--{flag}={value}: give at least 1.")
    files = images.find(paths)
    loaded = weights.load_with_info(checkpoint, ema=ema, scan=True)
    loaded, notice = weights.with_class_names(loaded)
    if notice:
        print(notice, file=sys.stderr)
    if not loaded.model.num_classes:
        raise UserError(f"{checkpoint} is a backbone without a head: it cannot name classes.")
    graph, params = nnx.split(loaded.model, nnx.Param)
    forward = jax.jit(lambda p, x: jax.nn.softmax(nnx.merge(graph, p)(x)))
    batch_size = min(batch_size, len(files))
    for start in range(0, len(files), batch_size):
        part = files[start : start + batch_size]
        batch = np.stack([images.load(f, loaded.model.preprocess) for f in part])
        # One compiled size: the last batch is filled up.
        padding = np.zeros((batch_size - len(part), *batch.shape[1:]), np.float32)
        batch = np.concatenate([batch, padding])
        for file, p in zip(part, np.asarray(forward(params, batch)), strict=False):
            if not np.isfinite(p).all():
                raise NonFiniteError(
                    f"{file}: the probabilities of {checkpoint} are not finite. Its numbers are "
                    "damaged, or the training diverged: use an earlier checkpoint."
                )
            yield (
                file,
                [
                    {
                        "class": c,
                        "name": loaded.class_names[c] if loaded.class_names else str(c),
                        "probability": round(float(p[c]), 6),
                    }
                    for c in np.argsort(-p, kind="stable")[:top_k].tolist()
                ],
            )


FLAGS = flags.FLAGS


def main(arguments: list[str]) -> None:
    """The command."""
    if not arguments:
        raise UserError("Which images? Give files or folders behind the flags.")
    predictions = predict(
        FLAGS.checkpoint,
        arguments,
        top_k=FLAGS.top_k,
        ema=FLAGS.ema,
        batch_size=FLAGS.batch_size,
    )
    for file, classes in predictions:
        if FLAGS.json:
            print(json.dumps({"file": str(file), "classes": classes}))
        else:
            shown = "  ".join(f"{c['name']} {c['probability']:.1%}" for c in classes)
            print(f"{file}  {shown}")


if __name__ == "__main__":
    command.run(main)
