"""TensorFlow, quiet and kept off the accelerators: `from vit_jax.data.host_tf import tf`."""

import os

# TensorFlow's C++ would write into the line of progress; errors also arrive as exceptions. It
# reads the variable while it is loaded. JAX reads the same one later, and sets it to "1" if it is
# unset: so any other value is the user's choice.
LOG_LEVEL, JAXS_LEVEL, SILENT = "TF_CPP_MIN_LOG_LEVEL", "1", "3"
# oneDNN does not speed up decoding and resizing, prints two notices at every start, and rounds
# differently from machine to machine.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

_before = os.environ.get(LOG_LEVEL, JAXS_LEVEL)
os.environ[LOG_LEVEL] = SILENT if _before == JAXS_LEVEL else _before
import tensorflow as tf  # noqa: E402  # the variable comes first

os.environ[LOG_LEVEL] = _before

# TensorFlow and JAX would both reserve the GPU's memory; TensorFlow only feeds JAX here.
tf.config.set_visible_devices([], "GPU")

__all__ = ["tf"]
