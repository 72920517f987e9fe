"""The table of evaluations, config.evals.<name>.kind, and those of a run, each with its cadence."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any

from vit_jax.core.schema import entry_points
from vit_jax.evals.kind import EvalConfig, Evaluator
from vit_jax.learning.clock import Cadence

NamedProgress = Callable[[str, int, int], None]  # name, batches done, batches in all
Stop = Any  # its bool is whether a stop was requested

CLASSIFICATION, FROZEN, PICTURES = "classification", "frozen", "pictures"

KINDS = entry_points.Parts[type[EvalConfig]](
    "evaluators",
    {
        CLASSIFICATION: "vit_jax.evals.classification:ClassificationConfig",
        "depth": "vit_jax.evals.depth:DepthConfig",
        FROZEN: "vit_jax.evals.frozen:FrozenConfig",
        PICTURES: "vit_jax.evals.pictures:PicturesConfig",
        "segmentation": "vit_jax.evals.segmentation:SegmentationConfig",
    },
)


def find(kind: str) -> type[EvalConfig]:
    """The dataclass of a kind's fields; what all kinds have if there is none of this name."""
    return KINDS.find(kind) or EvalConfig


@dataclasses.dataclass(frozen=True)
class Evals:
    """The evaluations of a run, each with its own cadence."""

    by_name: Mapping[str, tuple[Evaluator, Cadence]]
    _pictures: dict[str, bytes] = dataclasses.field(default_factory=dict, init=False)

    def take_pictures(self) -> dict[str, bytes]:
        """PNG files drawn since the last call, by "<eval name><ending>/<picture>"."""
        pictures = dict(self._pictures)
        self._pictures.clear()
        return pictures

    def due(self, step: int) -> bool:
        """Returns whether any evaluation is due after `step`."""
        return any(due(step) for _, due in self.by_name.values())

    def run(
        self,
        step: int,
        weights: Mapping[str, Any],
        progress: NamedProgress,
        stop: Stop = False,
        barriers_around: Callable[[str], AbstractContextManager[Any]] = contextlib.nullcontext,
        done: Collection[str] = (),
        last: bool = False,
    ) -> dict[str, float]:
        """Runs the evaluations due after `step`; returns "<eval name><ending>/<number>" -> number.

        Args:
          weights: parameters by the ending of their results' names; see StateLayout.weights.
          stop: ends early once bool(stop) is true.
          barriers_around: name of an evaluation -> a context that all processes enter and leave
            at the same time.
          done: names of numbers that are known; evaluations that have one of them are skipped.
          last: whether all are due, since no further step follows.
        """
        results: dict[str, float] = {}
        for name, (evaluator, due) in self.by_name.items():
            for ending, params in weights.items():
                label = f"{name}{ending}"
                if (last or due(step)) and not any(key.startswith(f"{label}/") for key in done):
                    report = functools.partial(progress, label)
                    with barriers_around(f"evaluation {label} of step {step}"):
                        numbers = evaluator.run(params, report, stop)
                    for key, value in numbers.items():
                        if isinstance(value, bytes):
                            self._pictures[f"{label}/{key}"] = value
                        else:
                            results[f"{label}/{key}"] = float(value)
        return results
