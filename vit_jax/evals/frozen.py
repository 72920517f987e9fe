"""Probes of frozen features, from one pass over a split to learn from and one to test.

Few-shot ridge regression, nearest neighbours, linear probes and the features' rank: see probes/.
Features of the same weights on the same images are kept on disk, and read again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.core import class_names, pytrees
from vit_jax.core.errors import UserError
from vit_jax.core.files import cache_dir
from vit_jax.core.schema.fields import field
from vit_jax.data import files, label_index
from vit_jax.data.source import NO_LABEL, Source, share_examples
from vit_jax.evals.kind import EvalConfig, EvalInputs, Progress, SplitReader, check_finite
from vit_jax.learning.losses import Objective
from vit_jax.probes import few_shot, logistic, neighbours
from vit_jax.probes.principal import rank_me

LIMIT_BYTES = 20 * 2**30  # of all kept features; those that were used longest ago go first

Labelled = tuple[np.ndarray, np.ndarray]  # features float32 [N, D], labels int32 [N]


@dataclasses.dataclass(frozen=True)
class FrozenConfig(EvalConfig):
    """Probes of the features; the model's own classes do not matter."""

    train_split: str = field(
        "train",
        "of the kind `frozen`, as all that follow: what shots are drawn from, and neighbours",
    )
    train_per_class: int | None = field(
        None,
        "only so many of its examples of each class, the same in every run; `None`: all",
        bounds=(1, 2**53),
    )
    shots: tuple[int, ...] = field(
        (1, 5, 10),
        "of [few-shot regression](evaluate.md#few-shot-regression); `()`: leave it out",
        bounds=(1, 2**20),
    )
    seeds: int = field(3, "draws of shots, whose accuracies are averaged", bounds=(1, 2**10))
    l2: float = field(1024.0, "of few-shot regression", bounds=(1e-30, 1e30))
    neighbours: tuple[int, ...] = field(
        (20,), "values of k; `()`: leave neighbours out", bounds=(1, 2**31)
    )
    temperature: float = field(0.07, "of the neighbours' votes", bounds=(1e-6, 1e6))
    probe_l2: tuple[float, ...] = field(
        (), "values that logistic regression chooses from; `()`: leave it out", bounds=(0, 1e6)
    )
    probe_lr: tuple[float, ...] = field(
        (),
        "learning rates that [a probe by SGD](evaluate.md#linear-probe) chooses from; `()`: "
        "leave it out",
        bounds=(1e-30, 1e6),
    )
    probe_epochs: int = field(10, "of SGD", bounds=(1, 2**20))

    def numbers(self) -> tuple[str, ...]:
        by_shots = [
            f"{n}shot_{number}"
            for n in self.shots
            for number in ("accuracy", "deviation", *(["chosen_l2_accuracy"] if n > 1 else []))
        ]
        by_neighbours = (f"knn{k}_accuracy" for k in self.neighbours)
        probe = ("probe_accuracy", "probe_l2") if self.probe_l2 else ()
        by_sgd = ("sgd_probe_accuracy", "sgd_probe_lr") if self.probe_lr else ()
        return (*by_shots, *by_neighbours, *probe, *by_sgd, "rank_me", "examples")

    @property
    def classifies_features(self) -> bool:
        """Returns whether there are numbers that take labels: all but the features' rank."""
        return bool(self.shots or self.neighbours or self.probe_l2 or self.probe_lr)

    def check_data(self, where: str, source: Source, train: Source | None = None) -> None:
        """UserError unless features of `source` can be classified by those of `train`."""
        assert train is not None
        for each in (train, source):
            if each.max_labels > 1:
                raise UserError(f"{where}: images of {each.name} have several labels, not one.")
        if share_examples(train, source):
            raise UserError(
                f"{where}.train_split={self.train_split!r} shares examples with "
                f"{where}.split={self.split!r}."
            )
        names, others = (one.class_names or () for one in (train, source))
        if train.num_classes != source.num_classes or not class_names.are_same(names, others):
            raise UserError(
                f"{where}.train_split has other classes than {where}.split: "
                f"{class_names.difference(names, others) or 'not as many'}."
            )
        if self.shots:
            few_shot.draw(
                label_index.find(train).labels,
                num_classes=train.num_classes,
                shots=max(self.shots),
                seed=0,
                class_names=train.class_names,
                field=f"{where}.shots",
            )
        if self.neighbours and train.num_examples < max(self.neighbours):
            raise UserError(
                f"{where}.neighbours={max(self.neighbours)} is more than the "
                f"{train.num_examples:,} examples of {where}.train_split."
            )

    def make(self, inputs: EvalInputs) -> Frozen:
        assert inputs.read_train is not None
        reads = (inputs.read_train, inputs.read)
        readers = [
            FeatureReader(read, inputs.objective, None if key is None else FeatureCache(*key))
            for read, key in zip(reads, inputs.cache_keys, strict=True)
        ]
        return Frozen(self, *readers, num_classes=inputs.num_classes)


