"""CPU time of `vit-jax predict` by the number of images that it computes at once.

    python -m benchmarks.prediction --checkpoint WEIGHTS --images FOLDER

Reading and resizing included, in a thread beside the model and without one; loading and compiling
not. All take turns; medians.
"""

import collections
import itertools
import os
import statistics
import time
from unittest import mock

from absl import app, flags

from benchmarks import rows
from vit_jax import predict
from vit_jax.models import images, inference

FLAGS = flags.FLAGS


def main(_: list[str]) -> None:
    """Appends a row for each batch size, with the thread and without."""
    files = images.find([FLAGS.images])[: FLAGS.num_images]
    predictors = {
        size: predict.Predictor(FLAGS.checkpoint, batch_size=size)
        for size in map(int, FLAGS.batch_sizes)
    }
    for size, predictor in predictors.items():
        list(predictor(files[:size], top_k=1))  # compiles
    ways = {"thread": inference._ahead, "none": _one_after_the_other}
    secs = collections.defaultdict(list)
    for _ in range(FLAGS.turns):
        for size, overlap in itertools.product(predictors, ways):
            started, cpu_started = time.perf_counter(), time.process_time()
            with mock.patch.object(inference, "_ahead", ways[overlap]):
                list(predictors[size](files, top_k=1))
            used = time.process_time() - cpu_started, time.perf_counter() - started
            secs[size, overlap].append(used)
    for (size, overlap), used in secs.items():
        cpu_secs, wall_secs = map(statistics.median, zip(*used, strict=True))
        row = {
            "images": len(files),
            "batch_size": size,
            "overlap": overlap,
            "turns": FLAGS.turns,
            "load_average": round(os.getloadavg()[0], 1),
            "cpu_seconds": round(cpu_secs, 2),
            "seconds": round(wall_secs, 2),
        }
        code = "vit_jax/predict.py vit_jax/models"
        rows.record("prediction", code, "jax flax numpy pillow", row, keep=FLAGS.record)


def _one_after_the_other(prepare, named, ahead, threads):
    for each in named:
        yield prepare(each)


if __name__ == "__main__":
    flags.DEFINE_string("checkpoint", None, "Whose weights.", required=True)
    flags.DEFINE_string("images", None, "Where images are.", required=True)
    flags.DEFINE_integer("num_images", 96, "How many of them.")
    flags.DEFINE_list("batch_sizes", ["8", "32"], "Numbers of images computed at once.")
    flags.DEFINE_integer("turns", 7, "Of each.")
    flags.DEFINE_bool("record", True, "Append to benchmarks/results/prediction.csv.")
    app.run(main)
