"""Fixtures for the launchers: a small clone, fake programs, recorded output."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SENT = ("setup.py", "pyproject.toml", "constraints.txt")


@pytest.fixture
def clone(tmp_path):
    """The scripts and a config in a git repository of their own."""
    folder = tmp_path / "clone"
    folder.mkdir()
    shutil.copytree(REPOSITORY / "scripts", folder / "scripts")
    for name in SENT:
        shutil.copy(REPOSITORY / name, folder)
    (folder / "configs").mkdir()
    shutil.copy(REPOSITORY / "configs" / "vit_digits.py", folder / "configs")
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    return folder


@pytest.fixture
def programs(tmp_path):
    """`programs(gcloud="text of a bash script")`: a folder with only these programs."""
    folder = tmp_path / "programs"
    folder.mkdir()

    def write(**texts):
        for name, text in texts.items():
            file = folder / name
            file.write_text(f"#!/usr/bin/env bash\n{text}\n")
            file.chmod(0o755)
        return folder

    return write


@pytest.fixture
def launch(clone, programs, tmp_path):
    """`launch("slurm.sh", ...)`: the finished script, run in the clone in its own process group."""
    home = tmp_path / "home"
    home.mkdir()

    def run(script, *arguments, path=None, cwd=clone, **env):
        environment = {
            "PATH": path or f"{programs()}:{os.environ['PATH']}",
            "HOME": str(home),
            "PYTHON": sys.executable,
            **env,
        }
        return subprocess.run(
            [str(clone / "scripts" / script), *arguments],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            start_new_session=True,
            check=False,
        )

    return run


@pytest.fixture
def recorded(clone, tmp_path):
    """`recorded("slurm.txt", text)`: whether the text equals the recording.

    RECORD=1 in the environment records it again.
    """

    def same(name, text):
        file = Path(__file__).parent / "recorded" / name
        text = text.replace(str(clone), "CLONE").replace(str(tmp_path / "home"), "HOME")
        if os.environ.get("RECORD"):
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        assert text == file.read_text()
        return True

    return same


@pytest.fixture
def bare_path(programs):
    """A PATH with the system tools that the scripts need, and no gcloud, kubectl or sbatch."""
    folder = programs()
    for name in (
        "bash",
        "env",
        "awk",
        "sed",
        "dirname",
        "git",
        "cksum",
        "tr",
        "date",
        "mkdir",
        "cat",
    ):
        program = shutil.which(name)
        assert program
        (folder / name).symlink_to(program)
    return str(folder)
