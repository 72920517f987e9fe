"""What all methods have in common: they learn, resume to the bit, and leave ordinary weights."""

import functools
import json
import shutil

import jax
import numpy as np
import pytest

from tests.conftest import TINY_RUN
from tests.messages import refused
from vit_jax import config as configs
from vit_jax import weights
from vit_jax.learning.methods import METHODS, SUPERVISED
from vit_jax.predict import Predictor
from vit_jax.store.workdir import read_document
from vit_jax.train import train

OF_DIGITS = (
    "input.source=digits", "input.split=train", "input.num_examples=none",
    "input.num_classes=none", "input.preprocess=decode|resize(16)",
)  # fmt: skip
RANDOM = "decode|random_resized_crop({}, {}, 1.0)"
HEADS = (
    "method.prototypes=32", "method.head_hidden=32", "method.head_bottleneck=16",
    "method.momentum=0.9", "method.still=0",
)  # fmt: skip
SMALLER = {
    "dino": (
        *HEADS, f"input.preprocess={RANDOM.format(16, 0.4)}",
        f"input.views=['{RANDOM.format(16, 0.4)}','{RANDOM.format(8, 0.1)}']",
    ),
    "lejepa": (
        "method.directions=16", "method.projector_hidden=32", "method.projector_width=8",
        f"input.preprocess={RANDOM.format(16, 0.4)}",
        f"input.views=['{RANDOM.format(16, 0.4)}','{RANDOM.format(8, 0.1)}']",
    ),
    "mae": ("method.decoder_width=16", "method.decoder_depth=1", "method.decoder_heads=2"),
}  # fmt: skip
LARGE, SMALL = RANDOM.format(16, 0.4), RANDOM.format(8, 0.1)
BIT = ("model.width=none", "model.depth=none", "model.mlp_dim=none", "model.num_heads=none")
MOVING = ("dino",)  # whose targets move, and so the loss's scale
DENSE = {"depth", "segmentation"}  # tested in files of their own
KINDS = sorted(set(METHODS) - {SUPERVISED, *DENSE})


def run(kind, *overrides):
    """A tiny run."""
    kind = (f"method.kind={kind}", *SMALLER.get(kind, ()))
    return configs.resolve(TINY_RUN, [*OF_DIGITS, *kind, *overrides])


@pytest.fixture(scope="module")
def needed(tmp_path_factory):
    """`needed(kind)`: overrides that a method cannot do without."""

    @functools.cache
    def of_kind(kind):
        if kind not in ("distillation", "feature_distillation"):
            return ()
        folder = tmp_path_factory.mktemp("teacher")
        train(configs.resolve(TINY_RUN, [*OF_DIGITS, "total.steps=60", "optim.lr=3e-3"]), folder)
        return (f"method.teacher={folder}",)

    return of_kind


def rows(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def check_on_eight_devices(run_python, folder, config):
    """The losses of eight devices are those of one."""
    program = """
import sys, json
from pathlib import Path
from vit_jax import config as configs
from vit_jax.train import train
values, folder = sys.argv[1:]
for name, mesh in {"one": (1, 1, 1), "eight": (2, 2, 2)}.items():
    mesh = [f"mesh.{axis}={n}" for axis, n in zip(("data", "fsdp", "tensor"), mesh)]
    train(configs.resolve(json.loads(values), mesh), Path(folder) / name)
"""
    values = json.dumps(configs.to_dict(config))
    done = run_python("-c", program, values, str(folder), devices=8)
    assert done.returncode == 0, done.stderr
    one, eight = (
        [row["train/loss"] for row in rows(folder / name) if "train/loss" in row]
        for name in ("one", "eight")
    )
    np.testing.assert_allclose(one, eight, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_learns_and_resumes_and_its_model_is_an_ordinary_one(tmp_path, kind, needed):
    frozen = (
        "evals.f.kind=frozen", "evals.f.split=test", "evals.f.preprocess=decode|resize(16)",
        "evals.f.shots=1", "evals.f.seeds=1", "evals.f.neighbours=5", "evals.f.train_per_class=2",
    )  # fmt: skip
    steps = (
        "total.steps=30", "checkpoint.every_steps=20", "optim.lr=3e-3", "log.first_batch=8",
    )  # fmt: skip
    config = run(kind, *steps, *frozen, *needed(kind))
    straight = train(config, tmp_path / "a")
    losses = [row["train/loss"] for row in rows(tmp_path / "a") if "train/loss" in row]
    if kind not in MOVING:
        assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])
    assert 0 <= rows(tmp_path / "a")[-1]["f/knn5_accuracy"] <= 1

    half = configs.resolve(configs.to_dict(config), ["total.steps=30"])
    checkpoints = tmp_path / "a" / "checkpoints"
    (tmp_path / "b").mkdir()
    # As if it had been killed after step 20.
    shutil.copytree(tmp_path / "a", tmp_path / "b", dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "b" / "checkpoints" / "30")
    assert (checkpoints / "20").exists()
    resumed = train(half, tmp_path / "b")
    same = jax.tree.map(np.array_equal, straight, resumed)
    assert all(jax.tree.leaves(same))

    model = weights.load(tmp_path / "a")
    assert model.features(np.zeros((1, 16, 16, 3), np.float32)).shape == (1, 16)
    assert not hasattr(model, "method")
    fine_tuned = configs.resolve(
        TINY_RUN,
        [*OF_DIGITS, f"init.weights={tmp_path / 'a'}", "init.head=reset", "total.steps=3",
         "optim.lr=1e-30"],
    )  # fmt: skip
    state = train(fine_tuned, tmp_path / "c")
    kernel = straight.params["patches"]["kernel"]
    np.testing.assert_allclose(state.params["patches"]["kernel"], kernel, rtol=1e-6)
    assert "method" not in state.params


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_eight_devices_agree_with_one(run_python, tmp_path, kind, needed):
    overrides = ("total.steps=8", *needed(kind))
    if run(kind, *overrides).method.whole_batch is None:  # else microbatches are refused
        overrides += ("optim.grad_accum_steps=2",)
    check_on_eight_devices(run_python, tmp_path, run(kind, *overrides))


