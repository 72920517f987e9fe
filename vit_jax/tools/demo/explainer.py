"""A model's answer to an image: its classes, and the parts of the image that speak for them."""

from __future__ import annotations

import contextlib
import math
import threading
from typing import NamedTuple

import numpy as np
from PIL import Image

from vit_jax.core import arrays, synsets
from vit_jax.core.arrays import encode
from vit_jax.core.errors import UserError
from vit_jax.draw import html_page
from vit_jax.draw.attention_pictures import blend
from vit_jax.models import images, observe
from vit_jax.models.head import probabilities
from vit_jax.predict import check_finite, load_classifier, most_likely

THUMBNAIL_PX = 128
SMALL = 80  # pixels; a smaller input is shown with larger pixels,
SIDE = 320  # so many of the screen's


class Kind(NamedTuple):
    title: str
    note: str
    method: str


ROLLOUT = Kind(
    "Where it looked",
    "Bright parts are those that its answer took most from. They may speak for the first class or "
    "against it.",
    "attention rollout: how much of each patch has come to the head through all layers "
    "(arXiv 2005.00928)",
)
GRAD_CAM = Kind(
    "What speaks for it",
    "Bright parts are those that speak most for the first class.",
    "Grad-CAM of the last feature map (arXiv 1610.02391)",
)


class Explainer:
    """Explains images, one at a time, by a trained model; arguments as the command's flags."""

    def __init__(self, checkpoint: str, *, ema: bool = False, top_k: int = 5) -> None:
        loaded = load_classifier(checkpoint, ema=ema)
        self.name, self._model = loaded.name, loaded.model
        self._preprocess = loaded.model.preprocess
        self._checkpoint, self._top_k = checkpoint, top_k
        names = loaded.class_names
        self._names = tuple(map(synsets.without_id, names)) if names else None
        self.kind = ROLLOUT if observe.has_attention(self._model) else GRAD_CAM
        self.image_size, self.num_classes = self._preprocess.image_size, self._model.num_classes
        self.one_at_a_time = threading.Lock()
        is_rgb = (self._preprocess.channels, self._preprocess.dtype) == arrays.RGB[:2]
        self.accept = "image/*" if is_rgb else ",".join(arrays.EXTENSIONS)

    def compile(self) -> None:
        """Compiles the model, so that the first image need not wait for it."""
        self._look(np.zeros((1, *self.image_size, self._preprocess.channels), np.float32))

    def __call__(self, data: bytes) -> dict:
        """Explains an image file: "classes" of `most_likely`, "seen" and "heat" as data: URLs."""
        with self.one_at_a_time:
            inputs = images.load(data, self._preprocess, "The file")
            p, heat = self._look(inputs[None])
        check_finite(p, "The file", self._checkpoint)
        shown = images.displayed(inputs[None], self._preprocess)
        seen = enlarged(observe.seen_pixels(self._model, shown)[0])
        return {
            "classes": most_likely(p, self._names, self._top_k),
            "seen": _png(seen),
            "heat": _png(blend(seen, heat)),
        }

    def thumbnail_url(self, data: bytes) -> str | None:
        """A small picture of an image file; None if it cannot be decoded."""
        if self.accept == "image/*":
            return html_page.thumbnail_url(data, THUMBNAIL_PX, upright=True)
        with contextlib.suppress(UserError):
            inputs = images.load(data, self._preprocess)
            pixels = Image.fromarray(images.displayed(inputs, self._preprocess))
            return html_page.picture_url(pixels, THUMBNAIL_PX)
        return None

    def _look(self, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """[1, H, W, 3] -> probabilities [C] and heat [rows, columns], not negative."""
        if observe.has_attention(self._model):
            logits, (rollout,) = observe.look(self._model, inputs, (observe.Rollout(),))
            heat = rollout.patches
        else:
            relevant = observe.relevance(self._model, inputs)
            logits, heat = relevant.logits, relevant.map.patches
        return np.asarray(probabilities(self._model, logits[0])), heat[0]


def enlarged(pixels: np.ndarray) -> np.ndarray:
    """Repeats the pixels of small images, uint8 [H, W, 3]."""
    longer = max(pixels.shape[:2])
    times = math.ceil(SIDE / longer) if longer <= SMALL else 1
    return pixels.repeat(times, axis=0).repeat(times, axis=1)


def _png(pixels: np.ndarray) -> str:
    return html_page.image_url(encode(Image.fromarray(pixels), "PNG"), "png")
