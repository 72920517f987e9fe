"""A model's features of every example of a split, computed or kept from an earlier time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.training.evals.feature_cache import FeatureCache, Labelled
from vit_jax.training.evals.split_reader import Progress, SplitReader
from vit_jax.training.objective import Objective


class FeatureReader:
    """Reads a split with parameters; every process gets the features of all examples.

    Args:
      read: makes the SplitReader.
      objective: normalises the images.
      cache: keeps the features; None: they are computed each time.
    """

    def __init__(
        self,
        read: Callable[..., SplitReader],
        objective: Objective,
        cache: FeatureCache | None = None,
    ):
        def features(model: Any, batch: Any) -> dict[str, Any]:
            found = model.features(objective.images(batch)).astype(jnp.float32)
            return {"features": found, "labels": batch["labels"][:, 0]}

        self._split, self._cache = read(features), cache

    def read(self, params: Any, progress: Progress, stop: Any) -> Labelled | None:
        """Features and labels; bad images that are skipped and padding are left out.

        None if bool(stop) becomes true meanwhile. UserError if no image is left, or if features are
        not finite.
        """
        kept = self._cache.read(params) if self._cache else None
        if kept is not None:
            return kept
        found = self._split.read(params, progress, stop)
        if found is None:
            return None
        x, labels = found["features"], found["labels"]
        if not len(x):
            raise UserError(
                f"{self._split.where}: all of its {self._split.num_examples:,} images are bad."
            )
        bad = np.flatnonzero(~np.isfinite(x).all(axis=1))
        if len(bad):
            raise UserError(
                f"{self._split.where}: the features of {len(bad):,} of {len(x):,} examples are not "
                f"finite, the first of them number {found['index'][bad[0]]}: the weights are "
                "damaged, or the training diverged."
            )
        if self._cache:
            self._cache.write(params, (x, labels))
        return x, labels
