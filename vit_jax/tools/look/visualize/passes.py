"""What a model computes of many images: features, logits, and small copies to show them by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from vit_jax.core.errors import UserError
from vit_jax.models.observe import chunks
from vit_jax.tools.look.visualize.photos import Photos

THUMBNAIL = 56  # pixels, the longer side
Progress = Callable[[str, int, int], None]  # what, done, in all


class Seen(NamedTuple):
    """What a model makes of N images.

    Attributes:
      features: [N, D] float32, the head's input.
      logits: [N, C] float32; None without a head.
      thumbnails: uint8 [N, h, w, 3].
    """

    features: np.ndarray
    logits: np.ndarray | None
    thumbnails: np.ndarray


def look(model: Any, photos: Photos, progress: Progress) -> Seen:
    """Features and logits of all photos, in chunks.

    UserError for a damaged image, or for features or logits that are not finite.
    """

    def compute(model: Any, images: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        features = model.features(images)
        logits = model.classify(features) if model.num_classes else None
        return features.astype(jnp.float32), logits

    thumbnails: list[np.ndarray] = []

    def shown() -> Iterator[np.ndarray]:
        for done, image in enumerate(photos.inputs(), start=1):
            small = Image.fromarray(photos.pixels(image))
            small.thumbnail((THUMBNAIL, THUMBNAIL))
            thumbnails.append(np.asarray(small))
            progress("features", done, len(photos))
            yield image

    features, logits = chunks.compute(compute, model, shown())
    for name, values in (("features", features), ("logits", logits)):
        if values is None:
            continue
        bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
        if len(bad):
            raise UserError(
                f"The {name} of {photos.files[bad[0]]} are not finite, and those of "
                f"{len(bad) - 1:,} other images: the weights are damaged, or their training "
                "diverged. Give other weights, such as an earlier checkpoint."
            )
    return Seen(features, logits, np.stack(thumbnails))
