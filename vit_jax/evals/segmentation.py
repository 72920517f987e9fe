"""Segmentation: mean intersection over union and accuracies of pixels, of a whole split."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.core.arrays import encode
from vit_jax.core.errors import UserError
from vit_jax.core.schema.fields import field
from vit_jax.data.source import MASK
from vit_jax.evals.kind import INDEX, Arrays, EvalConfig, EvalInputs, Progress
from vit_jax.learning.methods.segmentation import pixel_means
from vit_jax.models import dense

NUMBERS = ("miou", "pixel_accuracy", "class_accuracy", "loss", "examples")


@dataclasses.dataclass(frozen=True)
class SegmentationConfig(EvalConfig):
    """Numbers of pixels, from one confusion matrix of the split."""

    kind: str = field("segmentation")
    per_class: bool = field(False, "the IoU of each class as well, as `iou_<class>`")
    stride: float = dense.STRIDE
    shown: int = field(
        4,
        "so many images in a [picture](dense.md#evaluation), with their masks and the predicted "
        "ones; 0: none",
        bounds=(0, 1024),
    )

    reads_maps = (MASK,)
    slides = True

    def numbers(self) -> tuple[str, ...]:
        return NUMBERS

    def make(self, inputs: EvalInputs) -> Segmentation:
        return Segmentation(self, inputs)


class Scores(NamedTuple):
    """Numbers of a confusion matrix; classes that neither masks nor predictions have are NaN."""

    miou: float  # the mean of `iou`, as in PASCAL VOC
    pixel_accuracy: float
    class_accuracy: float  # the mean over the masks' classes of their share that is right
    # [C], pixels of a class that are predicted, over those that are the one or the other.
    iou: np.ndarray


def scores_of(matrix: np.ndarray) -> Scores:
    """The scores of a confusion matrix [C, C], rows by class, columns by prediction."""
    matrix = matrix.astype(float)
    right, of_class, predicted = np.diag(matrix), matrix.sum(1), matrix.sum(0)
    with np.errstate(invalid="ignore"):
        iou, recall = right / (of_class + predicted - right), right / of_class
    accuracy = float(right.sum()) / float(matrix.sum())
    return Scores(float(np.nanmean(iou)), accuracy, float(np.nanmean(recall)), iou)


class Segmentation:
    """Scores parameters on one split; pixels without a class count for nothing."""

    def __init__(self, c: SegmentationConfig, inputs: EvalInputs):
        objective, self._c, self._names = inputs.objective, c, inputs.class_names
        num_classes = inputs.num_classes
        self._images = inputs.images if c.shown else None

        def scores(model: Any, batch: Any) -> dict[str, Any]:
            mask = batch[MASK].astype(jnp.int32)
            logits = dense.sliding(model, objective.images(batch), c.stride)
            losses, _, counted = pixel_means(logits, mask, objective.losses)
            predicted = jnp.argmax(logits, -1)
            return {
                "confusion": jax.vmap(lambda m, p: confusion(m, p, num_classes))(mask, predicted),
                "loss": losses,
                "counted": counted,
            } | ({"predicted": predicted.astype(jnp.uint16)} if self._images else {})

        self._split = inputs.read(scores)

    def run(self, params: Any, progress: Progress, stop: Any) -> dict[str, float | bytes]:
        """The numbers; nothing if bool(stop) becomes true meanwhile. UserError without a pixel."""
        total = np.zeros((len(self._names),) * 2, np.int64)

        def reduce(arrays: Arrays) -> Arrays:
            total[...] += arrays.pop("confusion").sum(0, dtype=np.int64)
            return {
                name: x[arrays[INDEX] < self._c.shown] if name == "predicted" else x
                for name, x in arrays.items()
            }

        arrays = self._split.read(params, progress, stop, reduce)
        if arrays is None:
            return {}
        if not arrays["counted"].any():
            raise UserError(f"{self._split.where}: no pixel of its images has a class.")
        scored = scores_of(total)
        loss = float(np.mean(arrays["loss"][arrays["counted"]], dtype=np.float64))
        numbers = (*scored[:3], loss, float(len(arrays["loss"])))
        each = zip(self._names, scored.iou, strict=True) if self._c.per_class else ()
        by_class = {f"iou_{name}": float(iou) for name, iou in each if np.isfinite(iou)}
        results: dict[str, float | bytes] = dict(zip(NUMBERS, numbers, strict=True))
        return results | by_class | self._picture(arrays)

    def _picture(self, arrays: Arrays) -> dict[str, bytes]:
        """The first images, with their masks and the predicted ones, in the process that writes."""
        if not self._images or not len(arrays["predicted"]) or jax.process_index() > 0:
            return {}
        from vit_jax.draw import contact_sheet, masks

        places = arrays[INDEX][: len(arrays["predicted"])].tolist()
        shown = self._images(places)
        stored = shown.maps[MASK].astype(int) - 1  # void becomes -1
        cells = []
        for place, *each in zip(places, shown.pixels, stored, arrays["predicted"], strict=True):
            pixels, mask, predicted = each
            mask = np.where(mask < 0, masks.VOID, mask)
            texts = f"image {place}", "its mask", "predicted"
            pictures = pixels, masks.overlay(pixels, mask), masks.overlay(pixels, predicted)
            cells += [
                contact_sheet.Cell(picture, [(text, "")], "")
                for picture, text in zip(pictures, texts, strict=True)
            ]
        title = f"{self._split.where}: the first {len(places)} images"
        return {"masks": encode(contact_sheet.draw([title], cells, columns=3), "PNG")}


def confusion(mask: jax.Array, predicted: jax.Array, num_classes: int) -> jax.Array:
    """Pixels of an image by class and prediction, int32 [C, C].

    mask: int32 [H, W], classes from 1, 0 for none; predicted: int [H, W], classes from 0.
    """
    cells = num_classes**2
    place = jnp.where(mask > 0, (mask - 1) * num_classes + predicted, cells)  # dropped: too large
    return jnp.bincount(place.reshape(-1), length=cells).reshape(num_classes, num_classes)
