"""TensorFlow, quiet and kept off the accelerators: `from vit_jax.data.host_tf import tf`."""

from __future__ import annotations

import os

# Both TensorFlow and JAX would reserve the GPU's memory. TensorFlow here only feeds JAX, so the GPU
# is hidden from it before its first operation. Start-up notices (below errors) stay silent.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

tf.config.set_visible_devices([], "GPU")

__all__ = ["tf"]
