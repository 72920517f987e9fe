"""Trained models for use without this package; python -m vit_jax.export writes them."""
