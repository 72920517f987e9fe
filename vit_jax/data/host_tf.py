"""TensorFlow, quiet, kept off the accelerators, and imported when `tf` from here is first used."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

# TensorFlow's C++ would write into the line of progress; errors also arrive as exceptions. It
# reads the variable while it is loaded. JAX reads the same one later, and sets it to "1" if it is
# unset: so any other value is the user's choice.
LOG_LEVEL, JAXS_LEVEL, SILENT = "TF_CPP_MIN_LOG_LEVEL", "1", "3"


def load() -> Any:
    """The module tensorflow."""
    # oneDNN does not speed up decoding and resizing, prints two notices at every start, and rounds
    # differently from machine to machine.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    before = os.environ.get(LOG_LEVEL, JAXS_LEVEL)
    os.environ[LOG_LEVEL] = SILENT if before == JAXS_LEVEL else before
    with _without_keras():
        import tensorflow

    os.environ[LOG_LEVEL] = before
    # TensorFlow and JAX would both reserve the GPU's memory; TensorFlow only feeds JAX here.
    tensorflow.config.set_visible_devices([], "GPU")
    return tensorflow


@contextlib.contextmanager
def _without_keras() -> Iterator[None]:
    """Keeps TensorFlow from importing Keras, which takes a second, before `tf.keras` is used."""
    if "keras" in sys.modules:
        yield
        return
    sys.modules["keras"] = None  # type: ignore[assignment]  # "import keras" fails
    try:
        yield
    finally:
        del sys.modules["keras"]


class _OnFirstUse:
    """Stands for the module; its attributes are the module's."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(load(), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = _OnFirstUse()

__all__ = ["load", "tf"]
