"""CPU time of `vit-jax convert`, and its memory in multiples of the weights.

    python -m benchmarks.conversion --model ViT-L/16

Random weights are converted from Google's .npz to Hugging Face's folder and back, each by the
command in its own process. CPU time covers the whole command, imports included. Memory is the
process's peak resident memory, less that of a process that only imports; mapped pages of files
count.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from absl import app, flags

from benchmarks import costs, rows

FLAGS = flags.FLAGS

# Runs in its own process: children would inherit this one's peak memory.
MAKE = """
import sys
import jax, numpy as np
from flax import nnx
from vit_jax import models, weights
make = lambda: models.create(sys.argv[1], num_classes=1000, image_size=224, rngs=nnx.Rngs(0))
graph, state = nnx.split(nnx.eval_shape(make), nnx.Param)
rng = np.random.default_rng(0)
params = jax.tree.map(lambda x: 0.02 * rng.standard_normal(x.shape, np.float32), state)
loaded = weights.Loaded(nnx.merge(graph, params), sys.argv[1], None, 0)
weights.save(loaded, sys.argv[2], "google_npz")
"""


def main(_: list[str]) -> None:
    """Appends a row for each direction."""
    with tempfile.TemporaryDirectory(dir=FLAGS.scratch) as scratch:
        first, folder, second = (f"{scratch}/{name}" for name in ("1.npz", "folder", "2.npz"))
        subprocess.run([sys.executable, "-c", MAKE, FLAGS.model, first], check=True)
        size = Path(first).stat().st_size
        imported = costs.of_python("-c", "import vit_jax.convert")
        for source, to, output in (
            (first, "huggingface", folder),
            (folder, "google_npz", second),
        ):
            arguments = (f"--input={source}", f"--output={output}", f"--to={to}")
            used = costs.of_python("-m", "vit_jax", "convert", *arguments, quiet=True)
            row = {
                "model": FLAGS.model,
                "to": to,
                "file_mb": round(size / 1e6),
                "cpu_seconds": round(used.cpu_secs, 1),
                "import_cpu_seconds": round(imported.cpu_secs, 1),
                "memory_of_file": round((used.peak_bytes - imported.peak_bytes) / size, 2),
            }
            code = "vit_jax/weights vit_jax/convert.py"
            rows.record("conversion", code, "jax flax numpy", row, keep=FLAGS.record)


if __name__ == "__main__":
    flags.DEFINE_string("model", "ViT-L/16", "Whose weights.")
    flags.DEFINE_string("scratch", None, "Where three copies of them are written; default: /tmp.")
    flags.DEFINE_bool("record", True, "Append to benchmarks/results/conversion.csv.")
    app.run(main)
