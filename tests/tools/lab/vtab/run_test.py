"""Runs over tasks whose data are tiny and whose trainings are those of the sweep's fake trainer."""

import csv
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from etils import epath
from tensorflow_datasets import features as f

from tests.data.sources.tfds_labels_test import OBJECTS, scene, write
from tests.messages import refused, told
from tests.tools.lab.conftest import FAKE
from vit_jax.tools.lab.sweep.slots import SweepOptions
from vit_jax.tools.lab.transfer import run as transfers
from vit_jax.tools.lab.transfer.results import OverSeeds
from vit_jax.tools.lab.transfer.task import Splits
from vit_jax.tools.lab.vtab import run, summary, table
from vit_jax.tools.lab.vtab.table import GROUPS, TASKS

ROOT = Path(__file__).parents[4]
CONFIG = f"{ROOT}/configs/vtab.py"
OF_FEW = {"held_out": "train[8:10]", "test": "train[10:]", "sizes": {"train": 12}}
FROM_SCRATCH = ("model.name=ViT-Ti/16", "optim.lr=1e-3")
NAMES = ("cifar100", "clevr_count", "clevr_distance")


@pytest.fixture(scope="module")
def tfds(tmp_path_factory):
    """TFDS's folder, with twelve scenes, and twelve images of three classes that were recoded."""
    root = tmp_path_factory.mktemp("tfds")
    scenes = [scene(*[7.9 + n / 3] * (3 + n % 8)) for n in range(12)]
    write(root / "clevr/3.1.0", "clevr", {"objects": OBJECTS["clevr"]}, scenes)
    pixels = np.zeros([8, 8, 3], np.uint8)
    features = {
        "image": f.Image(shape=(None, None, 3), encoding_format="jpeg"),
        "label": f.ClassLabel(num_classes=4),
    }
    images = [{"image": pixels, "label": n % 3} for n in range(12)]
    write(root / "cifar100/2.0.0", "cifar100", features, images)
    return str(root)


