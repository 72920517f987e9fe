"""What scripts/test_newest.sh and its siblings may delete, and what they install."""

import pytest

SCRIPTS = {
    "test_newest.sh": "test,hub,maps",
    "test_oldest.sh": "test,hub,maps",
    "test_beam.sh": "test,beam",
}

# Makes an "environment" with a copy of itself; writes down what is installed and tested.
PYTHON = """
case $* in
  *"import sys"* | *"import ensurepip"*) exit 0 ;;
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && touch "$3/pyvenv.cfg"
    printf '#!/usr/bin/env bash\\necho uv "$@" >>~/done\\n' >"$3/bin/uv" && chmod +x "$3/bin/uv" ;;
  *) echo "$*" >>~/done ;;
esac
"""


@pytest.fixture
def run(launch, programs, tmp_path):
    def run(script, *arguments, **env):
        python = programs(python=PYTHON) / "python"
        return launch(script, *arguments, PYTHON=str(python), VENV=str(tmp_path / "venv"), **env)

    return run


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_fresh_environment_without_the_pinned_versions(run, tmp_path, clone, script):
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    (tmp_path / "venv" / "old").touch()
    finished = run(script, "-k", "a_test")
    assert finished.returncode == 0, finished.stderr
    assert not (tmp_path / "venv" / "old").exists()
    done = (tmp_path / "home" / "done").read_text()
    versions = tmp_path / "venv" / "oldest.txt" if script == "test_oldest.sh" else "/dev/null"
    assert f"--constraint {versions} --editable {clone}[{SCRIPTS[script]}]" in done
    assert ("uv pip compile" in done) == (script == "test_oldest.sh")
    assert "constraints.txt" not in done
    assert "-m pytest -n 2" in done and "-k a_test" in done


def test_another_folder_is_not_deleted(run, tmp_path):
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "thesis.tex").touch()
    finished = run("test_newest.sh")
    assert finished.returncode == 1 and str(tmp_path / "venv") in finished.stderr
    assert (tmp_path / "venv" / "thesis.tex").exists()
