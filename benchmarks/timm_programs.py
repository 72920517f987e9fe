"""Flags of the benchmarks that run timm's own programs, and the versions that these run with."""

import subprocess
import sys

from absl import flags

TIMM = flags.DEFINE_string("timm", None, "Checkout of pytorch-image-models.", required=True)
PYTHON = flags.DEFINE_string("timm_python", sys.executable, "Python that has timm.")
WEIGHTS = flags.DEFINE_string("weights", None, "Folder of model.safetensors.", required=True)
DATA = flags.DEFINE_string("data_dir", None, "Image folder.", required=True)


def timm_versions() -> str:
    """Versions of Python, timm (of the checkout) and torch that timm's programs run with."""
    program = (
        "import platform, timm, torch; print(f'python {platform.python_version()}, "
        "timm {timm.__version__}, torch {torch.__version__}')"
    )
    command = [PYTHON.value, "-c", program]
    done = subprocess.run(command, cwd=TIMM.value, capture_output=True, text=True, check=True)
    return done.stdout.strip()