@pytest.mark.parametrize(
    ("kind", "overrides", "name"),
    [
        ("mae", ["method.masked=0.99"], "method.masked=0.99"),
        ("masked_patch", ["method.masked=0.01"], "method.masked=0.01"),
        ("dino", ["method.prototypes=1"], "method.prototypes=1"),
        # Its fields, such as model.width, are another family's, but that is not what is wrong.
        ("mae", ["model.name=R50x1"], "model.name=R50x1"),
        ("dino", ["model.name=EfficientNet-B0"], "model.name=EfficientNet-B0"),
        ("mae", ["model.pool=map"], "model.pool=avg"),
        ("masked_patch", ["model.pre_logits=true"], "model.pre_logits=False"),
        ("mae", ["model.position_embedding=rotary_2d"], "model.position_embedding=rotary_2d"),
        ("mae", ["method.decoder_width=30"], "method.decoder_width=30"),
        ("mae", ["loss.label_smoothing=0.1"], "loss.label_smoothing=0.1"),
        ("masked_patch", ["method.target=colours_4x4", "model.name=ViT-Ti/2"], "colours_4x4"),
        ("masked_patch", ["evals.t.split=test", "evals.t.preprocess=decode|resize(16)"],
         "evals.t.kind=classification"),
        ("mae", ["model.position_at=shared"], "at shared"),
        ("dino", ["input.views=[]"], "input.views"),
        ("dino", [f"input.views=['{SMALL}']"], "(8, 8)"),
        ("dino", [f"input.views=['{LARGE}','{RANDOM.format(20, 0.1)}']"], "(20, 20)"),
        ("dino", [f"input.views=['{LARGE}','{RANDOM.format(7, 0.1)}']"], "(7, 7)"),
        ("dino", ["model.name=Axial-ViT-Ti/4"], "model.name=Axial"),
        ("dino", ["model.name=R50x1", *BIT, "method.patch_weight=1"], "method.patch_weight=1"),
        ("dino", ["model.position_embedding=relative"], "model.position_embedding=relative"),
        ("dino", ["method.patch_weight=1", "method.masked_views=0"], "method.masked_views=0"),
        ("dino", ["method.masked_views=0.3"], "method.masked_views=0.3"),
        ("dino", ["method.centring=sinkhorn", "method.centre_momentum=0"],
         "method.centre_momentum=0"),
        ("dino", ["method.patch_weight=1", "method.masked_least=0.6"], "method.masked_least=0.6"),
        ("dino", ["optim.ema_decay=0.9"], "optim.ema_decay=0.9"),
        ("dino", ["method.centring=sinkhorn", "optim.grad_accum_steps=2"],
         "method.centring=sinkhorn"),
        ("dino", ["input.cache=device"], "input.cache=device"),
        ("lejepa", ["input.views=[]"], "input.views"),
        ("lejepa", ["input.views=['decode|random_resized_crop(7)']"], "(7, 7)"),
        ("lejepa", ["model.name=Axial-ViT-Ti/4"], "model.name=Axial"),
        ("lejepa", ["optim.grad_accum_steps=2"], "method.sigreg_weight=0.02"),
        ("feature_distillation", [], "method.teacher"),
        ("feature_distillation", ["method.teacher=absent"], "absent"),
        ("feature_distillation", ["method.patch_weight=0", "method.feature_weight=0"],
         "method.teacher"),
    ],
)  # fmt: skip
def test_what_cannot_be_learnt_is_one_message(tmp_path, kind, overrides, name):
    with refused(name):
        train(run(kind, *overrides), tmp_path)


def test_the_config_is_written_whole_and_read_again(tmp_path):
    config = run("mae", "method.masked=0.6", "total.steps=3", "model.depth=1")
    train(config, tmp_path)
    written = read_document(tmp_path)["config"]
    assert written["method"]["masked"] == 0.6
    assert written["method"]["kind"] == "mae"
    assert configs.resolve(written) == config
    with refused("method.masked"):
        train(run("mae", "method.masked=0.7", "total.steps=3", "model.depth=1"), tmp_path)
    with refused(tmp_path):
        Predictor(str(tmp_path))
