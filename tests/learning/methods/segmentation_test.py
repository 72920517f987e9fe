"""Segmentation: the loss against NumPy, and what does not go together."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from tests.conftest import TINY_RUN
from tests.data import masks
from tests.learning.methods.runs_test import check_on_eight_devices
from tests.messages import refused
from vit_jax import config as configs
from vit_jax import models, weights
from vit_jax.learning.methods.segmentation import dice_losses, pixel_means
from vit_jax.predict import Predictor, Segmenter
from vit_jax.run.build import Run
from vit_jax.train import train

SAME_MATH = 1e-5


def case(seed=0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(3, 4, 5, 6)).astype(np.float32)
    mask = rng.integers(0, 7, (3, 4, 5))
    mask[1] = 0
    return logits, mask


def test_the_loss_is_the_mean_over_the_pixels_with_a_class():
    logits, mask = case()
    losses, right, counted = pixel_means(jnp.asarray(logits), jnp.asarray(mask))
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    for i in range(len(mask)):
        rows, columns = np.nonzero(mask[i])
        assert bool(counted[i]) == bool(len(rows))
        if not len(rows):
            assert losses[i] == right[i] == 0
            continue
        classes = mask[i, rows, columns] - 1
        wanted = -log_p[i, rows, columns, classes].mean()
        np.testing.assert_allclose(losses[i], wanted, rtol=SAME_MATH)
        hits = logits[i, rows, columns].argmax(-1) == classes
        np.testing.assert_allclose(right[i], hits.mean(), rtol=SAME_MATH)


def test_dice():
    logits, mask = case()
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for i, found in enumerate(dice_losses(jnp.asarray(logits), jnp.asarray(mask))):
        known = mask[i] > 0
        parts = []
        for c in set(mask[i][known]):
            t, q = mask[i][known] == c, p[i][known][:, c - 1]
            parts.append(1 - 2 * (q * t).sum() / (q.sum() + t.sum()))
        np.testing.assert_allclose(found, np.mean(parts) if parts else 0, rtol=SAME_MATH)


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        (["model.dense=none"], ["model.dense=None"]),
        (["method.kind=supervised"], ["model.dense=linear"]),
        (["method.kind=supervised", "model.dense=none"], ["method.kind=supervised"]),
        (["input.source=digits", "input.data_dir=none"], ["method.kind=segmentation"]),
        (["evals.t.kind=classification"], ["evals.t.kind=classification"]),
        (["input.preprocess=decode|resize(16)|randaugment(2,9)"], ["randaugment"]),
        (["input.cache=device"], ["input.cache=device"]),
        (["model.pre_logits=true"], ["model.dense=linear"]),
        (["loss.label_smoothing=0.1"], ["loss.label_smoothing"]),
    ],
)
def test_what_does_not_go_together_is_said_before_anything_is_read(tmp_path, overrides, names):
    root = masks.write(tmp_path / "set")
    with refused(*names):
        Run.build(configs.resolve(TINY_RUN, [*masks.of(root), *overrides]), tmp_path / "run")


def rows(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_evaluations_report_the_loss_that_is_learnt(tmp_path):
    """A head of zeros gives all pixels the same loss."""
    root = masks.write(tmp_path / "set", number=40)
    changes = ("loss.kind=sigmoid", "total.steps=1", "optim.warmup_steps=0", "optim.lr=1e-30")
    train(configs.resolve(TINY_RUN, [*masks.of(root), *changes]), tmp_path / "a")
    (row,) = rows(tmp_path / "a")
    assert row["t/loss"] == pytest.approx(row["train/loss"], rel=SAME_MATH)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["linear", "conv"])
def test_a_run_learns_resumes_to_the_bit_and_its_model_predicts(tmp_path, run_python, head):
    root = masks.write(tmp_path / "set", number=40)
    overrides = [
        *masks.of(root), f"model.dense={head}", "total.steps=60", "optim.lr=1e-2",
        "evals.t.per_class=true", "checkpoint.every_steps=40",
        "input.preprocess=decode|inception_crop(16, area_min=0.5)|flip_lr",
    ]  # fmt: skip
    config = configs.resolve(TINY_RUN, overrides)
    straight = train(config, tmp_path / "a")
    row = rows(tmp_path / "a")[-1]
    assert row["t/miou"] > 0.5
    each = [row[f"t/iou_{name}"] for name in masks.CLASSES]
    np.testing.assert_allclose(row["t/miou"], np.mean(each))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    shutil.rmtree(tmp_path / "b" / "checkpoints" / "60")
    resumed = train(config, tmp_path / "b")
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, straight, resumed)))

    # A larger image, which is seen through windows.
    photo = Image.open(root / "images" / "0.png").resize((50, 40), Image.Resampling.NEAREST)
    photo.save(tmp_path / "photo.png")
    out = tmp_path / "out"
    images = [str(tmp_path / "photo.png"), str(root / "images" / "1.png")]
    done = run_python(
        "-m", "vit_jax.predict", "--checkpoint", str(tmp_path / "a"), "--output", str(out), *images
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ground") == 2
    mask = Image.open(out / "photo.png")
    assert (mask.mode, mask.size) == ("P", (50, 40))
    assert Image.open(out / "photo_overlay.png").size == (50, 40)
    wanted = np.asarray(Image.open(root / "masks" / "1.png"))
    known = wanted < 255
    assert np.mean(np.asarray(Image.open(out / "1.png"))[known] == wanted[known]) > 0.7


@pytest.mark.parametrize(("outputs", "channels"), [(1, 3), (3, 4), (3, 1)])
def test_masks_are_predicted_of_classes_and_rgb_images(tmp_path, outputs, channels):
    fields = {"depth": 1, "width": 8, "mlp_dim": 8, "num_heads": 2, "image_size": 8}
    form = models.Preprocess((8, 8), (8, 8), channels=channels)
    model = models.create(
        "ViT-Ti/4", num_classes=outputs, rngs=nnx.Rngs(0), channels=channels, dense="linear",
        preprocess=form, **fields,
    )  # fmt: skip
    model.head.kernel[...] = jnp.ones_like(model.head.kernel[...])  # zeros are refused
    path = tmp_path / "model"
    weights.save(weights.Loaded(model, "ViT-Ti/4", None, 0), str(path), "checkpoint")
    with refused("classes in RGB images"):
        Segmenter(str(path))
    with refused("for each place"):
        Predictor(str(path))


@pytest.mark.slow
@pytest.mark.parametrize("head", ["linear", "conv", "linear of depths"])
def test_eight_devices_agree_with_one(run_python, tmp_path, head):
    root, of = masks.write(Path(tmp_path) / "set"), masks.of
    if head.endswith("depths"):
        root, of = masks.to_depths(root), masks.of_depths
    dense = f"model.dense={head.partition(' ')[0]}"
    overrides = [*of(root), dense, "total.steps=8", "optim.lr=1e-2"]
    overrides += ["optim.grad_accum_steps=2"] if head == "conv" else []
    check_on_eight_devices(run_python, tmp_path, configs.resolve(TINY_RUN, overrides))
