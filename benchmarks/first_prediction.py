"""Wall time of `vit-jax predict` for one image, from start to exit.

    python -m benchmarks.first_prediction --model ViT-B/16

Loading, compiling and predicting, by the command in its own process, from random weights in each
format that it reads. Only the file system's cache is kept between runs.
"""

import os
import subprocess
import sys
import tempfile

from absl import app, flags

from benchmarks import costs, rows

FLAGS = flags.FLAGS

MAKE = """
import sys
import numpy as np
from flax import nnx
from PIL import Image
from vit_jax import models, weights
model = models.create(
    sys.argv[1], num_classes=1000, image_size=224, rngs=nnx.Rngs(0),
    initialization="deit",  # predict refuses a head of zeros
)
loaded = weights.Loaded(model, sys.argv[1], None, 0)
weights.save(loaded, sys.argv[2] + "/google.npz", "google_npz")
weights.save(loaded, sys.argv[2] + "/huggingface", "huggingface")
weights.save(loaded, sys.argv[2] + "/checkpoint", "checkpoint")
pixels = np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8)
Image.fromarray(pixels).save(sys.argv[2] + "/image.jpg")
"""
INPUTS = {"google_npz": "google.npz", "huggingface": "huggingface", "checkpoint": "checkpoint"}


def main(_: list[str]) -> None:
    """Appends a row for each format."""
    with tempfile.TemporaryDirectory(dir=FLAGS.scratch) as scratch:
        subprocess.run([sys.executable, "-c", MAKE, FLAGS.model, scratch], check=True)
        for format_, name in INPUTS.items():
            arguments = (f"--checkpoint={scratch}/{name}", f"{scratch}/image.jpg")
            used = costs.of_python("-m", "vit_jax", "predict", *arguments)
            row = {
                "model": FLAGS.model,
                "weights": format_,
                "load_average": round(os.getloadavg()[0], 1),
                "seconds": round(used.wall_secs, 1),
                "cpu_seconds": round(used.cpu_secs, 1),
            }
            code = "vit_jax/weights vit_jax/predict.py vit_jax/models/images.py"
            rows.record("first_prediction", code, "jax flax numpy pillow", row, keep=FLAGS.record)


if __name__ == "__main__":
    flags.DEFINE_string("model", "ViT-B/16", "Whose weights.")
    flags.DEFINE_string("scratch", None, "Where three copies of them are written; default: /tmp.")
    flags.DEFINE_bool("record", True, "Append to benchmarks/results/first_prediction.csv.")
    app.run(main)
