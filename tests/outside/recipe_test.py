"""Forty steps of a recipe at toy size: losses and parameters against big_vision's own code."""

import json

import jax
import numpy as np
import pytest

from vit_jax import config as configs
from vit_jax.core import pytrees
from vit_jax.learning.losses import batch_layout
from vit_jax.learning.step import examples, lower_update, make_update
from vit_jax.run.parts import inputs, networks, updates
from vit_jax.run.parts.durations import make_durations
from vit_jax.weights.formats import google_npz
from vit_jax.weights.tables import to_theirs

STEPS, BATCH, CLASSES, PIXELS, PATCH = 40, 16, 10, 16, 4
WARMUP_STEPS = 8
SIZES = {"width": 16, "depth": 2, "mlp_dim": 32}
HEADS = 2
# Relative, for loss and gradient norm: float32 sums in another order, through forty updates. A last
# bit of the first parameters moves the losses of the first ten steps by 2e-7, those of all forty by
# 2e-6 (the largest of eight draws); processors of two makers add in orders of their own.
# Parameters: Adam's first moment is bfloat16, so its last bit shows as 2^-8 of an update.
LOSS, LATE_LOSS, NORM, PARAMETERS = 1e-6, 5e-6, 1e-5, 1e-4
EARLY_STEPS = STEPS // 2
LEAST_CHANGE = 50 * PARAMETERS  # of every parameter in these steps

# Their config and ours, with overrides of both where recipes differ or would move too little.
CONFIGS = {
    "vit_s16_i1k": ("vit_s16_i1k", {}, "vit_s16_i1k.py", ()),
    "vit_i21k": ("vit_i21k", {}, "vit_augreg.py:aug=light2", ("model.pool=avg",)),
    "transfer": (
        "transfer:model=vit-i21k-augreg-b/32",
        {"lr": 0.02},
        "finetune.py:cifar10",
        ("model.class_position=false", "optim.mu_dtype=bfloat16", "optim.lr=0.02"),
    ),
}
TOY = (
    *(f"model.{name}={value}" for name, value in SIZES.items()),
    f"model.num_heads={HEADS}",
    f"model.name=ViT-S/{PATCH}",
    "model.dtype=float32",  # as theirs
    f"input.preprocess=decode|resize({PIXELS})",
    f"input.batch_size={BATCH}",
    f"input.num_classes={CLASSES}",
    "input.num_examples=none",
    "total.epochs=none",
    f"total.steps={STEPS}",
    f"optim.warmup_steps={WARMUP_STEPS}",
)
THEIR_TOY = {
    "num_classes": CLASSES,
    "input.batch_size": BATCH,
    "schedule.warmup_steps": WARMUP_STEPS,
}
THEIR_MODEL = {**SIZES, "num_heads": HEADS, "patch_size": (PATCH, PATCH)}


@pytest.mark.parametrize("name", CONFIGS)
def test_forty_steps_of_a_recipe_are_those_of_big_vision(name, theirs, monkeypatch):
    their_name, fields, file, overrides = CONFIGS[name]
    config = configs.load(f"configs/{file}", (*TOY, *overrides))
    layout, objective, rates = prepared(config)
    state, batches = drawn_start(layout), drawn_batches()
    start = by_their_names(state.params)
    expected = theirs(
        "big_vision",
        "big_vision_recipe",
        lambda: {
            "about": json.dumps(
                {"config": their_name, "overrides": THEIR_TOY | fields, "model": THEIR_MODEL}
            ),
            "images": np.stack([batch["image"] for batch in batches]),
            "labels": np.stack([batch["labels"][:, 0] for batch in batches]),
            "ratios": mixup_ratios(objective, batches, config.seed, monkeypatch),
            **{f"params/{name}": x for name, x in start.items()},
        },
        case=name,
    )

    shapes = batch_layout(layout.mesh, batch_size=BATCH, image_size=(PIXELS, PIXELS), max_labels=1)
    update = make_update(layout, objective, rates, config.seed)
    rows, state = updated(update, layout, shapes, state, batches)
    losses, norms = ([row[f"train/{what}"] for row in rows] for what in ("loss", "grad_norm"))
    early, late = slice(EARLY_STEPS), slice(EARLY_STEPS, None)
    np.testing.assert_allclose(losses[early], expected["losses"][early], rtol=LOSS)
    np.testing.assert_allclose(losses[late], expected["losses"][late], rtol=LATE_LOSS)
    np.testing.assert_allclose(norms, expected["norms"], rtol=NORM)
    assert losses[-1] < losses[0]
    after = by_their_names(state.params)
    assert {f"params/{param}" for param in after} == {
        n for n in expected if n.startswith("params/")
    }
    for param, actual in after.items():
        if param.endswith("key/bias"):  # has no gradient: the softmax over keys cancels it
            continue
        wanted = expected[f"params/{param}"]
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=PARAMETERS, err_msg=param)
        assert np.abs(wanted - start[param]).max() > LEAST_CHANGE, f"{param} stood still"


