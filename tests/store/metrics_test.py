import json

import numpy as np
import pytest

from tests.messages import refused
from vit_jax.store import metrics as metrics_file
from vit_jax.store.metrics import MetricsFile


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def test_one_json_object_per_row(path):
    metrics = MetricsFile(path)
    metrics.write(1, {"train/loss": 2.5})
    metrics.write(2, {"train/loss": np.float32(0.5), "digits/accuracy": 1})
    assert [json.loads(line) for line in path.read_text().splitlines()] == metrics.rows()
    assert metrics.rows() == [
        {"step": 1, "train/loss": 2.5},
        {"step": 2, "train/loss": 0.5, "digits/accuracy": 1.0},
    ]


def test_at_gs_rows_are_uploaded_now_and_then(path, monkeypatch):
    """Every row would upload all before it: 1,000 of them 500 times the file."""
    monkeypatch.setattr(metrics_file, "is_remote", lambda path: True)
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    metrics, uploaded_bytes = MetricsFile(path), []
    for step in range(1, 1001):
        metrics.write(step, {"train/loss": 0.5})
        now += 0.1
        if not uploaded_bytes or path.stat().st_size != uploaded_bytes[-1]:
            uploaded_bytes.append(path.stat().st_size)
    assert len(metrics.rows()) == 1000
    metrics.flush()
    assert len(MetricsFile(path).rows()) == 1000
    assert len(uploaded_bytes) == 4  # of 100 s
    metrics.truncate_after(7)
    metrics.write(8, {})
    metrics.flush()
    assert [row["step"] for row in MetricsFile(path).rows()] == [*range(1, 9)]


def test_non_finite_values_are_null(path):
    values = {"nan": np.nan, "inf": np.inf, "minus": -np.inf, "huge": 1e300}
    MetricsFile(path).write(1, values)

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    row = json.loads(path.read_text(), parse_constant=refuse)
    assert row == {"step": 1, "nan": None, "inf": None, "minus": None, "huge": 1e300}


def test_truncates_the_rows_that_a_resumed_run_writes_again(path):
    metrics = MetricsFile(path)
    metrics.truncate_after(5)
    assert metrics.rows() == []
    for step in (0, 5, 5, 6, 10):
        metrics.write(step, {"x": step})
    metrics.truncate_after(5)
    assert [row["step"] for row in metrics.rows()] == [0, 5, 5]
    metrics.write(6, {})
    assert [row["step"] for row in metrics.rows()] == [0, 5, 5, 6]
    metrics.truncate_after(-1)
    assert path.read_text() == ""
    assert [f.name for f in path.parent.iterdir()] == ["metrics.jsonl"]


def test_a_file_that_cannot_be_read_or_written_is_the_users_error(path):
    with refused("--workdir"):
        MetricsFile(path.parent / "missing" / "metrics.jsonl").write(1, {})
    path.mkdir()
    metrics = MetricsFile(path)
    for use in (lambda: metrics.truncate_after(0), metrics.rows, lambda: metrics.write(1, {})):
        with refused("--workdir"):
            use()
