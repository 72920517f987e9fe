"""What frozen features are worth, from one pass over a split to learn from and one to test.

Few-shot ridge regression, nearest neighbours and the features' rank: see probes/.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from vit_jax.core import class_names, errors
from vit_jax.core.schema.fields import field
from vit_jax.data.order import label_index
from vit_jax.data.source import Source, share_examples
from vit_jax.probes import few_shot, logistic, neighbours
from vit_jax.probes.rank import rank_me
from vit_jax.training.evals.features import FeatureReader
from vit_jax.training.evals.kind import EvalConfig, EvalInputs

FROZEN = "frozen"


@dataclasses.dataclass(frozen=True)
class FrozenConfig(EvalConfig):
    """What the features are worth; the model's own classes do not matter."""

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
        """The names of the numbers that `run` returns."""
        by_shots = [
            f"{n}shot_{number}"
            for n in self.shots
            for number in ("accuracy", "deviation", *(["chosen_l2_accuracy"] if n > 1 else []))
        ]
        by_neighbours = (f"knn{k}_accuracy" for k in self.neighbours)
        probe = ("probe_accuracy", "probe_l2") if self.probe_l2 else ()
        by_sgd = ("sgd_probe_accuracy", "sgd_probe_lr") if self.probe_lr else ()
        return (*by_shots, *by_neighbours, *probe, *by_sgd, "rank_me", "examples")

    def check_data(self, where: str, source: Source, train: Source | None = None) -> None:
        """UserError unless features of `source` can be classified by those of `train`."""
        assert train is not None
        for each in (train, source):
            if each.max_labels > 1:
                raise errors.UserError(
                    f"{where}: images of {each.name} have up to {each.max_labels} labels; features "
                    "are compared by one label of each image."
                )
        if share_examples(train, source):
            raise errors.UserError(
                f"{where}.train_split={self.train_split!r} and {where}.split={self.split!r} "
                "share examples: what is learnt from them would be scored by itself. Give splits "
                "without common examples."
            )
        names, others = (one.class_names or () for one in (train, source))
        if train.num_classes != source.num_classes or not class_names.are_same(names, others):
            raise errors.UserError(
                f"{where}.train_split has other classes than {where}.split: "
                f"{class_names.difference(names, others) or 'not as many'}."
            )
        if self.shots:
            labels = label_index.find(train).labels
            try:
                few_shot.draw(
                    labels,
                    num_classes=train.num_classes,
                    shots=max(self.shots),
                    seed=0,
                    class_names=train.class_names,
                )
            except errors.UserError as error:
                raise errors.UserError(
                    f"{where}.shots={self.shots} of {where}.train_split={self.train_split!r}: "
                    f"{error}"
                ) from error
        if self.neighbours and train.num_examples < max(self.neighbours):
            raise errors.UserError(
                f"{where}.neighbours={max(self.neighbours)}: {where}.train_split has "
                f"{train.num_examples:,} examples. Give fewer."
            )

    def make(self, inputs: EvalInputs) -> Frozen:
        """Reads the split that shots are drawn from, and neighbours, and the one to score."""
        assert inputs.read_train is not None
        reads = (inputs.read_train, inputs.read)
        readers = [
            FeatureReader(read, inputs.objective, cache)
            for read, cache in zip(reads, inputs.caches, strict=True)
        ]
        return Frozen(self, *readers, num_classes=inputs.num_classes)


class Frozen:
    """Scores parameters by their features."""

    def __init__(
        self, c: FrozenConfig, train: FeatureReader, test: FeatureReader, *, num_classes: int
    ):
        self._c, self._train, self._test, self._num_classes = c, train, test, num_classes

    def run(self, params: Any, progress: Callable[[int, int], None], stop: Any) -> dict[str, float]:
        """Accuracies on the test split; and the rank of the features of the other one.

        "5shot_accuracy" is the mean over draws with the given l2, "5shot_deviation" their standard
        deviation, "5shot_chosen_l2_accuracy" the mean with each draw's l2 chosen on shots held out.
        Nothing if bool(stop) becomes true meanwhile. UserError for a class with too few examples,
        or for features that are not finite.
        """
        train = self._train.read(params, progress, stop)
        test = train and self._test.read(params, progress, stop)
        if train is None or test is None:
            return {}
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
            found = neighbours.accuracies(
                train,
                test,
                num_classes=self._num_classes,
                k=self._c.neighbours,
                temperature=self._c.temperature,
            )
            numbers |= {f"knn{k}_accuracy": accuracy for k, accuracy in found.items()}
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
        rank = rank_me(train[0])
        return numbers | {"rank_me": rank, "examples": float(len(test[1]))}
