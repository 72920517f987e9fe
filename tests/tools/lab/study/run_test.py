import csv
import json

import pytest

from tests.messages import refused
from tests.tools.lab.study.conftest import AXES
from vit_jax import models
from vit_jax.tools.lab.study import run
from vit_jax.tools.lab.sweep.slots import SweepOptions

BROKEN = "model.width=32,input.subset_fraction=1"


def test_all_points_are_collected_with_their_cost(world):
    made = world.study(budgets=(1e-12, 1.0), law="M1")
    assert [each.state for each in made.points] == ["finished"] * 4
    small, *_, large = made.points
    assert (small.model, small.cost.family, small.cost.examples) == ("width 32", "ViT", 718)
    assert (large.model, large.cost.examples) == ("width 64", 1437)
    # 100 epochs of 718 examples in batches of 128.
    assert small.cost.examples_seen == round(100 * 718 / 128) * 128
    info = models.info(
        "ViT-Ti/2", num_classes=10, image_size=8, depth=4, width=64, mlp_dim=256, num_heads=4,
        pool="avg",
    )  # fmt: skip
    assert large.cost.model.forward_flops == info.forward_flops
    assert large.cost.exaflops == 3 * info.forward_flops * round(100 * 1437 / 128) * 128 / 1e18
    assert made.metric == "test/accuracy"
    assert made.optima[0].model is None
    assert made.optima[1].beyond
    written = json.loads((world.folder / "results.json").read_text())
    assert [each["exaflops"] for each in written["points"]] == [
        each.cost.exaflops for each in made.points
    ]
    assert written["budgets"][1]["beyond"]
    with (world.folder / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["test/accuracy"] for row in rows] == ["0.901"] * 4
    assert rows[0]["model.width"] == "32"
    assert rows[0]["examples_seen"] == str(round(100 * 718 / 128) * 128)
    page = (world.folder / "results.html").read_text()
    assert "4 of 4 points have finished; all of them together take " in page
    assert (
        "Form M1: e = scale · x^-exponent, with x the exaFLOPs or examples, and e the loss" in page
    )
    assert page.count('class="broad"') == page.count('class="narrow"') == 2
    assert "<script" not in page


def test_a_failed_member_is_shown_and_the_rest_goes_on(world):
    world.fate(BROKEN, "1 0")
    (why,) = world.study().failures
    assert why.startswith(f"{BROKEN}: ")
    written = json.loads((world.folder / "results.json").read_text())
    assert [each["state"] for each in written["points"]].count("finished") == 3
    (broken,) = [each for each in written["points"] if each["state"] == "failed"]
    assert broken["why"] == "the images are bad:"
    assert "the images are bad" in (world.folder / "results.html").read_text()
    made = world.study(options={"retry_failed": True})
    assert not made.failures


def test_seeds_are_taken_together(world):
    made = world.study("--config.model.width=32,64", "--config.seed=0,1,2")
    assert len(made.points) == 2
    assert made.points[0].seeds == 3
    assert made.points[0].numbers["test/accuracy"] == pytest.approx(0.902)


def test_mistakes_are_told_before_anything_is_trained(world, tmp_path):
    with refused("--metric=test/acuracy", "'test/accuracy'"):
        world.study(metric="test/acuracy")
    with refused("model.name=ViT-Ti/16") as wrong:
        world.study("--config.model.name=ViT-Ti/2,ViT-Ti/16")
    assert "model.name=ViT-Ti/2:" not in str(wrong.value)
    world.folder.mkdir()
    (world.folder / "config.json").write_text("{}")
    with refused("--workdir"):
        world.study(*AXES)
    assert world.starts() == []


def test_a_dry_run_shows_costs_and_commands_and_writes_nothing(world, capsys):
    run.dry_run(world.folder, world.asked(*AXES), SweepOptions())
    shown = capsys.readouterr().out
    assert "exaFLOPs; " in shown
    assert shown.count("python -m vit_jax.train") == 4
    assert not world.folder.exists()
