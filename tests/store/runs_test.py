import json
import math

import pytest

from vit_jax.core.errors import UserError
from vit_jax.store import runs


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


def test_a_folder_that_is_not_a_run_is_refused(make_workdir, tmp_path):
    folder = make_workdir("runs/a", {1: {"x": 1.0}})

    def error(path):
        with pytest.raises(UserError) as raised:
            runs.read_all([folder, runs.epath.Path(path)])
        return str(raised.value)

    assert "There is no folder" in error(tmp_path / "none")
    assert "is a file: give work directories" in error(folder / "metrics.jsonl")
    assert f"give {tmp_path}/runs/*/." in error(tmp_path / "runs")
    (tmp_path / "empty").mkdir()
    assert "neither metrics.jsonl nor config.json. Leave it out." in error(tmp_path / "empty")


def test_a_damaged_run_is_reported_as_such(make_workdir):
    """More kinds of damage: hostile_workdir_test.py."""
    folder = make_workdir("a", {1: {"x": 1.0}})
    document = {"config": {"total": None}, "fingerprint": {}, "runs": []}
    (folder / "config.json").write_text(json.dumps(document))
    with pytest.raises(UserError, match="is damaged"):
        runs.read_all([folder])


def test_one_run_with_numbers_is_enough(make_workdir):
    empty, other = make_workdir("a", {}), make_workdir("b", {1: {"x": 1.0}})
    assert len(runs.read_all([empty, other])) == 2
    with pytest.raises(UserError, match="a has not logged anything yet"):
        runs.read_all([empty])
    with pytest.raises(UserError, match="None of the 2 runs has logged anything yet"):
        runs.read_all([empty, make_workdir("c", {})])
