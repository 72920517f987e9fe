"""vit-jax demo: a page that says what a model sees in an image."""
