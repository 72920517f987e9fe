"""A hundred steps of configs/vit_lite.py and spt_vit.py at toy size beside their authors' code.

Without what draws numbers: dropout, stochastic depth, augmentation and mixing.
"""

import json

import numpy as np
import pytest

from tests.outside.methods_test import arrays_of, check_losses, check_params, stacked, trained
from tests.outside.recipe_test import drawn_batches
from vit_jax import config as configs
from vit_jax.core.pytrees import flatten, map_named
from vit_jax.run.parts import inputs, updates

pytestmark = pytest.mark.slow
EPOCHS, UPDATES, BATCH, PIXELS, PATCH, CLASSES = 10, 10, 8, 32, 8, 10
DEVIATIONS = 4  # of the difference of two standard deviations, of as many draws each
WIDTH, MLP, DEPTH, HEADS = 32, 64, 2, 4
TOY = (
    f"model.name=ViT-Ti/{PATCH}", f"model.width={WIDTH}", f"model.mlp_dim={MLP}",
    f"model.depth={DEPTH}", f"model.num_heads={HEADS}", "model.stochastic_depth=0",
    f"input.batch_size={BATCH}", f"input.num_examples={UPDATES * BATCH}",
)  # fmt: skip
# Our names -> theirs; those of blocks with the number of the block.
VIT_LITE = {
    "patches": "tokenizer.conv_layers.0.0", "cls": "classifier.class_emb",
    "positions/embedding": "classifier.positional_emb", "norm": "classifier.norm",
    "head": "classifier.fc", "norm1": "classifier.blocks.{}.pre_norm",
    "norm2": "classifier.blocks.{}.norm1", "attention/qkv": "classifier.blocks.{}.self_attn.qkv",
    "attention/out": "classifier.blocks.{}.self_attn.proj",
    "mlp/fc1": "classifier.blocks.{}.linear1", "mlp/fc2": "classifier.blocks.{}.linear2",
}  # fmt: skip
SPT = {
    "patches": "to_patch_embedding.1", "cls": "cls_token", "positions/embedding": "pos_embedding",
    "norm": "mlp_head.0", "head": "mlp_head.1", "norm1": "transformer.layers.{}.0.norm",
    "norm2": "transformer.layers.{}.1.norm",
    "attention/qkv": "transformer.layers.{}.0.fn.to_qkv",
    "attention/out": "transformer.layers.{}.0.fn.to_out.0",
    "mlp/fc1": "transformer.layers.{}.1.fn.net.0", "mlp/fc2": "transformer.layers.{}.1.fn.net.3",
}  # fmt: skip


def ours_of(theirs, names, like):
    """Their parameters in the place of ours, a tree."""

    def value(name, x):
        part, _, kind = name.removeprefix("blocks/block/").rpartition("/")
        their_name = names.get(name) or f"{names[part]}.{'bias' if kind == 'bias' else 'weight'}"
        if "{}" not in their_name:
            return one(theirs[their_name], kind).reshape(x.shape)
        return np.stack([one(theirs[their_name.format(i)], kind) for i in range(DEPTH)]).reshape(
            x.shape
        )

    def one(array, kind):
        if array.ndim == 4:  # a convolution
            return array.transpose(2, 3, 1, 0)
        return array.T if kind == "kernel" else array

    return map_named(value, like)


@pytest.mark.parametrize(
    ("config", "checkout", "program", "names", "changes", "about"),
    [
        pytest.param(
            "vit_lite", "Compact-Transformers", "vit_lite_training", VIT_LITE,
            ("model.attention_dropout=0", "optim.warmup_epochs=3", f"total.epochs={EPOCHS}"),
            {
                "model": {
                    "img_size": PIXELS, "kernel_size": PATCH, "embedding_dim": WIDTH,
                    "num_layers": DEPTH, "num_heads": HEADS, "mlp_ratio": MLP / WIDTH,
                    "num_classes": CLASSES,
                },
                "args": {"warmup": 3, "epochs": EPOCHS},
            },
            id="vit_lite",
        ),
        pytest.param(
            "spt_vit", "SPT_LSA_ViT", "spt_training", SPT,
            (
                "loss.mixup=0", "loss.cutmix=0", "loss.mix_probability=1", "input.repeats=1",
                f"optim.warmup_steps={2 * UPDATES}", f"total.steps={EPOCHS * UPDATES}",
            ),
            {
                "model": {
                    "img_size": PIXELS, "patch_size": PATCH, "num_classes": CLASSES, "dim": WIDTH,
                    "depth": DEPTH, "heads": HEADS, "mlp_dim_ratio": MLP // WIDTH,
                    "dim_head": WIDTH // HEADS,
                },
                "args": {"warmup": 2, "epochs": EPOCHS},
            },
            id="spt_vit",
        ),
    ],
)  # fmt: skip
def test_a_hundred_steps_are_theirs(theirs, config, checkout, program, names, changes, about):
    config = configs.load(config, [*TOY, *changes])
    batches = drawn_batches(EPOCHS * UPDATES, BATCH, PIXELS)
    about["args"]["lr"] = config.optim.lr
    about |= {
        "weight_decay": config.optim.weight_decay, "mean": config.input.mean,
        "std": config.input.std,
    }  # fmt: skip
    expected = theirs(
        checkout,
        program,
        lambda: {
            "about": json.dumps(about),
            "images": stacked(batches, "image"),
            "labels": stacked(batches, "labels")[..., 0],
        },
    )
    mesh = inputs.mesh(config.mesh)
    parts = updates.step_parts(config, mesh, num_examples=UPDATES * BATCH, num_classes=CLASSES)
    like = parts.layout.state.params
    start, end = (ours_of(arrays_of(expected, kind), names, like) for kind in ("start", "end"))
    losses, state = trained(config, parts, start, batches)
    check_losses(losses, expected["losses"])
    check_params(state.params, end, start)
    for name, x in flatten(parts.layout.init(0).params).items():
        ours, drawn = np.asarray(x).std(), flatten(start)[name].std()
        assert abs(ours - drawn) <= DEVIATIONS * drawn / np.sqrt(x.size), name
