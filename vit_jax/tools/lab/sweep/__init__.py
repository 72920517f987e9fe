"""A grid of trainings: its points, their progress and results; `vit-jax sweep`."""
