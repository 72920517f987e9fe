"""What trained weights' features are worth on a data set, beside scikit-learn on the same features.

    python -m benchmarks.frozen_features --checkpoint WEIGHTS --data_dir data/cifar10

Runs `vit-jax evaluate`, with nothing kept from before: nearest neighbours, 10-shot ridge
regression, and a linear probe by L-BFGS. Then scikit-learn classifies the features that it kept.
Shots, and the l2 of the probe, are the same for both. Needs scikit-learn. Appends a row to
benchmarks/results/frozen_features.csv.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags
from sklearn import linear_model, neighbors, preprocessing

from benchmarks import rows
from vit_jax.core import command
from vit_jax.probes import few_shot, logistic

_CHECKPOINT = flags.DEFINE_string("checkpoint", None, "Weights.", required=True)
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Data set in TFDS layout.", required=True)
_TRAIN = flags.DEFINE_string("train_split", "train", "To learn from.")
_TEST = flags.DEFINE_string("split", "test", "To score.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "Images computed at once.")

_SHOTS, _SEEDS, _NEIGHBOURS, _TEMPERATURE, _L2 = 10, 3, 20, 0.07, 1024.0
_PROBE_L2 = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)


def main(_: list[str]) -> None:
    """Measures, prints and records."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        ours = evaluate(Path(folder))
        first = time.perf_counter() - began
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        evaluate(Path(folder))
        again = time.perf_counter() - began - first
        kept = (Path(folder) / "vit_jax/features").glob("*.npz")
        files = sorted(kept, key=lambda file: -file.stat().st_size)  # the training split first
        train, test = ([np.load(file)[name] for name in ("features", "labels")] for file in files)
    row = {
        "weights": Path(_CHECKPOINT.value).name,
        "data": Path(_DATA_DIR.value).name,
        "train_examples": len(train[1]),
        "examples": len(test[1]),
        "seconds": round(first),
        "cpu_seconds": round(used.ru_utime + used.ru_stime),
        "seconds_again": round(again, 1),
        "load_average": round(os.getloadavg()[0], 1),
    }
    for name, independent in sklearn_accuracies(train, test, ours["probe_l2"]):
        row[name] = round(ours[name], 5)
        row[f"{name}_sklearn"] = round(independent, 5)
    versions = "jax scipy scikit-learn"
    rows.record("frozen_features", "vit_jax/probes vit_jax/evaluate", versions, row)


def evaluate(cache: Path) -> dict[str, float]:
    """The numbers of the command, without what comes before their names' slash."""
    fields = {
        "train_split": _TRAIN.value,
        "split": _TEST.value,
        "shots": f"[{_SHOTS}]",
        "seeds": _SEEDS,
        "l2": _L2,
        "neighbours": f"[{_NEIGHBOURS}]",
        "temperature": _TEMPERATURE,
        "probe_l2": "[" + ",".join(map(str, _PROBE_L2)) + "]",
    }
    done = subprocess.run(
        [
            sys.executable, "-m", "vit_jax", "evaluate", "--checkpoint", _CHECKPOINT.value,
            "--json",
            "--data", f"features={_DATA_DIR.value}", "--kinds=frozen",
            f"--batch_size={_BATCH_SIZE.value}",
            *(f"--config.evals.features.{field}={value}" for field, value in fields.items()),
        ],
        stdout=subprocess.PIPE,
        env=os.environ | {"XDG_CACHE_HOME": str(cache)},
        check=True,
    )  # fmt: skip
    return {name.rpartition("/")[2]: value for name, value in json.loads(done.stdout).items()}


def sklearn_accuracies(train: Any, test: Any, probe_l2: float) -> Iterator[tuple[str, float]]:
    """scikit-learn's accuracies, by the names that `vit-jax evaluate` gives its own."""
    num_classes = int(train[1].max()) + 1
    vote: Callable[[np.ndarray], np.ndarray] = lambda distance: np.exp(
        (1 - distance.astype(np.float64)) / _TEMPERATURE
    )
    nearest = neighbors.KNeighborsClassifier(
        _NEIGHBOURS, metric="cosine", algorithm="brute", weights=vote
    )
    yield f"knn{_NEIGHBOURS}_accuracy", nearest.fit(*train).score(*test)

    drawn = []
    for seed in range(_SEEDS):
        shots = few_shot.draw(train[1], num_classes=num_classes, shots=_SHOTS, seed=seed).ravel()
        scaler = preprocessing.StandardScaler().fit(train[0][shots].astype(np.float64))
        # To shrink the bias a little, as the authors' evaluator does, it has to be a feature.
        x, of_test = (
            np.pad(scaler.transform(each), ((0, 0), (0, 1)), constant_values=few_shot.BIAS)
            for each in (train[0][shots], test[0])
        )
        ridge = linear_model.Ridge(_L2, fit_intercept=False)
        ridge.fit(x, np.where(np.eye(num_classes)[train[1][shots]] > 0, 1.0, -1.0))
        drawn.append(np.mean(ridge.predict(of_test).argmax(axis=1) == test[1]))
    yield f"{_SHOTS}shot_accuracy", float(np.mean(drawn))

    scaler = preprocessing.StandardScaler().fit(train[0].astype(np.float64))
    regression = linear_model.LogisticRegression(
        C=1 / (probe_l2 * len(train[1])), tol=logistic.TOLERANCE, max_iter=1000
    )
    regression.fit(scaler.transform(train[0].astype(np.float64)), train[1])
    yield "probe_accuracy", regression.score(scaler.transform(test[0].astype(np.float64)), test[1])


if __name__ == "__main__":
    command.run(main)