class Frozen:
    """Scores parameters by their features."""

    def __init__(
        self, c: FrozenConfig, train: FeatureReader, test: FeatureReader, *, num_classes: int
    ):
        self._c, self._train, self._test, self._num_classes = c, train, test, num_classes

    def run(self, params: Any, progress: Progress, stop: Any) -> dict[str, float]:
        """Accuracies on the test split; and the rank of the features of the other one.

        "5shot_accuracy" is the mean over draws with the given l2, "5shot_deviation" their standard
        deviation, "5shot_chosen_l2_accuracy" the mean with each draw's l2 chosen on shots held out.
        Images without a label count for the rank alone. Nothing if bool(stop) becomes true
        meanwhile. UserError for a class with too few examples, for a split without labels, or for
        features that are not finite.
        """
        train = self._train.read(params, progress, stop)
        test = train and self._test.read(params, progress, stop)
        if train is None or test is None:
            return {}
        rank = rank_me(train[0])
        if self._c.classifies_features:
            train, test = self._train.labelled(train), self._test.labelled(test)
        numbers: dict[str, float] = {}
        for shots in self._c.shots:
            draws = [
                few_shot.evaluate(
                    train, test, num_classes=self._num_classes, shots=shots, seed=seed,
                    fixed_l2=self._c.l2,
                )
                for seed in range(self._c.seeds)
            ]  # fmt: skip
            fixed = [draw.fixed for draw in draws]
            numbers[f"{shots}shot_accuracy"] = float(np.mean(fixed))
            numbers[f"{shots}shot_deviation"] = float(np.std(fixed))
            if shots > 1:
                chosen = float(np.mean([draw.chosen for draw in draws]))
                numbers[f"{shots}shot_chosen_l2_accuracy"] = chosen
        if self._c.neighbours:
            accuracies = neighbours.accuracies(
                train,
                test,
                num_classes=self._num_classes,
                k=self._c.neighbours,
                temperature=self._c.temperature,
            )
            numbers |= {f"knn{k}_accuracy": accuracy for k, accuracy in accuracies.items()}
        if self._c.probe_l2:
            probe, l2 = logistic.fit_best(train, num_classes=self._num_classes, l2=self._c.probe_l2)
            numbers |= {"probe_accuracy": probe.accuracy(test), "probe_l2": l2}
        if self._c.probe_lr:
            probe, lr = logistic.best_of_sgd(
                train,
                num_classes=self._num_classes,
                learning_rates=self._c.probe_lr,
                epochs=self._c.probe_epochs,
            )
            numbers |= {"sgd_probe_accuracy": probe.accuracy(test), "sgd_probe_lr": lr}
        return numbers | {"rank_me": rank, "examples": float(len(test[1]))}


