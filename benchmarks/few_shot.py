"""How long few-shot regression takes to solve for all values of l2.

    python -m benchmarks.few_shot --classes 1000 --shots 25 --width 1024

Features are random; scoring a test set is not part of it. Appends a row to
benchmarks/results/few_shot.csv.
"""

import os
import time

import numpy as np
from absl import flags

from benchmarks import rows
from vit_jax.core import command
from vit_jax.probes import few_shot

_CLASSES = flags.DEFINE_integer("classes", 1000, "How many.", lower_bound=2)
_SHOTS = flags.DEFINE_integer("shots", 25, "Examples of each class.", lower_bound=1)
_WIDTH = flags.DEFINE_integer("width", 1024, "Dimensions of a feature.", lower_bound=1)
_SEEDS = flags.DEFINE_integer("seeds", 3, "Draws of shots.", lower_bound=1)


def main(_: list[str]) -> None:
    """Measures, prints and records."""
    classes, shots = _CLASSES.value, _SHOTS.value
    labels = np.repeat(np.arange(classes), 2 * shots)
    numbers = np.random.default_rng(0)
    features = numbers.normal(size=(len(labels), _WIDTH.value)).astype(np.float32)
    began, cpu_began = time.perf_counter(), time.process_time()
    for seed in range(_SEEDS.value):
        drawn = few_shot.draw(labels, num_classes=classes, shots=shots, seed=seed).ravel()
        found = few_shot.factorise(features[drawn], labels[drawn], classes)
        for l2 in few_shot.L2_TO_CHOOSE:
            found.solve(l2)
    row = {
        "classes": classes,
        "shots": shots,
        "width": _WIDTH.value,
        "seeds": _SEEDS.value,
        "values_of_l2": len(few_shot.L2_TO_CHOOSE),
        "seconds": round(time.perf_counter() - began, 2),
        "cpu_seconds": round(time.process_time() - cpu_began, 2),
        "load_average": round(os.getloadavg()[0], 1),
    }
    rows.record("few_shot", "vit_jax/probes", "numpy scipy", row)


if __name__ == "__main__":
    command.run(main)
