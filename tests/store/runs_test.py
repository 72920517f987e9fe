import math

from tests.messages import refused, told
from vit_jax.store import runs


def test_weights_among_runs_are_named(make_workdir, capsys):
    weights = make_workdir("weights", {})
    (weights / "config.json").write_text('{"architectures": ["ViTForImageClassification"]}')
    run = make_workdir("run", {10: {"train/loss": 2.0}})
    assert [each.folder for each in runs.read_all([weights, run])] == [run]
    told(capsys.readouterr().err, f"init.weights={weights}")


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


def test_a_config_says_how_far_it_goes(make_workdir):
    run = runs.read(make_workdir("a", {}), "a")
    assert run.planned_steps == 30
    assert run.fields["optim.lr"] == "0.1"
    assert run.fields["data fingerprint.input"] == '"f"'
    assert run.last_step == 0
    run = runs.read(make_workdir("b", {1: {"x": 1.0}}, lr=None), "b")
    assert (run.planned_steps, run.fields, run.starts) == (None, {}, [])


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


def test_one_run_with_numbers_is_enough(make_workdir):
    empty, other = make_workdir("a", {}), make_workdir("b", {1: {"x": 1.0}})
    assert len(runs.read_all([empty, other])) == 2
    with refused("log.every_steps"):
        runs.read_all([empty])
    with refused("log.every_steps"):
        runs.read_all([empty, make_workdir("c", {})])