class FeatureReader:
    """Reads a split with parameters; every process gets the features of all examples."""

    def __init__(
        self,
        read: Callable[..., SplitReader],
        objective: Objective,
        cache: FeatureCache | None = None,
    ):
        def features(model: Any, batch: Any) -> dict[str, Any]:
            x = model.features(objective.images(batch)).astype(jnp.float32)
            return {"features": x, "labels": batch["labels"][:, 0]}

        self._split, self._cache = read(features), cache

    def read(self, params: Any, progress: Progress, stop: Any) -> Labelled | None:
        """Features and labels; bad images that are skipped and padding are left out.

        A label may be NO_LABEL. None if bool(stop) becomes true meanwhile. UserError if no image is
        left, or if features are not finite.
        """
        kept = self._cache.read(params) if self._cache else None
        if kept is not None:
            return kept
        arrays = self._split.read(params, progress, stop)
        if arrays is None:
            return None
        x, labels = arrays["features"], arrays["labels"]
        if not len(x):
            raise UserError(
                f"{self._split.where}: all {self._split.num_examples:,} images are bad."
            )
        check_finite(x, self._split.where)
        if self._cache:
            self._cache.write(params, (x, labels))
        return x, labels

    def labelled(self, features: Labelled) -> Labelled:
        """The examples that have a label. UserError if none has."""
        x, labels = features
        there = labels != NO_LABEL
        if not there.any():
            raise UserError(f"{self._split.where}: none of its {len(labels):,} images has a label.")
        return features if there.all() else (x[there], labels[there])


class FeatureCache:
    """The features of one split, by the weights that made them.

    A file is named after a hash of the parameters' names and bits and of `of_data`; one that cannot
    be read counts as missing. Several processes keep nothing: none has all parameters.

    Args:
      of_data: whatever features depend on beside the parameters: images, their preparation, model.
      limit_bytes: of the folder.
    """

    def __init__(self, *of_data: str, limit_bytes: int = LIMIT_BYTES):
        self._of_data, self._limit_bytes = of_data, limit_bytes

    def path(self, params: Any) -> Path:
        """The folder that keeps the features of these parameters."""
        checksum = hashlib.sha256()
        for text in self._of_data:
            checksum.update(hashlib.sha256(text.encode(errors="surrogateescape")).digest())
        for name, array in sorted(pytrees.flatten(params).items()):
            checksum.update(f"{name} {array.dtype} {array.shape}".encode())
            checksum.update(np.ravel(jax.device_get(array)).view(np.uint8).data)
        return cache_dir() / "features" / f"{checksum.hexdigest()}.npz"

    def read(self, params: Any) -> Labelled | None:
        """Kept features and labels; None if there are none."""
        if jax.process_count() > 1:
            return None
        path = self.path(params)
        try:
            with np.load(path) as arrays:
                labelled = arrays["features"], arrays["labels"]
            os.utime(path)  # it was used now
            return labelled
        except files.NPZ_FAULTS:
            return None

    def write(self, params: Any, labelled: Labelled) -> None:
        """Keeps them; where there is no room, or they exceed the limit, they are not kept."""
        if jax.process_count() > 1 or sum(x.nbytes for x in labelled) > self._limit_bytes:
            return
        path = self.path(params)
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.write_npz(path, features=labelled[0], labels=labelled[1])
            _forget(path, self._limit_bytes)


def _forget(newest: Path, limit_bytes: int) -> None:
    """Deletes the files used longest ago, but for `newest`, until all fit into the limit."""
    cached = [(newest.stat().st_size, newest)]
    others = ((file.stat(), file) for file in newest.parent.glob("*.npz") if file != newest)
    for status, file in sorted(others, key=lambda each: -each[0].st_mtime_ns):
        cached.append((status.st_size, file))
        if sum(size for size, _ in cached) > limit_bytes:
            cached.pop()
            file.unlink(missing_ok=True)
