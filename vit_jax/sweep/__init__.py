"""A grid of trainings: its points, their progress and results; `python -m vit_jax.sweep`."""
