"""The gain from pre-training on CIFAR-10: five classes first, then the other five.

    python -m benchmarks.transfer --data_dir data/cifar10

With the model of configs/vit_cifar10.py:cpu, for each seed: pre-trains on images of five classes;
fine-tunes on the other five, with a fresh head; trains on these from random weights, with the same
steps, rates and images. The seed decides which five come first. All by `python -m vit_jax.train` on
image folders written from the data set. Appends a row per seed, with the accuracies on the test
split of the other five classes, to benchmarks/results/transfer.csv.
"""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from absl import flags

from benchmarks import rows
from vit_jax.core import command
from vit_jax.data.sources import table as sources

_DATA_DIR = flags.DEFINE_string("data_dir", None, "CIFAR-10 in TFDS layout.", required=True)
_SEEDS = flags.DEFINE_integer("seeds", 3, "How many, from 0.")
_PRETRAINING_STEPS = flags.DEFINE_integer("pretraining_steps", 800, "On the first five classes.")
_STEPS = flags.DEFINE_integer("steps", 200, "On the other five, either way.")

_WARMUP_SHARE = 0.1  # in steps
_READ = 1000  # number of examples at a time


def main(_: list[str]) -> None:
    """Measures, prints and records."""
    for seed in range(_SEEDS.value):
        with tempfile.TemporaryDirectory() as folder:
            measure(seed, Path(folder))


def measure(seed: int, folder: Path) -> None:
    """Trains for one seed; returns its row."""
    classes = list(range(10))
    random.Random(seed).shuffle(classes)
    first, others = sorted(classes[:5]), sorted(classes[5:])
    for name, chosen in (("first", first), ("others", others)):
        for split in ("train", "test"):
            write_folder(folder / name / split, split, chosen)

    train(seed, folder / "first", folder / "pretrained", _PRETRAINING_STEPS.value)
    init = (f"init.weights={folder / 'pretrained'}", "init.head=reset")
    tuned = train(seed, folder / "others", folder / "tuned", _STEPS.value, *init)
    scratch = train(seed, folder / "others", folder / "scratch", _STEPS.value)
    row = {
        "seed": seed,
        "first_classes": " ".join(map(str, first)),
        "pretraining_steps": _PRETRAINING_STEPS.value,
        "steps": _STEPS.value,
        "fine_tuned_accuracy": round(tuned, 4),
        "from_scratch_accuracy": round(scratch, 4),
        "margin": round(tuned - scratch, 4),
    }
    rows.record("transfer", "vit_jax configs/vit_cifar10.py", "jax tensorflow tensorflow-cpu", row)


def write_folder(folder: Path, split: str, classes: list[int]) -> None:
    """Writes the images of `classes`, encoded as they are, as an image folder."""
    source = sources.create(
        "tfds",
        sources.Request(data_dir=_DATA_DIR.value, split=split, image_size=(32, 32), where="input"),
    )
    for label in classes:
        (folder / str(label)).mkdir(parents=True)
    for start in range(0, source.num_examples, _READ):
        indices = np.arange(start, min(start + _READ, source.num_examples))
        for index, example in zip(indices, source.read(indices), strict=True):
            (label,) = example.labels
            if label in classes:
                (folder / str(label) / f"{index:05}.jpg").write_bytes(example.image)


def train(seed: int, data: Path, workdir: Path, steps: int, *overrides: str) -> float:
    """Trains and returns the accuracy on the folder's test split."""
    every = (
        "input.source=image_folder", f"input.data_dir={data}", "input.num_examples=none",
        "input.num_classes=none", "total.epochs=none", f"total.steps={steps}",
        "optim.warmup_epochs=none", f"optim.warmup_steps={round(_WARMUP_SHARE * steps)}",
        f"seed={seed}", f"checkpoint.every_steps={steps}", "log.tensorboard=false", *overrides,
    )  # fmt: skip
    subprocess.run(
        [
            sys.executable, "-m", "vit_jax.train", "--config", "configs/vit_cifar10.py:cpu",
            "--workdir", str(workdir), *(f"--config.{override}" for override in every),
        ],
        check=True,
    )  # fmt: skip
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return json.loads(lines[-1])["test/accuracy"]


if __name__ == "__main__":
    command.run(main)
