import json
import re
from pathlib import Path

import pytest
from etils import epath

from tests.messages import failed, refused
from vit_jax import config as configs
from vit_jax.tools.verify import __main__ as verify
from vit_jax.tools.verify import recipe_card

ROOT = Path(__file__).parents[3]
CONFIG = """
def get_config(arg=None):
    return {"total": {"steps": 100}, "optim": {"lr": 0.1}}
"""


@pytest.fixture
def config_file(tmp_path):
    (tmp_path / "tiny.py").write_text(CONFIG)
    return str(tmp_path / "tiny.py")


@pytest.fixture
def make_run(tmp_path, config_file):
    """`make_run("a", "seed=1", factor=1.0, steps=100)`: a made-up work directory."""

    def make(name, *overrides, factor=1.0, steps=100, fingerprint="0123"):
        folder = tmp_path / name
        folder.mkdir()
        config = configs.load(config_file, overrides)
        started = {
            "time": "2026-01-01", "versions": {"jax": "0.10"}, "commit": "abc",
            "devices": {"count": 1, "kind": "cpu"},
        }  # fmt: skip
        document = {
            "config": configs.to_dict(config),
            "fingerprint": {"input": fingerprint},
            "runs": [started],
        }
        (folder / "config.json").write_text(json.dumps(document))
        with (folder / "metrics.jsonl").open("w") as file:
            for step in range(10, steps + 1, 10):
                loss = factor * (1 + 1 / step) * (1 + 0.001 * config.seed)
                row = {"step": step, "train/loss": loss, "train/accuracy": 0.5}
                file.write(json.dumps(row) + "\n")
            if steps == 100:
                file.write(json.dumps({"step": 100, "test/accuracy": 0.9}) + "\n")
        return epath.Path(folder)

    return make


@pytest.fixture
def card(tmp_path, make_run, config_file):
    file = epath.Path(tmp_path / "cards" / "tiny.json")
    runs = [recipe_card.read_run(make_run(f"seed{s}", f"seed={s}")) for s in range(3)]
    verify.record(runs, config_file, file)
    return file


@pytest.mark.parametrize(
    "change",
    [
        *("", "[]", "{}"),
        {"runs": []},
        {"curves": {}},
        {"runs": [{"seed": 0}]},
        {"fields": "x"},
        {"tolerance": {"floor": "x"}},
        {"tolerance": {"windows": 0}},
        {"curves": {"train/loss": {"steps": [1, 2], "runs": [[1.0], [2.0, 3.0]]}}},
    ],
)
def test_a_damaged_card_is_reported_as_such(card, change):
    text = json.dumps(json.loads(card.read_text()) | change) if isinstance(change, dict) else change
    card.write_text(text)
    with refused("tiny.json"):
        recipe_card.read(card)
    with refused(card.parent):
        recipe_card.read(card.parent)  # a folder


def test_a_run_like_the_others_is_in_range(card, make_run, capsys):
    run = recipe_card.read_run(make_run("run", "seed=7", "log.every_steps=5"))
    verify.verify(run, verify.find_card(run, card.parent))
    output = capsys.readouterr().out
    assert "seeds 0, 1, 2; jax 0.10, 1 x cpu" in output
    assert "seed 7, step 100 of 100" in output
    assert re.search(r"train/loss +5 of 5 +100 +1\.0", output)
    assert "same" not in output
    assert "missing" not in output
    assert "within   all 11 numbers of the finished run" in output


def test_the_first_deviation_is_named(card, make_run):
    run = recipe_card.read_run(make_run("run", factor=1.1))
    with refused("step 20", "train/loss 1.183", "1.065", "5 of 11"):
        verify.verify(run, card)


def test_a_running_run_is_reported_as_such(card, make_run, capsys):
    verify.verify(recipe_card.read_run(make_run("run", steps=50)), card)
    output = capsys.readouterr().out
    assert "step 50 of 100" in output
    assert "missing  test/accuracy: not logged at the card's steps" in output
    assert "within   all 4 numbers of the run so far" in output


@pytest.mark.parametrize("steps", [[], [1], [40, 80, 100]])
def test_a_run_that_logged_other_steps_is_refused(card, make_run, steps):
    """As with log.every_steps=40; its evaluations alone are in range."""
    run = recipe_card.read_run(make_run("run"))
    rows = {step: run.rows[step] if step > 1 else {} for step in steps}
    with refused("train/loss", "log.every_steps"):
        verify.verify(run._replace(rows=rows), card)


def test_another_config_is_refused_with_its_fields(card, make_run):
    run = recipe_card.read_run(make_run("run", "optim.lr=0.2", "input.threads=3", fingerprint="4"))
    for check in (lambda: verify.verify(run, card), lambda: verify.find_card(run, card.parent)):
        with refused("optim.lr: 0.1", "fingerprint.input", "tiny.json") as error:
            check()
        assert "threads" not in str(error.value)


def test_a_card_from_before_a_field_was_added_is_still_of_its_config(card, make_run):
    document = json.loads(card.read_text())
    del document["fields"]["optim"]["nesterov"]
    card.write_text(json.dumps(document))
    run = recipe_card.read_run(make_run("run"))
    assert verify.find_card(run, card.parent) == card


def test_only_runs_of_the_config_are_recorded(card, make_run, config_file, tmp_path):
    runs = [recipe_card.read_run(make_run(f"r{s}", f"seed={s}")) for s in (3, 4)]
    other = recipe_card.read_run(make_run("other", "seed=5", "optim.lr=0.2"))
    with refused("optim.lr"):
        verify.record([*runs, other], config_file, epath.Path(tmp_path / "new.json"))
    assert not (tmp_path / "new.json").exists()


def test_the_command(card, make_run, run_python, config_file, tmp_path):
    run = str(make_run("run"))
    command = ("-m", "vit_jax", "verify", "--workdir", run)
    done = run_python(*command, "--card", str(card))
    assert (done.returncode, done.stderr) == (0, "")
    done = run_python(*command, "--workdir", run)
    failed(done, "--workdir")
    done = run_python(*command, "--record", str(tmp_path / "new.json"))
    failed(done, "--config")


def test_free_fields_are_not_compared():
    data = {"mixture": {"a": {"data_dir": "x"}, "b": {"data_dir": "y"}}, "data_dir": "z"}
    fields = recipe_card.compared_fields(
        configs.resolve({"input": data, "log": {"every_steps": 3}})
    )
    assert "data_dir" not in str(fields) and "log" not in fields
    assert list(fields["input"]["mixture"]) == ["a", "b"]


@pytest.mark.parametrize("file", sorted((ROOT / "cards").glob("*.json")), ids=lambda f: f.name)
def test_cards_are_of_the_configs_that_they_name(file, monkeypatch):
    monkeypatch.chdir(ROOT)
    card = recipe_card.read(epath.Path(file))
    fields = recipe_card.compared_fields(configs.load(card.config))
    assert recipe_card.compared_fields(configs.resolve(card.fields)) == fields
    assert len(card.runs) >= recipe_card.MIN_SEEDS
