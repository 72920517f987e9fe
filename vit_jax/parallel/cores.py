"""A CPU as several devices, one for each core.

A program for one image at a time leaves cores idle wherever it is not divided; one program for
each core does not.
"""

import contextlib
import os

FLAG = "xla_force_host_platform_device_count"
SHARE = 4  # copies of the weights may take one part in so many of the memory


def as_devices(weights_bytes: int) -> None:
    """Makes a CPU as many devices as this process may use cores; to be called before any is used.

    Fewer where a copy of the weights on each would fill the memory. Where JAX is told how many, by
    XLA_FLAGS or its own settings, that holds.
    """
    import jax

    told = getattr(jax.config, "jax_num_cpu_devices", -1) > 0
    if told or FLAG in os.environ.get("XLA_FLAGS", ""):
        return
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    fit = memory // SHARE // max(weights_bytes, 1)
    with contextlib.suppress(RuntimeError):  # in a process that has used its devices already
        jax.config.update("jax_num_cpu_devices", max(1, min(_cores(), fit)))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
