"""Flags of the benchmarks that run timm's own programs, and the versions that these run with."""

import subprocess
import sys

from absl import flags

from benchmarks import tuned_cpu

TIMM = flags.DEFINE_string("timm", None, "Checkout of pytorch-image-models.", required=True)
PYTHON = flags.DEFINE_string("timm_python", sys.executable, "Python that has timm.")
WEIGHTS = flags.DEFINE_string("weights", None, "Folder of model.safetensors.", required=True)
DATA = flags.DEFINE_string("data_dir", None, "Image folder.", required=True)
BEST = flags.DEFINE_bool(
    "best", False, "timm has huge pages, keeps freed memory, and MKL uses AVX-512 on AMD's."
)


def timm_name() -> str:
    """timm in a row's column `program`."""
    return "timm, at its best" if BEST.value else "timm"


def timm_environment() -> dict[str, str]:
    """Further variables for timm's programs."""
    return tuned_cpu.best() if BEST.value else {}


def timm_versions() -> str:
    """Versions of Python, timm (of the checkout) and torch that timm's programs run with."""
    program = (
        "import platform, timm, torch; print(f'python {platform.python_version()}, "
        "timm {timm.__version__}, torch {torch.__version__}')"
    )
    command = [PYTHON.value, "-c", program]
    done = subprocess.run(command, cwd=TIMM.value, capture_output=True, text=True, check=True)
    return done.stdout.strip()
