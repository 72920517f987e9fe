"""vit_jax: pre-training of Vision Transformers in JAX, from a laptop to a TPU pod."""

__version__ = "0.1.0"
