"""Trained models for use without this package; vit-jax export writes them."""
