"""vit_jax: pre-training of Vision Transformers in JAX, from a laptop to a TPU pod."""

from vit_jax.core import signals

signals.answer_signals()

__version__ = "0.1.0"
