"""How long scaling laws take to fit, and how far they extrapolate.

    python -m benchmarks.scaling_laws
    python -m benchmarks.scaling_laws --curves benchmark.vision.csv

The curves are the six of the tests, or all of a file with the columns of arXiv 2209.06640's data
(revisiting_neural_scaling_laws/data/benchmark.vision.csv of google-research/google-research). Each
gets all forms, and an interval for each at 41 places, as in a study. Appends a row to
benchmarks/results/scaling_laws.csv.
"""

import csv
import os
import time
from pathlib import Path

import numpy as np
from absl import flags

from benchmarks import rows
from vit_jax.core import command
from vit_jax.core.errors import UserError
from vit_jax.probes import scaling_law
from vit_jax.probes.scaling_law import ScalingLaw

_CURVES = flags.DEFINE_string("curves", "tests/probes/few_shot_curves.csv", "The file.")
PUBLISHED = 72  # curves of image classification that the paper has


def read(file: Path) -> dict[tuple[str, str], np.ndarray]:
    """The curves by model and task: examples seen, loss and 1 for points to fit, [3, n] each."""
    points: dict[tuple[str, str], list[list[float]]] = {}
    with file.open() as opened:
        for row in csv.DictReader(opened):
            numbers = [float(row[name]) for name in ("Seen Examples", "Loss", "Training")]
            points.setdefault((row["Model"], row["Task"]), []).append(numbers)
    return {name: np.array(each).T for name, each in points.items()}


def held_out_error(law: ScalingLaw, x: np.ndarray, loss: np.ndarray) -> float:
    """Root mean square of log(law(x) / loss) over points beyond the fit, the paper's error."""
    return float(np.sqrt(np.mean((np.log(law(x)) - np.log(loss)) ** 2)))


def main(_: list[str]) -> None:
    """Measures, prints and records."""
    curves = read(Path(_CURVES.value))
    errors: dict[str, list[float]] = {form: [] for form in scaling_law.PARAMETERS}
    fit_secs = interval_secs = 0.0
    without = 0
    for curve in curves.values():
        x, loss = curve[:2, curve[2] == 1]
        held_out = curve[:2, curve[2] == 0]
        for form, each in errors.items():
            began = time.process_time()
            law = scaling_law.fit(x, loss, form)
            fit_secs += time.process_time() - began
            each.append(held_out_error(law, *held_out))
            began = time.process_time()
            try:
                scaling_law.interval(law, x, loss, np.geomspace(x[0], 10 * x[-1], 41))
            except UserError:
                without += 1
            interval_secs += time.process_time() - began
    scale = PUBLISHED / len(curves)
    row = {
        "curves": len(curves),
        "forms": len(errors),
        "fit_cpu_seconds": round(fit_secs, 2),
        "interval_cpu_seconds": round(interval_secs, 2),
        "without_interval": without,
        "72_curves_on_2_cores_seconds": round((fit_secs + interval_secs) * scale / 2, 1),
        **{f"error_{form}": round(float(np.mean(each)), 4) for form, each in errors.items()},
        "load_average": round(os.getloadavg()[0], 1),
    }
    rows.record("scaling_laws", "vit_jax/probes", "numpy scipy", row)


if __name__ == "__main__":
    command.run(main)
