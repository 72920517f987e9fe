"""A hundred steps of training beside timm and transformers: losses, parameters, moving average.

Both start from the files that `weights.save` writes, and see the same batches.
"""

import json

import jax
import numpy as np
import pytest
from flax import nnx

from tests.outside.checkouts import PROGRAMS
from tests.outside.recipe_test import CLASSES, drawn_batches, mixup_ratios, prepared, updated
from vit_jax import config as configs
from vit_jax import weights
from vit_jax.core.pytrees import group_layers
from vit_jax.learning.losses import batch_layout
from vit_jax.learning.step import make_update
from vit_jax.weights.files import safetensors

STEPS, BATCH = 100, 8
PROGRAM, FILE = PROGRAMS / "torch_training.py", "model.safetensors"
LOSS = 1e-4
PARAMETERS = 1e-3  # of the distance that an array has moved
LEAST_MOVE = 1e-4  # of an array, root mean square
# At 1e-3, of batches of 8, float32's last bits grow to 1e-3 of a loss within fifty steps.
RECIPE = {
    "lr": 2e-4, "weight_decay": 0.1, "warmup_steps": 10, "clip": 1.0, "ema_decay": 0.9,
    "mixup": 0.8, "label_smoothing": 0.1, "num_classes": CLASSES,
}  # fmt: skip
# Format of the files, pixels, fields of the model. Few tokens: a hundred steps take a minute.
CASES = {
    "vit_ti16": ("timm", 96, ()),
    "registers": (
        "timm",
        64,
        (
            "model.pool=avg", "model.registers=4", "model.layer_scale=0.1",
            "model.class_position=false",
        ),
    ),
    "vit_ti16_transformers": ("huggingface", 64, ()),
}  # fmt: skip


def arrays(folder):
    """The arrays of the model in a folder, by their names."""
    return {name: np.array(x.read()) for name, x in safetensors.read(folder / FILE).items()}


def drawn_start(layout):
    """The usual initialization, with noise on every array, so that none is zero."""
    rng = np.random.default_rng(0)
    noisy = lambda x: x + rng.uniform(-0.02, 0.02, x.shape).astype(np.float32)
    state = layout.init(0)
    return layout.with_params(state, jax.tree.map(noisy, state.params))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_hundred_steps(case, reference, tmp_path):
    library, pixels, fields = CASES[case]
    config = configs.resolve(
        {
            "model": {"name": "ViT-Ti/16", "dtype": "float32"},
            "input": {
                "batch_size": BATCH, "num_classes": CLASSES,
                "preprocess": f"decode|resize({pixels})",
            },
            "loss": {
                "kind": "softmax", "mixup": RECIPE["mixup"],
                "label_smoothing": RECIPE["label_smoothing"],
            },
            "optim": {
                "lr": RECIPE["lr"], "schedule": "cosine", "warmup_steps": RECIPE["warmup_steps"],
                "weight_decay": RECIPE["weight_decay"], "grad_clip_norm": RECIPE["clip"],
                "ema_decay": RECIPE["ema_decay"],
            },
            "total": {"steps": STEPS},
        },
        fields,
    )  # fmt: skip
    layout, objective, rates = prepared(config)
    state, batches = drawn_start(layout), drawn_batches(STEPS, BATCH, pixels)
    with pytest.MonkeyPatch.context() as patch:
        ratios = mixup_ratios(objective, batches, config.seed, patch)

    def written(name, params):
        """The files of the model of these parameters."""
        model = nnx.merge(layout.graph, group_layers(params))
        weights.save(weights.Loaded(model, config.model.name, None, 0), tmp_path / name, library)
        return tmp_path / name

    start = written("start", state.params)
    theirs = reference("pytorch-image-models").run(
        PROGRAM,
        {
            "about": json.dumps(RECIPE | {"library": library}),
            "images": np.stack([batch["image"] for batch in batches]),
            "labels": np.stack([batch["labels"][:, 0] for batch in batches]),
            "ratios": np.maximum(ratios, 1 - ratios),  # a slot stays mostly its own example
            **{file.name: np.frombuffer(file.read_bytes(), np.uint8) for file in start.iterdir()},
        },
        tmp_path,
    )
    shapes = batch_layout(layout.mesh, batch_size=BATCH, image_size=(pixels,) * 2, max_labels=1)
    update = make_update(layout, objective, rates, config.seed)
    rows, state = updated(update, layout, shapes, state, batches)
    losses = [row["train/loss"] for row in rows]
    np.testing.assert_allclose(losses, theirs["losses"], rtol=0, atol=LOSS)
    start = arrays(start)
    for kind, params in (("params", state.params), ("ema", state.ema)):
        for name, ours in arrays(written(kind, params)).items():
            # A key's bias has no gradient: the softmax over keys cancels it.
            if name.endswith("key.bias"):
                continue
            places = slice(None)
            if name.endswith("qkv.bias"):
                places = np.r_[: len(ours) // 3, 2 * len(ours) // 3 : len(ours)]
            expected = theirs[f"{kind}/{name}"]
            moved, apart = (np.linalg.norm((x - expected)[places]) for x in (start[name], ours))
            assert moved > LEAST_MOVE * np.sqrt(ours.size), f"{kind}/{name} stood still"
            assert apart <= PARAMETERS * moved, f"{kind}/{name}"
