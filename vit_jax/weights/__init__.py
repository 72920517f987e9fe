"""Floor 3: trained models from files. `weights.load("runs/digits")`."""

from vit_jax.weights.checkpoint import Description, Loaded, description, load, load_described

__all__ = ["Description", "Loaded", "description", "load", "load_described"]
