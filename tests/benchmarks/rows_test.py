import csv
import subprocess

import pytest

from benchmarks import rows


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


def test_rows_are_appended_under_one_header(results):
    rows.append("speed", {"device": "a, b", "ms": 1})
    rows.append("speed", {"device": "c", "ms": 2})
    with (results / "speed.csv").open() as file:
        assert list(csv.DictReader(file)) == [
            {"device": "a, b", "ms": "1"},
            {"device": "c", "ms": "2"},
        ]


def test_other_columns_are_refused(results):
    rows.append("speed", {"ms": 1})
    with pytest.raises(ValueError) as error:
        rows.append("speed", {"seconds": 1})
    assert "'seconds'" in str(error.value)


def test_rows_that_a_run_adds_are_no_change_of_the_code(tmp_path, monkeypatch):
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    (tmp_path / "benchmarks" / "speed.py").touch()
    for command in ("init", "add .", "commit --message=a"):
        subprocess.run([*git, *command.split()], check=True, capture_output=True)
    (results / "speed.csv").touch()
    assert rows.commit("benchmarks").isalnum()
    (tmp_path / "benchmarks" / "speed.py").write_text("1")
    assert rows.commit("benchmarks").endswith("+")
