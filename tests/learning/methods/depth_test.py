"""Depth: the loss and the errors against NumPy, and a run that learns."""

import json
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import TINY_RUN
from tests.data import masks
from tests.messages import refused
from vit_jax import config as configs
from vit_jax.evals.depth import NUMBERS, DepthConfig, errors
from vit_jax.learning.method import StepInputs
from vit_jax.learning.methods.depth import Depth
from vit_jax.predict import Segmenter
from vit_jax.train import train

SAME_MATH = 1e-5


def case():
    rng = np.random.default_rng(0)
    stored = rng.integers(0, 3000, (3, 4, 5)).astype(np.uint16)
    stored[:, 0] = 0
    return stored, rng.normal(size=(3, 4, 5, 1)).astype(np.float32)


@pytest.mark.parametrize("invariance", [0.0, 0.5, 1.0])
def test_the_loss_is_the_scale_invariant_error(invariance):
    stored, logits = case()
    model = lambda images, train, rngs: jnp.asarray(logits)
    method = Depth(unit=0.01, invariance=invariance)
    inputs = StepInputs(jnp.zeros((3, 4, 5, 3)), None, {"depth": jnp.asarray(stored)})
    found = method.loss(model, inputs, None, None).losses
    for i in range(3):
        known = stored[i] > 0
        d = logits[i, ..., 0][known] - np.log(0.01 * stored[i][known])
        wanted = np.mean(d**2) - invariance * np.mean(d) ** 2
        np.testing.assert_allclose(found[i], wanted, rtol=SAME_MATH, atol=SAME_MATH)


def test_the_errors():
    stored, logits = case()
    predicted, depth = np.exp(logits[..., 0]) * 10, 0.01 * np.maximum(stored, 1).astype(np.float32)
    found = errors(*map(jnp.asarray, (predicted, depth, stored)))
    for i in range(3):
        known = stored[i] > 0
        p, d = predicted[i][known], depth[i][known]
        ratio = np.maximum(p / d, d / p)
        wanted = {
            "rmse": np.sqrt(np.mean((p - d) ** 2)),
            "abs_rel": np.mean(abs(p - d) / d),
            **{f"delta{k}": np.mean(ratio < 1.25**k) for k in (1, 2, 3)},
        }
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name][i], value, rtol=SAME_MATH)


def test_images_without_a_depth_count_for_nothing():
    arrays = {name: np.array([1.0, 9.0]) for name in NUMBERS}
    split = types.SimpleNamespace(read=lambda *_: arrays, where="evals.t")
    inputs = types.SimpleNamespace(
        objective=types.SimpleNamespace(method=Depth()), read=lambda _: split
    )
    evaluator = DepthConfig().make(inputs)
    arrays["counted"] = np.array([True, False])
    numbers = dict.fromkeys(NUMBERS, 1.0)
    assert evaluator.run(None, None, None) == numbers | {"examples": 1.0}
    arrays["counted"] = np.array([False, False])
    with refused("evals.t"):
        evaluator.run(None, None, None)


@pytest.mark.slow
def test_a_run_learns_depth(tmp_path):
    root = masks.to_depths(masks.write(tmp_path / "set", number=40))
    overrides = [*masks.of_depths(root), "total.steps=150", "optim.lr=1e-2",
                 "checkpoint.every_steps=100"]  # fmt: skip
    config = configs.resolve(TINY_RUN, overrides)
    straight = train(config, tmp_path / "run")
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["t/delta1"] > 0.6 and row["t/rmse"] < 1.0
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "150")
    resumed = train(config, tmp_path / "run")
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, straight, resumed)))
    with refused("one number for each pixel"):
        Segmenter(str(tmp_path / "run"))
