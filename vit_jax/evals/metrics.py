"""Further numbers of a classification, by name: evals.NAME.metrics=balanced_accuracy."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.core.schema import entry_points
from vit_jax.evals.kind import Arrays


@dataclasses.dataclass(frozen=True)
class Metric:
    """A number of a split; each extends it, with fields in the section of the evaluation."""

    @entry_points.left_open
    def of_batch(self, logits: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
        """Logits [B, C] and bool [B, C], which are labels -> arrays by name, [B, ...]; traced."""
        raise NotImplementedError

    @entry_points.left_open
    def of_split(self, arrays: Arrays) -> float:
        """These arrays of all images with a label, NumPy [N, ...] -> the number."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class BalancedAccuracy(Metric):
    """The mean of classes' accuracies, of those that occur; of several labels the first counts."""

    def of_batch(self, logits: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
        label, predicted = jnp.argmax(labels, axis=-1), jnp.argmax(logits, axis=-1)
        return {"label": label, "correct": label == predicted}

    def of_split(self, arrays: Arrays) -> float:
        images = np.bincount(arrays["label"])
        correct = np.bincount(arrays["label"], arrays["correct"])
        return float(np.mean(correct[images > 0] / images[images > 0]))


METRICS = entry_points.Parts[type[Metric]](
    "metrics", {"balanced_accuracy": "vit_jax.evals.metrics:BalancedAccuracy"}
)


def make(name: str, section: Any) -> Metric:
    """The metric of this name, with its fields in the section of an evaluation."""
    cls = METRICS.get_named("evals.NAME.metrics", name)
    return cls(**{field.name: getattr(section, field.name) for field in dataclasses.fields(cls)})
