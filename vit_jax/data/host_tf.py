"""TensorFlow, quiet and kept off the accelerators: `from vit_jax.data.host_tf import tf`."""

from __future__ import annotations

import os

# Below errors, silence. oneDNN has nothing to offer to decoding and resizing, would announce itself
# twice at every start, and rounds differently from machine to machine.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import tensorflow as tf

# TensorFlow and JAX would both reserve the GPU's memory; TensorFlow only feeds JAX here.
tf.config.set_visible_devices([], "GPU")

__all__ = ["tf"]
