"""Variables of a process by which torch is at its best on a CPU.

Intel's MKL, with which torch multiplies matrices, asks whether Intel made the processor, and else
takes a path without AVX-512: 56 GFLOP/s a core instead of 72 on a Zen 4. A preloaded library that
answers for it is what users who know this do. glibc gives the memory of a step back to the kernel,
which clears it anew for the next one, unless it is told to keep it.
"""

import subprocess
import tempfile
from pathlib import Path

from vit_jax.core import machine

KEPT_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "-1",
    "MALLOC_TOP_PAD_": str(64 * 2**20),
}

_AS_ON_INTEL = "int mkl_serv_intel_cpu_true(void) { return 1; }"


def mkl_library() -> str:
    """The path of that library, for LD_PRELOAD; needs a C compiler."""
    path = Path(tempfile.mkdtemp(prefix="mkl_"), "as_on_intel.so")
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=_AS_ON_INTEL, text=True, check=True)
    return str(path)


def best() -> dict[str, str]:
    """All of them."""
    return KEPT_MEMORY | {machine.TUNABLES: machine.HUGE_PAGES, "LD_PRELOAD": mkl_library()}
