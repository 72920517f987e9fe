"""The table of tasks, and the config of each; tests/outside/vtab_test.py has the published code."""

from pathlib import Path

import pytest

from tests.messages import refused
from vit_jax import config
from vit_jax.data.sources.tfds_labels import DERIVATIONS
from vit_jax.tools.lab.vtab.table import TASKS

ROOT = Path(__file__).parents[4]


def load(variant):
    return config.load(f"{ROOT}/configs/vtab.py:{variant}")


@pytest.mark.parametrize("name", TASKS)
def test_configs(name):
    task, c = TASKS[name], load(name)
    assert (c.input.split, c.input.num_examples) == (task.train_held_out, 1000)
    assert (c.evals["test"].split, c.evals["test"].label) == (task.test, None)
    assert (c.input.label, c.input.num_classes) == (task.label, task.num_classes)
    assert c.input.preprocess == c.evals["test"].preprocess == task.preprocess(224)
    assert ("white_level(1)|" in c.input.preprocess) == name.startswith("dsprites")
    if task.label in DERIVATIONS:
        assert len(DERIVATIONS[task.label].class_names) == task.num_classes
    choose = load(f"{name},choose")
    assert (choose.input.split, choose.input.num_examples) == (task.train, 800)
    assert [each.split for each in choose.evals.values()] == [task.held_out]


def test_variants():
    c = load("dtd,size=64")
    assert (c.model.dtype, c.input.batch_size) == ("float32", 64)
    assert c.input.preprocess == "decode|resize(64, antialias=False)"
    assert load("size=384").input.num_classes == 100
    frozen = load("svhn,frozen").evals["test"]
    assert (frozen.kind, frozen.train_split) == ("frozen", TASKS["svhn"].train_held_out)
    for wrong in ("dtd,svhn", "choose,frozen", "size=x", "dtd,"):
        with refused(wrong.rpartition(",")[2]):
            load(wrong)


def test_the_page_has_the_table():
    page = (ROOT / "docs" / "vtab.md").read_text()
    for name, t in TASKS.items():
        splits = f"`{t.train_held_out}` | `{t.test}`, {t.num_test():,}"
        row = f"| `{name}` | {t.group} | `{t.folder}` | {t.num_classes} | {splits} | {t.stored} |"
        assert row in page
