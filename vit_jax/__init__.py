"""vit_jax: pre-training of Vision Transformers in JAX, from a laptop to a TPU pod."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit_jax import namesake
from vit_jax.core import __version__ as __version__
from vit_jax.core import signals

if TYPE_CHECKING:
    from vit_jax.api import Run, load_config
    from vit_jax.core.errors import NonFiniteError, Preempted, UserError

namesake.check(Path(__file__).parent)
signals.answer_signals()

__all__ = ["NonFiniteError", "Preempted", "Run", "UserError", "load_config"]


def __getattr__(name: str) -> Any:
    """A class, function or module, imported with its first use: JAX takes seconds (PEP 562)."""
    if name in ("Run", "load_config"):
        from vit_jax import api

        return getattr(api, name)
    if name in __all__:
        from vit_jax.core import errors

        return getattr(errors, name)
    if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