@pytest.fixture(autouse=True)
def few(monkeypatch, tmp_path):
    """Tasks of eight examples to train on, two to choose by and two to test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(table, "NUM_TRAIN", 8)
    monkeypatch.setattr(table, "NUM_HELD_OUT", 2)
    for name in NAMES:
        monkeypatch.setitem(TASKS, name, TASKS[name]._replace(**OF_FEW))
    monkeypatch.setitem(TASKS, "cifar100", TASKS["cifar100"]._replace(num_classes=4))


@pytest.fixture
def world(tmp_path, monkeypatch, fate, tfds, capsys):
    """`world.run("optim.lr=1e-3,2e-3", tasks=NAMES)`; `world.fate("seed=0", "0 1")`."""
    looked = lambda task, *_: (Splits("all", task.choose_split, task.held_out_split), [])
    monkeypatch.setattr(transfers, "check_all", looked)
    # The fake's config.json is not the config that the command would have.
    from_config, allowed = run.grid.from_config, ("--allow_config_change",)
    monkeypatch.setattr(run.grid, "from_config", lambda *a: from_config(*a)._replace(flags=allowed))
    made = SimpleNamespace(folder=epath.Path(tmp_path / "vtab"), said=[])

    def start(*overrides, tasks=NAMES[:2], seeds=2, options=(), **fields):
        capsys.readouterr()
        asked = run.VtabRun("none", CONFIG, (*FROM_SCRATCH, *overrides), tfds, tasks)
        asked = asked._replace(seeds=seeds, **fields)
        given = SweepOptions("vtab", slots=3, trainer=FAKE, **dict(options))
        result = run.vtab(made.folder, asked, given)
        made.said = capsys.readouterr().out.splitlines()
        return result

    made.run, made.fate, made.starts = start, fate, fate.starts
    return made


def test_all_that_is_missing_is_named_before_anything_starts(tfds, tmp_path):
    with refused("tfds.builder('caltech101'", "resisc45", "smallnorb_azimuth") as error:
        run.find_data([*TASKS], tfds)
    missing = str(error.value).rpartition("--leave_out=")[2].split(",")
    assert set(TASKS) - set(missing) == set(NAMES)
    asked = run.VtabRun("none", CONFIG, (), tfds, (), tuple(missing))
    assert asked.names() == [*NAMES]
    for wrong, name in (
        ({"tasks": ("cifar10",)}, "'cifar100'"),
        ({"tasks": ("dtd",)}, "--leave_out"),
        ({"leave_out": tuple(TASKS)}, "--leave_out"),
    ):
        with refused(name):
            asked._replace(**wrong).names()


def test_a_run_over_tasks(world):
    result = world.run("optim.lr=1e-3,2e-3")
    document = json.loads((world.folder / "results.json").read_text())
    assert list(document["tasks"]) == list(NAMES[:2]) and "dtd" in document["left_out"]
    cifar = document["tasks"]["cifar100"]
    assert cifar["chosen"] == {"optim.lr": "2e-3"}
    assert cifar["accuracy"]["mean"] == pytest.approx(0.9025)
    assert cifar["choices"] == {
        "data": "cifar100 2.0.0 (the benchmark reads version 3)",
        "images": "JPEG where TFDS stores PNG: not the original images",
        "preprocessing": "decode|resize(224, antialias=False)",
        "normalisation": "(pixel - 0.5) / 0.5: no weights",
        "training": "train[:8]+train[8:10]: first in TFDS's order, not stratified; 1 of 4 classes "
        "absent",
        "test": "train[10:], top-1",
    }
    assert document == result.document() and set(document["means"].values()) == {None}
    said = "\n".join(world.said)
    assert "task     clevr_count, 2 of 2, of clevr 3.1.0" in said
    assert re.search("natural +CIFAR-100 +90.25% ± 0.07", said) and "1 of 7 tasks" in said
    with (world.folder / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["task"] for row in rows][:3] == [*NAMES[:2], "mean of natural"]
    assert rows[1]["images"] == "PNG, as TFDS stores them"
    page = (world.folder / "results.html").read_text()
    assert "not the original images" in page and "Left out: Caltech101, DTD" in page
    # Again: it repeats nothing; another checkpoint is refused.
    began = len(world.starts())
    world.run("optim.lr=1e-3,2e-3")
    assert len(world.starts()) == began == 8
    with refused("'none'"):
        world.run(checkpoint="other")


def test_a_failed_task_is_told_and_the_rest_goes_on(world, monkeypatch, capsys):
    world.fate("seed=0", "1 0")
    flags = SimpleNamespace(dry_run=False, json=True, launcher=None)
    monkeypatch.setattr(run.sweeps, "FLAGS", flags)
    with refused("log.txt"):
        run.sweeps.run_or_show(lambda _: world.run(seeds=1), None, world.folder)
    assert capsys.readouterr().out == (world.folder / "results.json").read_text()
    document = json.loads((world.folder / "results.json").read_text())["tasks"]
    assert document["cifar100"]["accuracy"] is None and "images" in document["cifar100"]["why"]
    assert document["clevr_count"]["accuracy"]["mean"] == pytest.approx(0.901)
    world.run(seeds=1, options={"retry_failed": True})


def test_a_refused_task_has_no_number_of_other_settings(world):
    world.run("optim.lr=1e-3,2e-3")
    result = world.run("optim.lr=1e-3,2e-3", "optim.momentum=0.5")
    told("\n".join(result.failures), "optim.momentum:", "0.5")
    document = json.loads((world.folder / "results.json").read_text())["tasks"]["cifar100"]
    assert (document["accuracy"], document["chosen"]) == (None, {})
    world.run("optim.lr=1e-3,2e-3")
    document = json.loads((world.folder / "results.json").read_text())["tasks"]["cifar100"]
    assert document["accuracy"]["mean"] == pytest.approx(0.9025)


def test_means_are_of_whole_groups():
    """By hand: 7 tasks of 0.7, 4 of 0.9, 8 of 0.5; a deviation is that of the seeds' means."""
    of_groups = dict(zip(GROUPS, (0.7, 0.9, 0.5), strict=True))
    scores = {}
    for place, (name, task) in enumerate(TASKS.items()):
        mean = of_groups[task.group]
        values = {"0": mean - 0.01, "1": mean + 0.01}
        if place % 2:  # other tasks make up for it
            values = {"0": mean + 0.01, "1": mean - 0.01}
        scores[name] = OverSeeds(mean, 0.01 * 2**0.5, values)
    means = summary.means(scores)
    assert means["natural"].mean == pytest.approx(0.7)
    assert means[summary.ALL].mean == pytest.approx((7 * 0.7 + 4 * 0.9 + 8 * 0.5) / 19)
    assert means[summary.OF_GROUPS].mean == pytest.approx(0.7)
    assert means[summary.ALL].std == pytest.approx(2 * 0.01 / 19 / 2**0.5)
    assert summary.format_accuracy(means["specialized"]) == "90.00% ± 0.00"
    others = scores | {"dtd": OverSeeds(0.7, None, {"5": 0.7})}
    assert summary.means(others)["natural"].std is None
    del scores["dtd"]
    assert [name for name, mean in summary.means(scores).items() if mean] == [*GROUPS[1:]]
