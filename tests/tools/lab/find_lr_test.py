"""The learning-rate finder: on a quadratic, whose answer is known, and by the step of a run."""

import json

import numpy as np
import pytest
from PIL import Image

from vit_jax.core.screen import Screen
from vit_jax.draw import style
from vit_jax.tools.lab import find_lr
from vit_jax.tools.lab.find_lr import RateTest, has_diverged, rate_test
from vit_jax.train import train

CURVATURE = 50.0  # gradient descent converges at rates below 2 / 50
SAME_MATH = 1e-5  # relative; another program for the rates


def of_quadratic(noise=0.0, steps=100):
    """The rates and losses of gradient descent on 1 + CURVATURE w^2 / 2, until it diverges."""
    rates, losses, w = [], [], 1.0
    rng = np.random.default_rng(0)
    for rate in np.geomspace(1e-7, 10, steps):
        losses.append(1 + CURVATURE * w * w / 2 + noise * rng.normal())
        rates.append(float(rate))
        if has_diverged(losses):
            return RateTest(rates[:-1], losses[:-1], rates[-1])
        w -= rate * CURVATURE * w
    return RateTest(rates, losses, None)


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_of_a_quadratic(noise):
    found = of_quadratic(noise)
    exact = of_quadratic()
    falls = np.diff(exact.losses[:-5])  # where it falls the fastest without any smoothing
    known = exact.rates[int(np.argmin(falls))]
    assert known < 2 / CURVATURE
    assert known / 3 < found.steepest < known * 3
    assert found.steepest < found.lowest
    assert 2 / CURVATURE < found.diverged < 10 * 2 / CURVATURE


def test_what_diverges_does_not_move_the_suggestion():
    """A slow fall, as of a network, and then losses far above the first ones."""
    rates = np.geomspace(1e-7, 10, 100)
    falls = 2.3 - 0.3 / (1 + (1e-2 / rates) ** 2)  # the fastest at 1e-2
    losses = np.where(rates < 0.5, falls, 8.0).tolist()
    found = RateTest(rates.tolist(), losses, 10.0)
    assert 3e-3 < found.steepest < 3e-2 < found.lowest < 0.5
    assert max(found.smoothed) < 3


def test_a_loss_that_never_falls_gives_no_rate(tiny_run):
    rates = np.geomspace(1e-3, 1, 20).tolist()
    found = RateTest(rates, np.linspace(1, 2, 20).tolist(), None)
    assert found.steepest is None
    assert "the loss does not fall" in "\n".join(find_lr.say(found, tiny_run()))
    assert style.png(find_lr.draw(found, "nothing"))


@pytest.mark.slow
def test_at_one_rate_it_is_a_run(tiny_run, tmp_path):
    """Rates that hardly rise give the losses of a run with a constant one."""
    fields = (
        "optim.warmup_steps=none", "optim.schedule=constant", "optim.lr=3e-3", "total.steps=12",
        "loss.mixup=0.2", "optim.ema_decay=0.9", "model.dropout=0.1",
    )  # fmt: skip
    train(tiny_run(*fields), tmp_path)
    logged = [json.loads(line)["train/loss"] for line in (tmp_path / "metrics.jsonl").open()]
    other = tiny_run(*fields, "total.steps=3", "optim.schedule=cosine", "input.skip_steps=2")
    found = rate_test(
        other, min_lr=3e-3, max_lr=3e-3 * (1 + 1e-6), steps=12, screen=Screen(quiet=True)
    )
    np.testing.assert_allclose(found.losses, logged, rtol=SAME_MATH)
    np.testing.assert_allclose(found.rates, 3e-3, rtol=SAME_MATH)


@pytest.mark.slow
def test_the_command(tmp_path, run_python):
    command = (
        "-m", "vit_jax", "find_lr", "--config", "configs/vit_digits.py", "--config.model.depth=1",
        "--config.model.width=16", "--config.model.mlp_dim=32", "--config.model.num_heads=2",
    )  # fmt: skip
    file = tmp_path / "new" / "lr.png"
    done = run_python(*command, "--output", str(file))
    assert done.returncode == 0, done.stderr
    assert "steepest fall    --config.optim.lr=" in done.stdout
    assert Image.open(file).size == tuple(round(style.DPI * side) for side in find_lr.SIZE_IN)
    found = json.loads(run_python(*command, "--json", "--steps=40").stdout)
    assert found["rates"][0] == pytest.approx(1e-7)
    assert 1e-5 < found["steepest"] < 1 and len(found["losses"]) <= 40
    done = run_python(*command, "--output", str(tmp_path / "lr.gif"))
    assert done.returncode == 1 and ".png" in done.stderr and "step" not in done.stdout
    assert list(tmp_path.iterdir()) == [tmp_path / "new"]
