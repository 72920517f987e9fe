"""Observation of a model: attention, layer by layer, and the relevance of what it sees.

    from vit_jax.models import observe
    observe.rollout(model, images).patches             # [B, rows, columns]
    observe.attention_distance(model, images)          # [B, L, H], pixels
    observe.relevance(model, images, classes).map      # of a class, by gradients
    seen = observe.look(model, images, (observe.Rollout(), observe.TokenNorms()))

Images are [H, W, 3] float32, normalised as `model.preprocess` says: an array [B, H, W, 3], or
anything that gives one after the other, such as a generator that decodes as it goes. They are taken
in chunks, so memory does not depend on their number. Results are NumPy's arrays.
"""

from vit_jax.models.observe import chunks
from vit_jax.models.observe.attention import (
    Distances,
    FromQuery,
    Norms,
    Observed,
    Rollout,
    TokenNorms,
    View,
    Weights,
    attention_distance,
    has_attention,
    look,
    rollout,
    seen_pixels,
    view_of,
)
from vit_jax.models.observe.gradients import Relevance, relevance

__all__ = [
    "Distances", "FromQuery", "Norms", "Observed", "Relevance", "Rollout", "TokenNorms", "View",
    "Weights", "attention_distance", "chunks", "has_attention", "look", "relevance", "rollout",
    "seen_pixels", "view_of",
]  # fmt: skip
