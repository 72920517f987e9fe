"""Distillation of features: distances, grids, and teachers that do not fit."""

import jax
import numpy as np
import pytest

from tests.conftest import TINY_RUN
from tests.data import masks
from tests.learning.methods.runs_test import OF_DIGITS, rows, run
from tests.messages import refused
from vit_jax import config as configs
from vit_jax import weights
from vit_jax.learning.methods import feature_distillation as distillation
from vit_jax.train import train

ROUNDING = 1e-5


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A headless ViT with other patches, width and images."""
    folder = tmp_path_factory.mktemp("teacher")
    headless = ("method.kind=masked_patch", "model.name=ViT-Ti/2", "model.width=24")
    train(configs.resolve(TINY_RUN, [*OF_DIGITS, *headless, "total.steps=2"]), folder)
    return folder


def test_distances_are_torchs():
    torch = pytest.importorskip("torch")
    x, y = np.random.default_rng(0).normal(0, 2, (2, 5, 7)).astype(np.float32)
    cosines = torch.nn.functional.cosine_similarity(torch.tensor(x), torch.tensor(y), dim=-1)
    np.testing.assert_allclose(distillation.cosine(x, y), cosines, rtol=ROUNDING)
    wanted = torch.nn.functional.layer_norm(torch.tensor(y), (7,))
    losses = torch.nn.functional.smooth_l1_loss(torch.tensor(x), wanted, reduction="none").mean(-1)
    method = distillation.FeatureDistillation(distance="smooth_l1")
    np.testing.assert_allclose(method.distances(x, y), losses, rtol=ROUNDING)


def test_smooth_l1_in_numbers():
    x, y = np.array([[0.0, 3.0]], np.float32), np.array([[0.5, 1.0]], np.float32)
    np.testing.assert_allclose(distillation.smooth_l1(x, y), [(0.125 + 1.5) / 2])


def test_a_teachers_grid_is_interpolated_behind_its_prefix():
    maps = np.arange(16, dtype=np.float32).reshape(1, 16, 1)
    tokens = np.concatenate([np.full((1, 2, 1), 99, np.float32), maps], axis=1)
    np.testing.assert_array_equal(distillation.on_grid(tokens, (4, 4), (4, 4)), maps)
    smaller = distillation.on_grid(tokens, (4, 4), (2, 2))
    assert smaller.shape == (1, 4, 1) and 0 < smaller.min() < smaller.max() < 15


@pytest.mark.parametrize("distance", ["cosine", "smooth_l1"])
def test_learns_from_a_headless_teacher_of_other_patches(tmp_path, teacher, distance):
    config = run(
        "feature_distillation", f"method.teacher={teacher}", f"method.distance={distance}",
        "method.teacher_image_size=12", "total.steps=30", "optim.lr=1e-2",
    )  # fmt: skip
    state = train(config, tmp_path)
    cosines = [row["train/patch_cosine"] for row in rows(tmp_path) if "train/patch_cosine" in row]
    assert cosines[-1] > cosines[0] + 0.1
    assert state.params["method"]["patches"]["kernel"].shape == (16, 24)
    assert not hasattr(weights.load(tmp_path), "method")


def test_a_dense_teacher_is_refused_and_one_mean_may_be_of_all_channels(tmp_path, teacher):
    """Features of patches in the place of an image's would be compared with other images'."""
    root = masks.write(tmp_path / "set")
    train(configs.resolve(TINY_RUN, [*masks.of(root), "total.steps=2"]), tmp_path / "dense")
    with refused("method.teacher", "model.dense=linear"):
        train(run("feature_distillation", f"method.teacher={tmp_path / 'dense'}"), tmp_path / "a")
    losses = []
    for name, numbers in {"one": "[0.4]", "three": "[0.4, 0.4, 0.4]"}.items():
        same = f"input.mean={numbers}", f"input.std={numbers}", "total.steps=2"
        train(run("feature_distillation", f"method.teacher={teacher}", *same), tmp_path / name)
        losses.append(rows(tmp_path / name)[-1]["train/loss"])
    assert losses[0] == losses[1]


def test_a_teacher_without_patches_gives_features_alone(tmp_path, teacher):
    convnet = (
        "model.name=R50x1", "model.width=none", "model.depth=none", "model.mlp_dim=none",
        "model.num_heads=none", "model.units=[1]", "model.root_width=32", "total.steps=2",
    )  # fmt: skip
    train(configs.resolve(TINY_RUN, [*OF_DIGITS, *convnet]), tmp_path / "convnet")
    from_convnet = (f"method.teacher={tmp_path / 'convnet'}", "total.steps=2")
    with refused("method.patch_weight=1", "convnet"):
        train(run("feature_distillation", *from_convnet), tmp_path / "a")
    state = train(
        run("feature_distillation", *from_convnet, "method.patch_weight=0"), tmp_path / "b"
    )
    assert set(state.params["method"]) == {"features"}
    with refused("method.patch_weight=1", "R50x1"):
        train(run("feature_distillation", *convnet, f"method.teacher={teacher}"), tmp_path / "c")
    assert jax.tree.leaves(state.params)
