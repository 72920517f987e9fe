"""A model's answer to an image: its classes, and the parts of the image that speak for them."""

from __future__ import annotations

import io
import math
import threading
import warnings
from typing import NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from vit_jax.core import synsets
from vit_jax.core.errors import UserError
from vit_jax.core.image_files import OPENED
from vit_jax.draw import html_page
from vit_jax.draw.attention_pictures import blend
from vit_jax.models import images, observe
from vit_jax.models.head import probabilities
from vit_jax.predict import check_finite, load_classifier, most_likely

SMALL = 80  # pixels; a smaller input is shown with larger pixels,
SIDE = 320  # so many of the screen's


class Kind(NamedTuple):
    """A kind of heat map that is shown over an image.

    Attributes:
      title: its name on the page.
      note: its meaning, for people who know no networks.
      method: how it is computed.
    """

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
    """A trained model that explains one image at a time; its weights are read once.

    Args:
      checkpoint: as --checkpoint.
      ema: the EMA of the weights is used instead of the weights themselves.
      top_k: how many classes are named.

    Attributes:
      name: of the model, such as "ViT-Ti/16".
      kind: the heat map over images.
      image_size: (height, width) of the model's input.
      num_classes: of its head.
    """

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

    def compile(self) -> None:
        """Compiles the model, so that the first image need not wait for it."""
        self._look(np.zeros((1, *self.image_size, 3), np.float32))

    def __call__(self, data: bytes) -> dict:
        """The bytes of an image file -> what the page shows.

        {"classes": as of `most_likely`, "seen" and "heat": pictures as data: URLs}.

        Raises:
          UserError: the file is not an image, or is damaged or too large.
          NonFiniteError: as `Predictor`.
        """
        with self.one_at_a_time:
            inputs = images.load(opened(data), self._preprocess, "The file")
            p, heat = self._look(inputs[None])
        check_finite(p, "The file", self._checkpoint)
        shown = images.displayed(inputs[None], self._preprocess)
        seen = enlarged(observe.seen_pixels(self._model, shown)[0])
        return {
            "classes": most_likely(p, self._names, self._top_k),
            "seen": _png(seen),
            "heat": _png(blend(seen, heat)),
        }

    def _look(self, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """[1, H, W, 3] -> probabilities [C] and heat [rows, columns], not negative."""
        if observe.has_attention(self._model):
            logits, (rollout,) = observe.look(self._model, inputs, (observe.Rollout(),))
            heat = rollout.patches
        else:
            relevant = observe.relevance(self._model, inputs)
            logits, heat = relevant.logits, relevant.map.patches
        return np.asarray(probabilities(self._model, logits[0])), heat[0]


def opened(data: bytes) -> Image.Image:
    """An image file that was sent, not decoded yet. UserError if it is not an image."""
    if not data:
        raise UserError("The file is empty: choose an image.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `images.load` has its own limit
            return Image.open(io.BytesIO(data), formats=OPENED)
    except UnidentifiedImageError as error:
        *most, last = OPENED
        raise UserError(
            f"The file is not an image that can be read: {', '.join(most)} and {last} can. Of a "
            "phone’s HEIC, send a JPEG."
        ) from error
    except Exception as error:  # decoders raise anything
        raise UserError(f"The file is not an image that can be read: {error}") from error


def enlarged(pixels: np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3] -> the same with each pixel repeated, where the image is small."""
    longer = max(pixels.shape[:2])
    times = math.ceil(SIDE / longer) if longer <= SMALL else 1
    return pixels.repeat(times, axis=0).repeat(times, axis=1)


def _png(pixels: np.ndarray) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return html_page.image_url(file.getvalue(), "png")
