"""Forty steps of fine-tuning from one file: losses, rates, parameters as by Google's loops."""

import json

import jax
import numpy as np
import pytest

from tests.outside.methods_test import arrays_of, check_losses, check_params, params_of, stacked
from tests.outside.programs.drawing import drawn
from tests.outside.recipe_test import drawn_batches, updated
from vit_jax import config as configs
from vit_jax import weights
from vit_jax.learning.losses import batch_layout
from vit_jax.run.parts import inputs, networks, updates
from vit_jax.run.parts.warm_start import warm_start

pytestmark = pytest.mark.slow
STEPS, BATCH, CLASSES, WARMUP_STEPS, LR = 40, 16, 10, 8, 0.003
TESTED = 64
RATE = 1e-6  # relative
# At higher rates last bits grow to 1e-3 of a movement; at this one arrays move little: at least so
# far, root mean square, where float32 of a scale of 1 is rounded by 6e-8.
LEAST_MOVE, ROUNDING = 1e-6, 2**-23

TRANSFORMER = {
    "mlp_dim": 24, "num_heads": 2, "num_layers": 2, "dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
}  # fmt: skip
VIT = {"hidden_size": 16, "transformer": TRANSFORMER, "classifier": "token"}
VISION_TRANSFORMERS = {
    "vit": VIT | {"patches": {"size": [8, 8]}},
    "hybrid": VIT
    | {"patches": {"size": [2, 2]}, "resnet": {"num_layers": [1], "width_factor": 0.5}},
}
PIXELS = 32


def resolved(weights, *fields):
    return configs.load(
        "configs/finetune.py:cifar10",
        (
            f"init.weights={weights}",
            "model.dtype=float32",
            f"input.preprocess=decode|resize({PIXELS})",
            f"input.batch_size={BATCH}",
            f"total.steps={STEPS}",
            f"optim.warmup_steps={WARMUP_STEPS}",
            f"optim.lr={LR}",
            *fields,
        ),
    )


def fine_tuned(config, batches):
    """The losses, the rates, and the parameters before and after all steps."""
    mesh = inputs.mesh(config.mesh)
    parts = updates.step_parts(config, mesh, num_examples=BATCH, num_classes=CLASSES)
    layout, init = parts.layout, config.init
    state = warm_start(
        layout.init(config.seed),
        networks.trained_weights(init),
        parts.model.info,
        head=init.head,
        position_resize=init.position_resize,
        ema=init.ema,
    )
    start = jax.tree.map(np.asarray, state.params)
    state = layout.with_params(state, state.params)
    shapes = batch_layout(mesh, batch_size=BATCH, image_size=(PIXELS, PIXELS), max_labels=1)
    rows, state = updated(updates.update(config, parts), layout, shapes, state, batches)
    losses, rates = ([row[f"train/{key}"] for row in rows] for key in ("loss", "learning_rate"))
    return losses, rates, start, state.params


def check_end(params, file, start, batch, accuracy):
    """Compares parameters with those of a file, and the accuracy of its model on a batch."""
    model = weights.load(file, image_size=PIXELS)
    check_params(params, params_of(model), start, LEAST_MOVE, ROUNDING)
    logits = model((batch["image"] / 127.5 - 1).astype(np.float32))
    np.testing.assert_allclose(
        np.mean(logits.argmax(axis=1) == batch["labels"][:, 0]), accuracy, atol=1e-6
    )


@pytest.mark.parametrize("case", VISION_TRANSFORMERS)
def test_fine_tuning_is_that_of_vision_transformer(case, theirs, tmp_path):
    batches, tested = drawn_batches(STEPS, BATCH, PIXELS), drawn_batches(1, TESTED, PIXELS)
    about = {
        "num_classes": CLASSES, "cases": VISION_TRANSFORMERS,
        "pretrained": {"num_classes": 3, "representation_size": 16},
        "config": {
            "total_steps": STEPS, "base_lr": LR, "decay_type": "cosine", "accum_steps": 2,
            "warmup_steps": WARMUP_STEPS, "grad_norm_clip": 1.0,
        },
    }  # fmt: skip
    expected = theirs(
        "vision_transformer",
        "vision_transformer_training",
        lambda: {
            "about": json.dumps(about),
            "images": stacked(batches, "image"),
            "labels": stacked(batches, "labels")[..., 0],
            "test_images": stacked(tested, "image"),
            "test_labels": stacked(tested, "labels")[..., 0],
        },
    )
    expected = arrays_of(expected, case)
    np.savez(tmp_path / "start.npz", **drawn(json.loads(str(expected["shapes"]))))
    np.savez(tmp_path / "end.npz", **arrays_of(expected, "params"))
    config = resolved(tmp_path / "start.npz", "optim.grad_accum_steps=2", "optim.mu_dtype=bfloat16")
    losses, rates, start, end = fine_tuned(config, batches)
    check_losses(losses, expected["train_loss"])
    # There the rate that is logged after a step is of the next one.
    np.testing.assert_allclose(rates[1:], expected["lr"][:-1], rtol=RATE)
    check_end(end, tmp_path / "end.npz", start, tested[0], expected["accuracy_test"][-1])
