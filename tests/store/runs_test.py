import json
import math

import numpy as np
import pytest

from tests.messages import refused
from vit_jax.store import runs
from vit_jax.store.runs import MetricsFile


def test_rows_of_one_step_are_one(make_workdir):
    folder = make_workdir("a", {10: {"train/loss": 2.0}, 20: {"train/loss": None}})
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 10, "test/accuracy": 0.5}\n{"step": 5, "train/loss": NaN}\n')
        file.write('{"step": 30, "train/lo')  # a running job, read while it writes
    run = runs.read(folder, "a")
    assert run.series["test/accuracy"] == ([10], [0.5])
    steps, values = run.series["train/loss"]
    assert steps == [5, 10, 20]
    assert math.isnan(values[0]) and values[1] == 2.0 and math.isnan(values[2])
    assert run.last_step == 20


def test_numbers_on_their_way_to_infinity_are_not_finite(make_workdir):
    run = runs.read(make_workdir("a", {1: {"x": 1e35}, 2: {"x": -1e308}, 3: {"x": 10**400}}), "a")
    assert all(map(math.isnan, run.series["x"].values))


def test_a_config_says_how_far_it_goes(make_workdir):
    run = runs.read(make_workdir("a", {}), "a")
    assert run.planned_steps == 30
    assert run.fields["optim.lr"] == "0.1"
    assert run.fields["data fingerprint.input"] == '"f"'
    assert run.last_step == 0
    run = runs.read(make_workdir("b", {1: {"x": 1.0}}, lr=None), "b")
    assert (run.planned_steps, run.fields, run.starts) == (None, {}, [])


def test_the_last_start_overrides_the_config(make_workdir):
    folder = make_workdir("a", {})
    document = json.loads((folder / "config.json").read_text())
    document["runs"][-1]["total_steps"] = 31
    (folder / "config.json").write_text(json.dumps(document))
    assert runs.read(folder, "a").planned_steps == 31


def test_names_are_as_long_as_they_must_be(tmp_path):
    def short(*paths):
        return runs.short_names([runs.epath.Path(path) for path in paths])

    assert short("/x/a") == ["a"]
    assert short("/x/a", "/y/b") == ["a", "b"]
    assert short("/x/a", "/y/a", "/y/b") == ["x/a", "y/a", "y/b"]
    assert short("a", "x/a") == ["a", "x/a"]
    assert short(".") == ["."]


def test_a_folder_that_is_not_a_run_is_refused(make_workdir, tmp_path, capsys):
    folder = make_workdir("runs/a", {1: {"x": 1.0}})
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "none", folder / "metrics.jsonl"):
        with refused(path):
            runs.read_all([folder, runs.epath.Path(path)])
    for path, named in ((tmp_path / "empty", "empty"), (tmp_path / "runs", f"{tmp_path}/runs/*/")):
        with refused(named):
            runs.read_all([runs.epath.Path(path)])
        assert [run.name for run in runs.read_all([runs.epath.Path(path), folder])] == ["a"]
        assert named in capsys.readouterr().err


def test_a_damaged_run_is_reported_as_such(make_workdir):
    """More kinds of damage: hostile_workdir_test.py."""
    folder = make_workdir("a", {1: {"x": 1.0}})
    document = {"config": {"total": None}, "fingerprint": {}, "runs": []}
    (folder / "config.json").write_text(json.dumps(document))
    with refused():
        runs.read_all([folder])


def test_one_run_with_numbers_is_enough(make_workdir):
    empty, other = make_workdir("a", {}), make_workdir("b", {1: {"x": 1.0}})
    assert len(runs.read_all([empty, other])) == 2
    with refused():
        runs.read_all([empty])
    with refused():
        runs.read_all([empty, make_workdir("c", {})])


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


@pytest.mark.parametrize("remains", ['{"step": 3, "x": 0.1', '{"step": 3}', "{", "\0\0"])
def test_a_half_written_last_row_is_dropped(path, remains):
    metrics = MetricsFile(path)
    metrics.write(2, {"x": 1.0})
    with path.open("a") as file:
        file.write(remains)
    assert metrics.rows() == [{"step": 2, "x": 1.0}]
    metrics.truncate_after(2)
    metrics.write(3, {"x": 2.0})
    assert [row["step"] for row in metrics.rows()] == [2, 3]


@pytest.mark.parametrize("line", ["not json", "[1]", '{"loss": 1}', "3", "\udcff"])
def test_a_foreign_line_is_named(path, line):
    text = '{"step": 1}\n' + line + '\n{"step": 2}\n'
    path.write_bytes(text.encode(errors="surrogateescape"))
    with refused("metrics.jsonl"):
        MetricsFile(path).truncate_after(9)


def test_a_file_that_cannot_be_written_is_the_users_error(tmp_path):
    with refused():
        MetricsFile(tmp_path / "missing" / "metrics.jsonl").write(1, {})


def test_a_folder_in_its_place_is_the_users_error(path):
    path.mkdir()
    metrics = MetricsFile(path)
    with refused():
        metrics.truncate_after(0)
    with refused():
        metrics.rows()
    with refused():
        metrics.write(1, {})


def test_needs_neither_jax_nor_orbax(run_python):
    code = (
        "import sys, vit_jax.store.runs, vit_jax.store.workdir;"
        "assert not {'jax', 'orbax', 'tensorflow'} & set(sys.modules)"
    )
    assert run_python("-c", code, fresh=True).returncode == 0
