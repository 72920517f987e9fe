import csv

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


def test_versions_and_commit():
    assert rows.installed("jax").startswith("python 3.")
    assert " jax " in rows.installed("jax")
    assert rows.commit("LICENSE").isalnum()
