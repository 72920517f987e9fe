"""Pictures of what the weights have learnt so far, of a few images of a split."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
from flax import nnx

from vit_jax.core.errors import UserError
from vit_jax.core.schema.fields import field
from vit_jax.evals.kind import EvalConfig, EvalInputs, Progress, Shown
from vit_jax.models.observe import chunks
from vit_jax.parallel import mesh as meshes

NUMBERS = (
    "filters_explained", "positions_row_plus_column", "first_distance_px", "last_distance_px",
    "high_norm_share",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class PicturesConfig(EvalConfig):
    """Pictures of what the weights have learnt."""

    size_field = "pictures"

    pictures: int = field(
        8,
        "of the kind `pictures`: so many images of the split, the first ones, are looked at",
        bounds=(1, 2**20),
    )

    def numbers(self) -> tuple[str, ...]:
        """The names of the numbers that `run` returns, of models that have them all."""
        return NUMBERS

    def make(self, inputs: EvalInputs) -> Pictures:
        return Pictures(self, inputs)


class Pictures:
    """Draws parameters. All of them are gathered on every host for that."""

    def __init__(self, c: PicturesConfig, inputs: EvalInputs):
        assert inputs.images is not None
        self._graph, self._number, self._images = inputs.graph, c.pictures, inputs.images
        self._shown: Shown | None = None  # they are read once
        self._gather = jax.jit(lambda x: x, out_shardings=meshes.replicated(inputs.mesh))

    def run(self, params: Any, progress: Progress, stop: Any) -> dict[str, float | bytes]:
        """Numbers and PNG files by name."""
        # These import matplotlib, which no other evaluation needs.
        from vit_jax.draw import attention_pictures, weight_pictures
        from vit_jax.draw.attention_pictures import Question

        self._shown = self._shown or self._images(range(self._number))
        params = jax.device_get(self._gather(params))
        if not all(np.isfinite(x).all() for x in jax.tree.leaves(params)):
            raise UserError("The weights are not finite: take an earlier checkpoint.")
        model = nnx.merge(self._graph, params)
        shown = self._shown
        results: dict[str, float | bytes] = {}
        question = Question(_classes(model, shown) if model.num_classes else None, shown.captions)
        parts = (
            lambda: weight_pictures.findings(model),
            lambda: attention_pictures.findings(model, shown.inputs, shown.pixels, question),
        )
        for done, part in enumerate(parts):
            if stop:
                return {}
            progress(done, len(parts))
            findings = part()
            results |= findings.numbers
            results |= {p.name: p.data for p in findings.section.pictures if p.ending == "png"}
        progress(len(parts), len(parts))
        return results


def _classes(model: Any, shown: Shown) -> list[int]:
    """Whose relevance is shown, of a model with a head."""
    known = [label for label in shown.labels if label is not None]
    if len(known) == len(shown.labels):
        return known
    logits = chunks.compute(lambda model, images: model(images), model, shown.inputs)
    predicted = logits.argmax(axis=-1).tolist()
    return [
        guess if label is None else label
        for label, guess in zip(shown.labels, predicted, strict=True)
    ]
