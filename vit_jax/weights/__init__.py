"""Floor 3: trained models from files. `weights.load("runs/digits")`, `weights.load("B_16.npz")`."""

from vit_jax.weights.checkpoint import Description
from vit_jax.weights.loading import Loaded, description, is_foreign, load, load_described
from vit_jax.weights.saving import save

__all__ = ["Description", "Loaded", "description", "is_foreign", "load", "load_described", "save"]
