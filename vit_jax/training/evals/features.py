"""A model's features of every example of a split, on the host: each once, in the split's order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from vit_jax.core import axes
from vit_jax.core.errors import UserError
from vit_jax.parallel import mesh as meshes
from vit_jax.training.evals.feature_cache import FeatureCache, Labelled
from vit_jax.training.objective import Batch, Objective


class FeatureReader:
    """Reads a split with parameters.

    The model runs on the mesh, as in training; every process gets the features of all examples.

    Args:
      graph: merges with the parameters to a model.
      mesh: the mesh of the parameters.
      objective: normalises the images.
      open_feed: opens the split anew: a feed of batches, and their number.
      num_examples: number of examples in the whole split, on all hosts.
      where: the section of the config, for messages.
      cache: keeps the features; None: they are computed each time.
    """

    def __init__(
        self,
        *,
        graph: nnx.GraphDef,
        mesh: Mesh,
        objective: Objective,
        open_feed: Callable[[], tuple[Any, int]],
        num_examples: int,
        where: str,
        cache: FeatureCache | None = None,
    ):
        self._open_feed, self._num_examples, self._where = open_feed, num_examples, where
        self._mesh, self._cache = mesh, cache

        def features(params: Any, batch: Batch) -> tuple[jax.Array, jax.Array, jax.Array]:
            found = nnx.merge(graph, params).features(objective.images(batch))
            return found.astype(jnp.float32), batch["labels"][:, 0], batch["weight"]

        self._features = jax.jit(features, out_shardings=meshes.replicated(mesh))

    def read(self, params: Any, progress: Callable[[int, int], None], stop: Any) -> Labelled | None:
        """Features and labels; bad images that are skipped and padding are left out.

        None if bool(stop) becomes true meanwhile. UserError if no image is left.
        """
        kept = self._cache.read(params) if self._cache else None
        if kept is not None:
            return kept
        parts: list[list[np.ndarray]] = []
        pending: list[Any] = []
        feed, num_batches = self._open_feed()

        def settle(keep: int) -> None:
            """Brings results to the host, all but the newest `keep`."""
            while len(pending) > keep:
                x, labels, weight = jax.device_get(pending.pop(0))
                parts.append([x[weight > 0], labels[weight > 0]])

        with feed, jax.set_mesh(self._mesh), axes.use_rules(meshes.RULES):
            for done, batch in enumerate(feed, start=1):
                pending.append(self._features(params, batch))
                settle(1)  # bounds the batches in flight
                progress(done, num_batches)
                if stop:
                    return None
            settle(0)
        x, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        if not len(x):
            raise UserError(f"{self._where}: all of its {self._num_examples:,} images are bad.")
        if self._cache:
            self._cache.write(params, (x, labels))
        return x, labels
