"""Earlier names are read in what earlier versions wrote, and refused where users write them."""

import json
import zlib

import pytest
from etils import epath

from tests.messages import refused
from vit_jax import config as configs
from vit_jax import evals, weights
from vit_jax.core.schema import renamed
from vit_jax.learning.optim import schedules
from vit_jax.store import runs
from vit_jax.train import train

LATER = ("loss.binarize_targets=true", "loss.kind=sigmoid", "optim.grad_accum_steps=2")


def with_old_names(tree):
    """Nested values as an earlier version wrote them, otherwise unchanged."""
    text = json.dumps(tree)
    for pair in (renamed.FIELDS | renamed.METRICS).items():
        old, new = (json.dumps(name.rpartition(".")[2]) for name in pair)
        assert old not in text
        text = text.replace(new, old)
    tree = json.loads(text)
    if "crc32" in tree:  # from a checkpoint's description
        del tree["crc32"]
        tree["crc32"] = f"{zlib.crc32(json.dumps(tree, sort_keys=True).encode()):08x}"
    return tree


def test_new_names_are_fields_and_old_ones_are_not():
    assert set(renamed.FIELDS.values()) <= set(configs.fields())
    assert not set(renamed.FIELDS) & set(configs.fields())


@pytest.mark.parametrize(("old", "new"), renamed.FIELDS.items())
def test_an_old_name_is_refused_with_the_new_one(old, new):
    section, name = old.split(".")
    for values, overrides in (({}, [f"{old}=1"]), ({section: {name: 1}}, [])):
        with refused(old, new):
            configs.resolve(values, overrides)
    for wrong in (name, f"input.{name}"):
        with refused(new):
            configs.resolve({}, [f"{wrong}=1"])


def test_an_earlier_versions_work_directory_is_read_and_resumed(tmp_path, tiny_run):
    config = tiny_run(*LATER, "total.steps=2")
    train(config, tmp_path)
    now = runs.read(epath.Path(tmp_path), "run")
    description = tmp_path / "checkpoints" / "2" / "description" / "metadata"
    rows = tmp_path / "metrics.jsonl"
    for file in (tmp_path / "config.json", description):
        written = json.loads(file.read_text())
        file.write_text(json.dumps(with_old_names(written)))
        assert json.loads(file.read_text()) != written
    lines = [json.dumps(with_old_names(json.loads(row))) for row in rows.read_text().splitlines()]
    rows.write_text("\n".join(lines) + "\n")

    assert weights.load(tmp_path).spec.num_heads == 2
    then = runs.read(epath.Path(tmp_path), "run")
    assert (then.fields, then.series) == (now.fields, now.series)
    assert "train/effective_weight_decay" in then.series
    with refused("optim.grad_accum_steps"):
        train(tiny_run(*LATER, "total.steps=2", "optim.grad_accum_steps=1"), tmp_path)
    train(config, tmp_path)
    assert len(json.loads((tmp_path / "config.json").read_text())["runs"]) == 2


@pytest.mark.parametrize("kind", schedules.DECAYS)
def test_fields_that_other_schedules_had_are_left_out(kind):
    every = {name: x for made in schedules.DECAYS.values() for name, x in vars(made()).items()}
    earlier = {"optim": every | {"schedule": kind}}
    now = configs.resolve(renamed.fields(earlier))
    assert now == configs.resolve({"optim": {"schedule": kind}})


@pytest.mark.parametrize("kind", renamed.EVAL_FIELDS)
def test_fields_that_evaluations_of_other_kinds_had_are_left_out(kind):
    made = [evals.KINDS[kind]() for kind in renamed.EVAL_FIELDS]
    every = {name: value for each in made for name, value in vars(each).items()}
    del every["macro"], every["wrong_images"], every["metrics"]  # of a later version
    earlier = {"evals": {"test": every | {"kind": kind}}}
    with refused(kind):
        configs.resolve(earlier)
    now = configs.resolve(renamed.fields(earlier))
    assert now == configs.resolve({"evals": {"test": {"kind": kind}}})
