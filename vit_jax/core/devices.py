"""The message for the user if JAX cannot use the devices that are set.

JAX looks for devices when one is first needed, long after the start of a command, and then raises
RuntimeError, or fails one of its own assertions. The cause is usually a setting of the user's.
"""

import difflib
import logging
import os
import re
import traceback
from pathlib import Path

from vit_jax.core.errors import UserError

VARIABLE = "JAX_PLATFORMS"
_EXTRAS = {"gpu": "gpu", "cuda": "gpu", "tpu": "tpu"}  # platform -> its extra in setup.py
_FAILED = "Unable to initialize backend "
_DRIVER = Path("/proc/driver/nvidia")
_HINT = re.compile(r"\.? ?\((?:set JAX_PLATFORMS=|you may need to uninstall).*\)$", re.DOTALL)


def unusable(error: BaseException) -> UserError | None:
    """The message for the user, if `error` is JAX's about missing devices; else None."""
    if not _is_of_devices(error):
        return None
    reason = _HINT.sub("", str(error)).removeprefix(_FAILED) or "no such device was found"
    wanted = _wanted()
    if not wanted:
        return UserError(
            f"JAX cannot use the devices here ({reason}): {VARIABLE}=cpu does without."
        )
    there = _there()
    words = [word.strip().lower() for word in wanted.split(",")]
    meant = [m for word in words for m in difflib.get_close_matches(word, ["cpu", *_EXTRAS], n=1)]
    said = f"{VARIABLE}={wanted} is not what JAX can use here ({reason})."
    if meant and meant != wanted.split(","):
        said += f" Did you mean {','.join(meant)!r}?"
    said += f" Here there is {' and '.join(there)}: set {VARIABLE}={there[0]}, or unset it."
    extra = next((_EXTRAS[word] for word in words if word in _EXTRAS), None)
    if extra is not None:
        said += f" For a {extra.upper()}, docs/install.md: pip install '.[{extra}]' in the clone."
    return UserError(said)


def expect_no_gpu() -> None:
    """Drops JAX's traceback about missing parts of CUDA where there is no driver for a GPU either.

    There its plugin serves to plan for GPUs that are not here (setup.py, "plan-gpu").
    """
    if not _DRIVER.exists():
        logging.getLogger("jax._src.xla_bridge").addFilter(_keeps)


def _keeps(record: logging.LogRecord) -> bool:
    cause = record.exc_info[1] if record.exc_info else None
    return not ("xla_cuda" in record.getMessage() and "Unable to load " in str(cause))


def _is_of_devices(error: BaseException) -> bool:
    if isinstance(error, RuntimeError):
        return str(error).startswith((_FAILED, "Unknown backend"))
    if not isinstance(error, AssertionError) or error.__traceback__ is None:
        return False
    last = traceback.extract_tb(error.__traceback__)[-1]  # "assert _default_backend is not None"
    return last.name == "backends" and "jax" in last.filename


def _wanted() -> str:
    """The platforms set for JAX, by the environment or by a program."""
    import jax

    return str(getattr(jax.config, "jax_platforms", None) or os.environ.get(VARIABLE) or "")


def _there() -> list[str]:
    """The platforms that can be used, best first; the CPU always can."""
    import jax
    import jax.extend

    if jax.distributed.is_initialized():  # looking again would wait for all processes
        return ["cpu"]
    try:
        jax.config.update("jax_platforms", "")
        best = jax.default_backend()
        return list(dict.fromkeys([best, *jax.extend.backend.backends()]))
    except Exception:  # for whatever reason, this platform cannot be used
        return ["cpu"]
