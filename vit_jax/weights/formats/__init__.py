"""Formats of other projects: a new one is a file and its line here."""

from vit_jax.weights.external import Format
from vit_jax.weights.formats import dino, google_npz, huggingface, timm

# The order in which they are tried, for a file or for a model.
FORMATS: tuple[Format, ...] = (
    dino.DINOV2,
    dino.DINOV3,
    huggingface.FORMAT,
    huggingface.BIT,
    timm.FORMAT,
    google_npz.FORMAT,
)
