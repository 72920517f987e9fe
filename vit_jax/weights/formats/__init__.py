"""Formats of other projects: one file each. A new one is a file and its lines in this table."""

from vit_jax.weights.external import Format
from vit_jax.weights.formats import dinov2, dinov3, google_npz, huggingface, timm

# The order in which formats are tried, for a file or for a model.
FORMATS: tuple[Format, ...] = (
    dinov2.FORMAT,
    dinov3.FORMAT,
    huggingface.VIT,
    huggingface.BIT,
    timm.FORMAT,
    google_npz.FORMAT,
)
