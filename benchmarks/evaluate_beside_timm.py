"""Evaluation beside timm's own validate.py: accuracy, CPU time and wall time of the same photos.

    python -m benchmarks.evaluate_beside_timm --timm DIR --timm_python PYTHON --weights DIR \
        --data_dir DIR

The flags are those of beside_timm, but data_dir has a folder for each of the weights' classes, in
their order, such as a part of ImageNet's validation set by WordNet ids. Both programs are run from
the shell as their users would, start included, turn after turn; TIMM_FLAGS has all of timm's flags,
ours has none. Both resize and crop as the weights say. `cold`: nothing is in the compilation cache.
A row for each run goes to results/evaluate_beside_timm.csv.
"""

import json
import os
import tempfile
from pathlib import Path

from absl import app, flags

from benchmarks import costs, rows, timm_programs
from benchmarks.costs import ProcessCosts
from benchmarks.timm_programs import (
    DATA,
    PYTHON,
    TIMM,
    WEIGHTS,
    timm_environment,
    timm_name,
    timm_versions,
)

flags.adopt_module_key_flags(timm_programs)  # --help shows them
_TURNS = flags.DEFINE_integer("turns", 3, "Of each program.", lower_bound=1)

TIMM_FLAGS = "--device=cpu --pretrained --workers=2"


def main(_: list[str]) -> None:
    """Evaluates with each program, turn after turn."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{folder}/xla"
        _record("vit_jax, cold", *ours(folder))
        for _ in range(_TURNS.value):
            _record("vit_jax", *ours(folder))
            _record(timm_name(), *timm(folder))


def _record(program: str, accuracy: float, run: ProcessCosts) -> None:
    data = Path(DATA.value)
    row = {
        "program": program,
        "data": data.name,
        "images": len(list(data.glob("*/*"))),
        "accuracy": round(accuracy, 5),
        "cpu_secs": round(run.cpu_secs, 1),
        "wall_secs": round(run.wall_secs, 1),
        "peak_mib": round(run.peak_bytes / 2**20),
        "load_average": round(os.getloadavg()[0], 1),
    }
    versions = None if program.startswith("vit_jax") else timm_versions()
    rows.record("evaluate_beside_timm", "vit_jax", "jax flax", row, versions=versions)


def ours(folder: str) -> tuple[float, ProcessCosts]:
    """An evaluation by this project; its accuracy."""
    file = Path(folder, "vit_jax.csv")
    arguments = [f"--checkpoint={WEIGHTS.value}", f"--data={DATA.value}", f"--csv={file}"]
    run = costs.of_python("-m", "vit_jax", "evaluate", *arguments, quiet=True)
    names, values = (line.split(",") for line in file.read_text().splitlines())
    (name,) = (name for name in names if name.endswith("/accuracy"))
    return float(values[names.index(name)]), run


def timm(folder: str) -> tuple[float, ProcessCosts]:
    """An evaluation by timm; its accuracy."""
    file = Path(folder, "timm.json")
    arguments = [
        str(Path(TIMM.value, "validate.py")), *TIMM_FLAGS.split(),
        f"--model=local-dir:{WEIGHTS.value}", f"--data-dir={DATA.value}",
        f"--results-file={file}", "--results-format=json",
    ]  # fmt: skip
    run = costs.of_python(
        *arguments, quiet=True, python=PYTHON.value, environment=timm_environment()
    )
    return json.loads(file.read_text())["top1"] / 100, run


if __name__ == "__main__":
    app.run(main)