def prepared(config):
    """(layout, objective, rates) of a run, as made by the train command."""
    plan = make_durations(config, num_examples=1000)
    schedule = updates.schedule(config.optim, plan)
    model = networks.model(config, num_classes=CLASSES)
    layout = updates.layout(config, model.make, schedule, inputs.mesh(config.mesh))
    objective = updates.objective(config, num_classes=CLASSES)
    return layout, objective, updates.rates(config.optim, schedule)


def drawn_start(layout):
    """The state before the first step, all parameters random, even those that start at zero."""
    rng = np.random.default_rng(0)

    def draw(name, shape):
        if not name.endswith("kernel"):
            return float(name.endswith("scale")) + rng.uniform(-0.1, 0.1, shape.shape)
        return rng.uniform(-0.4, 0.4, shape.shape)

    def placed(name, shape):
        return jax.device_put(draw(name, shape).astype(np.float32), shape.sharding)

    return layout.with_params(layout.init(0), pytrees.map_named(placed, layout.state.params))


def drawn_batches(steps=STEPS, batch_size=BATCH, pixels=PIXELS):
    """Random batches whose classes differ in brightness, so that there is something to learn."""
    rng = np.random.default_rng(1)
    batches, weight = [], np.ones(batch_size, np.float32)
    for _ in range(steps):
        labels = rng.integers(0, CLASSES, (batch_size, 1), dtype=np.int32)
        noise = rng.integers(0, 80, (batch_size, pixels, pixels, 3))
        images = (noise + 17 * labels[:, :, None, None]).astype(np.uint8)
        batches.append({"image": images, "labels": labels, "weight": weight})
    return batches


def updated(update, layout, shapes, state, batches, *teacher):
    """The scalars of each step, and the state after all."""
    update, rows = lower_update(update, layout, shapes).compile(), []
    for batch in batches:
        placed = {k: jax.device_put(x, shapes[k].sharding) for k, x in batch.items()}
        state, scalars = update(state, placed, *teacher)
        rows.append(jax.device_get(scalars))
    return rows, state


def mixup_ratios(objective, batches, seed, monkeypatch):
    """[STEPS]: our steps' draws from the Beta distribution; 1 where there is no mixup."""
    drawn, beta = [], jax.random.beta

    def recorded(*arguments):
        drawn.append(beta(*arguments))
        return drawn[-1]

    with monkeypatch.context() as patch:
        patch.setattr(jax.random, "beta", recorded)
        for step, batch in enumerate(batches):
            examples(batch, objective, seed=seed, done=step)
    return np.asarray(drawn or [1.0] * len(batches))


def by_their_names(params):
    params = {name: np.asarray(x) for name, x in pytrees.flatten(params).items()}
    layout = google_npz.BIG_VISION
    arrays = to_theirs(layout, params)
    return {name: tensor.read() for name, tensor in arrays.items()}
