"""Which Python scripts/environment.sh finds."""

import shutil
import subprocess

import pytest

FIND = 'source "$0/scripts/environment.sh" && find_python "$@"'
# Answers as an interpreter of one version: -c CODE VERSION...
PYTHON = '#!/usr/bin/env bash\n[[ " ${*:3} " == *" %s "* ]]\n'
PYENV = ".pyenv/versions"
UV = ".local/share/uv/python"


@pytest.fixture
def find(clone, bare_path, programs, tmp_path):
    """`find(["PLACE/python3.13"], "3.11")`: what is found where these interpreters are."""
    for name in ("head", "sort"):
        (programs() / name).symlink_to(shutil.which(name))
    programs(**{"python3.13": "exit 127", "python3.11": PYTHON % "3.11"})

    def run(installed, *versions, **env):
        for place in installed:
            file = tmp_path / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(PYTHON % file.name.removeprefix("python"))
            file.chmod(0o755)
        return subprocess.run(
            ["bash", "-eo", "pipefail", "-c", FIND, str(clone), *versions],
            env={"PATH": bare_path, "HOME": str(tmp_path), **env},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


@pytest.mark.parametrize(
    ("installed", "versions", "found"),
    [
        ([], [], "python3.11"),  # the shim python3.13 does not run
        ([f"{PYENV}/3.12.1/bin/python3.12"], [], f"{PYENV}/3.12.1/bin/python3.12"),
        ([f"{PYENV}/3.12.1/bin/python3.12"], ["3.11"], "python3.11"),
        ([f"{PYENV}/3.14.0/bin/python3.14"], [], "python3.11"),
        (
            [f"{PYENV}/3.13.{patch}/bin/python3.13" for patch in (2, 10, 9)],
            [],
            f"{PYENV}/3.13.10/bin/python3.13",
        ),
        (
            [f"{UV}/cpython-3.13.4-linux/bin/python3.13", f"{PYENV}/3.12.1/bin/python3.12"],
            [],
            f"{UV}/cpython-3.13.4-linux/bin/python3.13",
        ),
    ],
)
def test_the_newest_supported_one_is_found(find, tmp_path, installed, versions, found):
    done = find(installed, *versions)
    assert done.stdout.strip().removeprefix(f"{tmp_path}/") == found, done.stderr


def test_the_named_one_is_taken(find, tmp_path):
    place = f"{PYENV}/3.12.1/bin/python3.12"
    assert find([place], PYTHON=str(tmp_path / place)).stdout.strip() == str(tmp_path / place)


def test_without_one_the_message_names_the_version(find):
    done = find([], "3.12")
    assert (done.returncode, done.stdout) == (1, "")
    assert all(how in done.stderr for how in ("python@3.12", "uv"))
