"""What frozen features are worth, from one pass over a split to learn from and one to test.

Few-shot ridge regression, nearest neighbours and the features' rank: see probes/.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vit_jax.probes import few_shot, logistic, neighbours
from vit_jax.probes.rank import rank_me
from vit_jax.training.evals.features import FeatureReader


class Frozen:
    """Scores parameters by their features.

    Args:
      train: reads the split that shots are drawn from, and neighbours. test: reads the split that
      is scored. num_classes: the data's; the model's own classes do not matter. shots: of few-shot
      regression; none: leave it out. seeds: how many draws of shots; their mean is reported. l2: of
      few-shot regression. neighbours: the values of k; none: leave nearest neighbours out.
      temperature: of their votes. probe_l2: of logistic regression by L-BFGS, chosen from these on
      examples held out; none: leave it out. probe_lr: the same of SGD, for probe_epochs.
    """

    def __init__(
        self,
        *,
        train: FeatureReader,
        test: FeatureReader,
        num_classes: int,
        shots: Sequence[int],
        seeds: int,
        l2: float,
        neighbours: Sequence[int],
        temperature: float,
        probe_l2: Sequence[float],
        probe_lr: Sequence[float],
        probe_epochs: int,
    ):
        self._train, self._test, self._num_classes = train, test, num_classes
        self._shots, self._seeds, self._l2 = shots, seeds, l2
        self._neighbours, self._temperature = neighbours, temperature
        self._probe_l2, self._probe_lr, self._probe_epochs = probe_l2, probe_lr, probe_epochs

    @staticmethod
    def numbers_of(
        shots: Sequence[int],
        neighbours: Sequence[int],
        probe_l2: Sequence[float],
        probe_lr: Sequence[float],
    ) -> tuple[str, ...]:
        """The names of the numbers that `run` returns."""
        by_shots = [
            f"{n}shot_{number}"
            for n in shots
            for number in ("accuracy", "deviation", *(["chosen_l2_accuracy"] if n > 1 else []))
        ]
        by_neighbours = (f"knn{k}_accuracy" for k in neighbours)
        probe = ("probe_accuracy", "probe_l2") if probe_l2 else ()
        by_sgd = ("sgd_probe_accuracy", "sgd_probe_lr") if probe_lr else ()
        return (*by_shots, *by_neighbours, *probe, *by_sgd, "rank_me", "examples")

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
        for shots in self._shots:
            draws = [
                few_shot.evaluate(
                    train, test, num_classes=self._num_classes, shots=shots, seed=seed,
                    fixed_l2=self._l2,
                )
                for seed in range(self._seeds)
            ]  # fmt: skip
            fixed = [draw.fixed for draw in draws]
            numbers[f"{shots}shot_accuracy"] = float(np.mean(fixed))
            numbers[f"{shots}shot_deviation"] = float(np.std(fixed))
            if shots > 1:
                chosen = float(np.mean([draw.chosen for draw in draws]))
                numbers[f"{shots}shot_chosen_l2_accuracy"] = chosen
        if self._neighbours:
            found = neighbours.accuracies(
                train,
                test,
                num_classes=self._num_classes,
                k=self._neighbours,
                temperature=self._temperature,
            )
            numbers |= {f"knn{k}_accuracy": accuracy for k, accuracy in found.items()}
        if self._probe_l2:
            probe, l2 = logistic.fit_best(train, num_classes=self._num_classes, l2=self._probe_l2)
            numbers |= {"probe_accuracy": probe.accuracy(test), "probe_l2": l2}
        if self._probe_lr:
            probe, lr = logistic.best_of_sgd(
                train,
                num_classes=self._num_classes,
                learning_rates=self._probe_lr,
                epochs=self._probe_epochs,
            )
            numbers |= {"sgd_probe_accuracy": probe.accuracy(test), "sgd_probe_lr": lr}
        rank = rank_me(train[0])
        return numbers | {"rank_me": rank, "examples": float(len(test[1]))}
