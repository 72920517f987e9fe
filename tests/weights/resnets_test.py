"""BiT ResNets and hybrids in other projects' formats: names, round trips, bad input.

parity_resnets_test.py checks that the others compute the same from these files.
"""

import re

import numpy as np
import pytest

from tests.messages import refused
from tests.weights.conftest import PORTED, params_of
from vit_jax import models, weights
from vit_jax.weights.files import safetensors
from vit_jax.weights.formats import timm
from vit_jax.weights.tables import to_theirs

pytestmark = pytest.mark.usefixtures("quick_compilation")
# Constants of Google's released hybrids.
OF_GOOGLE = {"weight_epsilon": 1e-5, "weight_epsilon_of": "deviation", "group_norm_epsilon": 1e-6}
TIMM_HYBRID = {"units": (), "root_width": 64, "patch_size": 32, "image_size": 64, **PORTED}


def names(path, folder):
    """Names of a .npz's arrays below `folder`, without that prefix."""
    return {n.removeprefix(folder) for n in np.load(path) if n.startswith(folder)}


LATER = {
    "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
    "LayerNorm_2": "LayerNorm_1",
    "MlpBlock_3": "MlpBlock_0",
}


@pytest.mark.parametrize("fields", [{}, {"units": (), "patch_size": 4}], ids=["default", "root"])
def test_hybrids_with_the_names_of_todays_code(tmp_path, hybrid, same, fields):
    ours = hybrid(**fields)
    weights.save(ours, tmp_path / "x.npz", "google_npz")
    arrays = dict(np.load(tmp_path / "x.npz"))
    later = {re.sub("|".join(LATER), lambda m: LATER[m[0]], n): x for n, x in arrays.items()}
    assert len(later) == len(arrays) and later.keys() != arrays.keys()
    np.savez(tmp_path / "later.npz", **later)
    again = weights.load_with_info(tmp_path / "later.npz")
    same(again.model, ours.model)
    assert again.model.spec == ours.model.spec


def test_a_bit_of_timm_is_read(tmp_path, bit, same):
    ours, file = bit(**PORTED), tmp_path / "model.safetensors"
    safetensors.write(file, to_theirs(timm._BIT, params_of(ours.model)))
    (tmp_path / "config.json").write_text('{"architecture": "resnetv2_50x1_bit"}')
    again = weights.load(file)
    same(again, ours.model)
    assert again.spec == ours.model.spec


@pytest.mark.parametrize(
    ("kind", "fields", "name"),
    [
        ("bit", {}, "R1-2x1"),
        ("bit", {"units": (2,), "root_width": 128}, "R2-x2"),
        ("bit", {"units": (2, 2, 2, 2)}, "R26x1"),
        ("hybrid", {}, "R1-2+ViT-2x16/8"),
        ("hybrid", {"units": (1,), "patch_size": 8}, "R1-+ViT-2x16/8"),
        ("hybrid", {"units": (), "patch_size": 32}, "R+ViT-2x16/16"),
        ("hybrid", {"units": (2, 2, 4), "patch_size": 16}, "R26+ViT-2x16/16"),
        ("hybrid", {"units": (3, 4, 9), "patch_size": 16}, "R50+ViT-2x16/16"),
    ],
    ids=str,
)
def test_names_are_of_published_units_or_list_them(request, tmp_path, kind, fields, name):
    """They are those that models.spec accepts."""
    size = 24 if fields.get("patch_size", 8) == 8 else 32
    loaded = request.getfixturevalue(kind)(**{"image_size": size} | fields)
    weights.save(loaded, tmp_path / "x.npz", "google_npz")
    assert weights.checkpoint_info(tmp_path / "x.npz").name == name
    named, spec = models.spec(name), loaded.model.spec
    assert named.units == spec.units
    assert getattr(named, "patch_size", None) == getattr(spec, "patch_size", None)


def test_other_epsilons_are_written_on_request(tmp_path, hybrid, same, capsys):
    ours = hybrid(**TIMM_HYBRID | OF_GOOGLE)
    weights.save(ours, tmp_path / "out", "timm", approximate=True)
    notice = capsys.readouterr().err
    again = weights.load_with_info(tmp_path / "out")
    same(again.model, ours.model)
    assert {field: getattr(again.model.spec, field) for field in PORTED} == PORTED
    assert notice == (
        f"Notice: {tmp_path}/out: only nearly the same model: timm's hybrid without stages is "
        "computed with weight_epsilon=1e-08 instead of 1e-05, weight_epsilon_of=variance instead "
        "of deviation, group_norm_epsilon=1e-05 instead of 1e-06.\n"
    )


def test_only_small_epsilons_are_approximated(tmp_path, bit, hybrid, capsys):
    for model, to in (
        (hybrid(**TIMM_HYBRID | {"group_norm_epsilon": 1e-4}), "timm"),
        (hybrid(**TIMM_HYBRID | {"gelu": "exact"}), "google_npz"),
        (bit(group_norm_epsilon=1e-3), "huggingface"),
    ):
        with refused("group_norm_epsilon", "--to"):
            weights.save(model, tmp_path / ("x.npz" if to == "google_npz" else "x"), to,
                         approximate=True)  # fmt: skip
    assert not list(tmp_path.iterdir())
    weights.save(bit(), tmp_path / "x", "huggingface", approximate=True)  # exactly
    assert capsys.readouterr().err == ""


CONV = "standardized_conv2d/kernel"
UNITS = tuple(f"resnet/block{name}/{CONV}" for name in ("2/unit02/c", "2/unit02/d", "1/unit01/b"))


def several_differences(arrays):
    taken = {n: x for n, x in arrays.items() if n not in (UNITS[0], "resnet/head/conv2d/bias")}
    return taken | {UNITS[1]: arrays[UNITS[0]], UNITS[2]: np.zeros((5, 5, 32, 32))}


def half_as_wide(arrays):
    halved = lambda x: tuple(s if s in (1, 3, 7) else s // 2 for s in x.shape)
    return {n: np.zeros(halved(x)) for n, x in arrays.items()}


def narrow_behind(arrays):
    """Each shape is right by itself."""
    norms = {f"resnet/group_norm/{n}": np.zeros(64) for n in ("gamma", "beta")}
    return arrays | norms | {"resnet/head/conv2d/kernel": np.zeros((1, 1, 64, 3))}


def without(lost):
    return lambda arrays: {n: x for n, x in arrays.items() if not n.startswith(lost)}


@pytest.mark.parametrize(
    ("kind", "change", "names"),
    [
        ("bit", several_differences,
         (*UNITS, "resnet/head/conv2d/bias", "(5, 5, 32, 32)", "(3, 3, 32, 32)")),
        ("bit", half_as_wide, ("root_width",)),  # not divisible into groups
        ("bit", narrow_behind, ("64 channels", "256")),
        *(("hybrid", without(lost), (lost,)) for lost in ("block1/unit1/", "block2/unit2/")),
    ],
)  # fmt: skip
def test_other_arrays_are_refused(request, tmp_path, kind, change, names):
    fields = {"bit": {}, "hybrid": {"units": (1, 3, 1), "patch_size": 16, "image_size": 32}}[kind]
    weights.save(request.getfixturevalue(kind)(**fields), tmp_path / "x.npz", "google_npz")
    np.savez(tmp_path / "changed.npz", **change(dict(np.load(tmp_path / "x.npz"))))
    with refused(*names):
        weights.load(tmp_path / "changed.npz")
