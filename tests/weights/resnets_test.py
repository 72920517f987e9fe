"""BiT ResNets and hybrids in the formats of other projects: names, there and back, bad input.

Whether the others compute the same from these files is in parity_resnets_test.py.
"""

import numpy as np
import pytest

from vit_jax import weights
from vit_jax.core.errors import UserError


@pytest.mark.parametrize(
    "fields", [{}, {"units": (2,)}, {"num_classes": 0}], ids=["default", "one_stage", "headless"]
)
def test_bit_there_and_back(tmp_path, bit, same, fields):
    ours = bit(**fields)
    weights.save(ours, tmp_path / "x.npz", "google_npz")
    again = weights.load_described(tmp_path / "x.npz")
    same(again.model, ours.model)
    assert again.model.spec == ours.model.spec
    assert again.model.preprocess.image_size == (224, 224)  # the arrays do not tell


@pytest.mark.parametrize(
    "fields",
    [{}, {"pre_logits": True}, {"num_classes": 0}, {"units": (), "patch_size": 4}],
    ids=["default", "pre_logits", "headless", "root"],
)
def test_hybrid_there_and_back(tmp_path, hybrid, same, fields):
    ours = hybrid(**fields)
    weights.save(ours, tmp_path / "x.npz", "google_npz")
    again = weights.load_described(tmp_path / "x.npz")
    same(again.model, ours.model)
    assert again.model.spec == ours.model.spec
    assert again.model.preprocess == ours.model.preprocess


def names(path, folder):
    """Of the arrays in a .npz whose names start with `folder`, without it."""
    return {n.removeprefix(folder) for n in np.load(path) if n.startswith(folder)}


def test_names_in_googles_bit(tmp_path, bit):
    weights.save(bit(units=(1, 11)), tmp_path / "x.npz", "google_npz")
    unit = {
        f"{part}/{leaf}"
        for part in "abc"
        for leaf in ("group_norm/beta", "group_norm/gamma", "standardized_conv2d/kernel")
    }
    assert names(tmp_path / "x.npz", "resnet/block2/unit11/") == unit
    assert names(tmp_path / "x.npz", "resnet/block2/unit02/") == unit
    first = unit | {"a/proj/standardized_conv2d/kernel"}
    assert names(tmp_path / "x.npz", "resnet/block1/unit01/") == first
    assert {n for n in names(tmp_path / "x.npz", "resnet/") if "block1/" not in n} - {
        f"block2/{n}" for n in names(tmp_path / "x.npz", "resnet/block2/")
    } == {
        "root_block/standardized_conv2d/kernel",
        "group_norm/beta",
        "group_norm/gamma",
        "head/conv2d/bias",
        "head/conv2d/kernel",
    }
    assert np.load(tmp_path / "x.npz")["resnet/head/conv2d/kernel"].shape == (1, 1, 256, 3)


def test_names_in_googles_hybrids(tmp_path, hybrid):
    weights.save(hybrid(), tmp_path / "x.npz", "google_npz")
    unit = {
        *(f"conv{i}/kernel" for i in (1, 2, 3)),
        *(f"gn{i}/{leaf}" for i in (1, 2, 3) for leaf in ("bias", "scale")),
    }
    first = unit | {"conv_proj/kernel", "gn_proj/bias", "gn_proj/scale"}
    assert names(tmp_path / "x.npz", "block1/") == {f"unit1/{n}" for n in first}
    assert names(tmp_path / "x.npz", "block2/unit2/") == unit
    assert {"conv_root/kernel", "gn_root/scale", "gn_root/bias", "embedding/kernel"} <= names(
        tmp_path / "x.npz", ""
    )
    assert np.load(tmp_path / "x.npz")["embedding/kernel"].shape == (1, 1, 256, 16)


def test_norms_with_axes_of_size_1(tmp_path, hybrid, same):
    """As the released hybrids have them."""
    ours = hybrid()
    weights.save(ours, tmp_path / "x.npz", "google_npz")
    arrays = dict(np.load(tmp_path / "x.npz"))
    released = {n: x[None, None, None] if "/gn" in f"/{n}" else x for n, x in arrays.items()}
    assert released["gn_root/scale"].shape == (1, 1, 1, 32)
    np.savez(tmp_path / "released.npz", **released)
    same(weights.load(tmp_path / "released.npz"), ours.model)


