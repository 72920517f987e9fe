"""Floor 3: trained models from files. `weights.load("runs/digits")`."""

from vit_jax.weights.checkpoint import Loaded, load, load_described

__all__ = ["Loaded", "load", "load_described"]
