"""Transfers of the fake trainer, whose accuracy is 0.9 + the learning rate + the seed / 1000."""

import csv
import json
import os
import signal
import threading

import pytest

from tests.messages import refused
from tests.tools.lab.transfer.conftest import SPLITS
from vit_jax.core.errors import Preempted
from vit_jax.tools.lab.transfer import run as transfers

RATES = "--config.optim.lr=1e-3,2e-3,3e-3"


def read(folder):
    return json.loads((folder / "results.json").read_text())


def test_a_transfer_chooses_trains_and_scores(world):
    result = world.transfer(RATES, seeds=2)
    assert sorted(world.starts()) == [*(f"optim.lr={n}e-3" for n in (1, 2, 3)), "seed=0", "seed=1"]
    assert result.choice.chosen == {"optim.lr": "3e-3"}
    assert result.score.mean == pytest.approx(0.9035)
    assert result.score.std == pytest.approx(0.001 / 2**0.5)
    assert "is the largest of those tried" in "\n".join(world.said)
    assert "test     test/accuracy 90.35% ± 0.07 (2 seeds)" in world.said
    document = json.loads((world.folder / "results.json").read_text())
    assert document["test"]["test/accuracy"]["values"] == {"0": 0.903, "1": 0.904}
    assert document["splits"]["held_out"] == "train[1293:1437]"
    assert document == read(world.folder)
    with (world.folder / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["sweep"], row["optim.lr"], row["seed"]) for row in rows] == [
        *(("choose", f"{n}e-3", "0") for n in (1, 2, 3)), ("final", "3e-3", "0"),
        ("final", "3e-3", "1"),
    ]  # fmt: skip
    assert [row["test/accuracy"] for row in rows] == ["", "", "", "0.903", "0.904"]
    page = (world.folder / "results.html").read_text()
    assert "90.35% ± 0.07 (2 seeds)" in page
    assert '<tr class="chosen"><th scope="row">3e-3</th><td class="number">90.30%</td>' in page


def test_it_goes_on_where_it_was_and_repeats_nothing(world):
    world.fate("optim.lr=2e-3", "sleep 0")
    world.fate("seed=1", "sleep 0")
    for waiting in ("optim.lr=2e-3", "seed=1"):
        stop_when_asleep(world, waiting)
        with pytest.raises(Preempted):
            world.transfer(RATES, seeds=2)
        assert not (world.folder / "results.json").exists()
    assert world.transfer(RATES, seeds=2).score.mean == pytest.approx(0.9035)
    assert sorted(world.starts()) == sorted(
        [*(f"optim.lr={n}e-3" for n in (1, 2, 3)), "seed=0", "seed=1", "optim.lr=2e-3", "seed=1"]
    )
    world.transfer(RATES, seeds=2)  # shows it again
    assert len(world.starts()) == 7


def stop_when_asleep(world, name):
    """Sends SIGINT once the training of this name waits."""

    def wait():
        logs = [world.folder / sweep / name / "log.txt" for sweep in ("choose", "final")]
        while not any(log.exists() and "asleep" in log.read_text() for log in logs):
            pause.wait(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    pause = threading.Event()
    threading.Thread(target=wait, daemon=True).start()


def test_failed_trainings_are_shown_the_rest_goes_on_and_the_status_tells(world):
    world.fate("optim.lr=3e-3", "1 0")
    world.fate("seed=1", "2 0")
    failures = world.transfer(RATES).failures
    assert [why.partition(":")[0] for why in failures] == ["choose/optim.lr=3e-3", "final/seed=1"]
    document = read(world.folder)
    assert document["choice"]["chosen"] == {"optim.lr": "2e-3"}
    assert document["test"]["test/accuracy"]["values"] == {"0": 0.902, "2": 0.904}
    assert "<h2>Did not finish</h2><ul><li>choose/" in (world.folder / "results.html").read_text()
    # Retried, the first would win now: but the test has been looked at.
    result = world.transfer(RATES, options={"retry_failed": True})
    assert "optim.lr=3e-3 would be chosen now" in "\n".join(world.said)
    assert result.choice.chosen == {"optim.lr": "2e-3"}
    assert result.score.mean == pytest.approx(0.903)
    assert len(result.score.values) == 3


def test_without_a_score_nothing_is_chosen(world):
    for n in (1, 2, 3):
        world.fate(f"optim.lr={n}e-3", "1")
    with refused("optim.lr=1e"):
        world.transfer(RATES)
    assert not (world.folder / "final").exists()


def test_nothing_to_choose(world):
    result = world.transfer("--config.optim.lr=2e-3", seeds=1)
    assert world.starts() == ["seed=0"]
    assert (result.choice.chosen, result.score.std) == ({}, None)
    assert not (world.folder / "choose").exists()
    assert "the values are the config" in (world.folder / "results.html").read_text()


def test_seeds_may_be_added_but_the_choice_stands(world):
    world.transfer(RATES, seeds=1)
    world.transfer(RATES, seeds=3)
    assert world.starts().count("seed=0") == 1
    assert len(read(world.folder)["test"]["test/accuracy"]["values"]) == 3
    with refused("optim.lr=1e"):
        world.transfer("--config.optim.lr=1e-3,2e-3,3e-3,1", seeds=3)


@pytest.mark.parametrize(
    ("arguments", "fields", "names"),
    [
        ([RATES], {"held_out": 0.2}, ["held_out:", "None", "0.2"]),
        ([RATES], {"checkpoint": "w.npz"}, ["checkpoint:", "'none'", "'w.npz'"]),
        ([RATES, "--config.optim.momentum=0.5"], {}, ["optim.momentum:", "0.5"]),
        (["--config.optim.lr=3e-3"], {}, ["optim.lr=1e-3", "--workdir"]),  # the chosen one
    ],
)
def test_another_transfer_is_refused(world, arguments, fields, names):
    world.transfer(RATES, seeds=1)
    before = read(world.folder)
    with refused(*names):
        world.transfer(*arguments, seeds=1, **fields)
    assert read(world.folder) == before


def test_data_that_have_grown_are_noticed(world, monkeypatch):
    world.fate("seed=0", "1")
    assert world.transfer(RATES, seeds=1).failures
    monkeypatch.setattr(
        transfers, "check_all", lambda *_: (SPLITS._replace(choose="train[0:1400]"), [])
    )
    with refused("choose: 'train", "train[0:1400]"):
        world.transfer(RATES, seeds=1)