def test_published_names_are_found(tmp_path, bit, hybrid):
    weights.save(bit(units=(2, 2, 2, 2)), tmp_path / "bit.npz", "google_npz")
    assert weights.description(tmp_path / "bit.npz").name == "R26x1"
    weights.save(hybrid(units=(), patch_size=32, image_size=32), tmp_path / "r.npz", "google_npz")
    assert weights.description(tmp_path / "r.npz").name == "R+ViT-B/16"
    small = hybrid(units=(2, 2, 4), patch_size=16, image_size=32)
    weights.save(small, tmp_path / "r26.npz", "google_npz")
    assert weights.description(tmp_path / "r26.npz").name == "R26+ViT-B/16"


def test_all_differences_of_a_resnet_at_once(tmp_path, bit):
    weights.save(bit(), tmp_path / "x.npz", "google_npz")
    arrays = dict(np.load(tmp_path / "x.npz"))
    conv = "standardized_conv2d/kernel"
    arrays[f"resnet/block2/unit02/d/{conv}"] = arrays.pop(f"resnet/block2/unit02/c/{conv}")
    arrays[f"resnet/block1/unit01/b/{conv}"] = np.zeros((5, 5, 32, 32))
    del arrays["resnet/head/conv2d/bias"]
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(UserError) as error:
        weights.load(tmp_path / "x.npz")
    assert str(error.value).splitlines() == [
        f"{tmp_path}/x.npz looks like Google's .npz of BiT, but is not the same:",
        f"  resnet/block2/unit02/c/{conv} is missing "
        f"(nearest there: resnet/block2/unit02/d/{conv})",
        "  resnet/head/conv2d/bias is missing",
        f"  resnet/block1/unit01/b/{conv} has the shape (5, 5, 32, 32), expected (3, 3, 32, 32)",
        f"  resnet/block2/unit02/d/{conv} is unexpected "
        f"(nearest expected: resnet/block2/unit02/c/{conv})",
    ]


def test_a_missing_stage_and_a_missing_unit_are_told(tmp_path, hybrid):
    weights.save(
        hybrid(units=(1, 3, 1), patch_size=16, image_size=32), tmp_path / "x.npz", "google_npz"
    )
    arrays = dict(np.load(tmp_path / "x.npz"))
    for lost in ("block1/unit1/", "block2/unit2/"):
        left = {n: x for n, x in arrays.items() if not n.startswith(lost)}
        np.savez(tmp_path / "less.npz", **left)
        with pytest.raises(UserError, match=f"{lost}conv1/kernel is missing"):
            weights.load(tmp_path / "less.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resnet/head/conv2d/kernel": (1, 1, 128, 3)}, r"shape \(1, 1, 128, 3\), expected"),
        ({"resnet/group_norm/gamma": (64,), "resnet/group_norm/beta": (64,),
          "resnet/head/conv2d/kernel": (1, 1, 64, 3)}, "takes 64 channels, not 256"),
        ({"resnet/head/conv2d/bias": (4,)}, r"head/conv2d/bias has the shape \(4,\)"),
    ],
)  # fmt: skip
def test_a_head_of_another_size(tmp_path, bit, change, message):
    weights.save(bit(), tmp_path / "x.npz", "google_npz")
    changed = {name: np.zeros(shape) for name, shape in change.items()}
    np.savez(tmp_path / "x.npz", **(dict(np.load(tmp_path / "x.npz")) | changed))
    with pytest.raises(UserError, match=message):
        weights.load(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weight_epsilon": 1e-8}, "weight_epsilon=1e-08"),
        ({"group_norm_epsilon": 1e-5}, "group_norm_epsilon=1e-05"),
        ({"pool": "map"}, "no place for pooling/"),
    ],
)
def test_what_googles_hybrids_cannot_be_is_not_written(tmp_path, hybrid, fields, message):
    with pytest.raises(UserError, match=message):
        weights.save(hybrid(**fields), tmp_path / "x.npz", "google_npz")
    assert not list(tmp_path.iterdir())
