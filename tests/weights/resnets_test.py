"""BiT ResNets and hybrids in other projects' formats: names, round trips, bad input.

parity_resnets_test.py checks that the others compute the same from these files.
"""

import json
import re

import jax
import numpy as np
import optax
import pytest

from tests.messages import refused
from vit_jax import models, weights
from vit_jax.convert import convert
from vit_jax.core import pytrees
from vit_jax.learning.state import state_layout
from vit_jax.run.parts import inputs, networks
from vit_jax.run.parts.warm_start import warm_start

pytestmark = pytest.mark.usefixtures("quick_compilation")
# Constants of timm and Hugging Face.
OF_PORTS = {"weight_epsilon": 1e-8, "weight_epsilon_of": "variance", "group_norm_epsilon": 1e-5}
# Constants of Google's released hybrids.
OF_GOOGLE = {"weight_epsilon": 1e-5, "weight_epsilon_of": "deviation", "group_norm_epsilon": 1e-6}
TIMM_HYBRID = {"units": (), "root_width": 64, "patch_size": 32, "image_size": 64, **OF_PORTS}


@pytest.mark.parametrize(
    "fields", [{}, {"units": (2,)}, {"num_classes": 0}], ids=["default", "one_stage", "headless"]
)
def test_bit_there_and_back(tmp_path, bit, same, fields):
    ours = bit(**fields)
    weights.save(ours, tmp_path / "x.npz", "google_npz")
    again = weights.load_with_info(tmp_path / "x.npz")
    same(again.model, ours.model)
    assert again.model.spec == ours.model.spec
    assert again.model.preprocess.image_size == (224, 224)  # not recorded in the arrays


@pytest.mark.parametrize(
    "fields",
    [{}, {"pre_logits": True}, {"num_classes": 0}, {"units": (), "patch_size": 4}],
    ids=["default", "pre_logits", "headless", "root"],
)
def test_hybrid_there_and_back(tmp_path, hybrid, same, fields):
    ours = hybrid(**fields)
    weights.save(ours, tmp_path / "x.npz", "google_npz")
    again = weights.load_with_info(tmp_path / "x.npz")
    same(again.model, ours.model)
    assert again.model.spec == ours.model.spec
    assert again.model.preprocess == ours.model.preprocess


def names(path, folder):
    """Names of a .npz's arrays below `folder`, without that prefix."""
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
    """The released hybrids have such norms."""
    ours = hybrid()
    weights.save(ours, tmp_path / "x.npz", "google_npz")
    arrays = dict(np.load(tmp_path / "x.npz"))
    released = {n: x[None, None, None] if "/gn" in f"/{n}" else x for n, x in arrays.items()}
    assert released["gn_root/scale"].shape == (1, 1, 1, 32)
    np.savez(tmp_path / "released.npz", **released)
    same(weights.load(tmp_path / "released.npz"), ours.model)


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


@pytest.mark.slow
def test_published_names_are_found(tmp_path, bit, hybrid):
    weights.save(bit(units=(2, 2, 2, 2)), tmp_path / "bit.npz", "google_npz")
    assert weights.checkpoint_info(tmp_path / "bit.npz").name == "R26x1"
    weights.save(hybrid(units=(), patch_size=32, image_size=32), tmp_path / "r.npz", "google_npz")
    assert weights.checkpoint_info(tmp_path / "r.npz").name == "R+ViT-2x16/16"
    small = hybrid(units=(2, 2, 4), patch_size=16, image_size=32)
    weights.save(small, tmp_path / "r26.npz", "google_npz")
    assert weights.checkpoint_info(tmp_path / "r26.npz").name == "R26+ViT-2x16/16"


def test_other_resnets_are_named_after_their_units(tmp_path, bit, hybrid):
    """Their names are those that models.spec accepts."""
    for number, (loaded, name) in enumerate(
        [
            (bit(), "R1-2x1"),
            (bit(units=(2,), root_width=128), "R2-x2"),
            (hybrid(), "R1-2+ViT-2x16/8"),
            (hybrid(units=(1,), patch_size=8), "R1-+ViT-2x16/8"),
        ]
    ):
        path = tmp_path / f"{number}.npz"
        weights.save(loaded, path, "google_npz")
        assert weights.checkpoint_info(path).name == name
        named, spec = models.spec(name), loaded.model.spec
        assert named.units == spec.units
        assert getattr(named, "patch_size", None) == getattr(spec, "patch_size", None)


def test_all_differences_of_a_resnet_are_reported_at_once(tmp_path, bit):
    weights.save(bit(), tmp_path / "x.npz", "google_npz")
    arrays = dict(np.load(tmp_path / "x.npz"))
    conv = "standardized_conv2d/kernel"
    arrays[f"resnet/block2/unit02/d/{conv}"] = arrays.pop(f"resnet/block2/unit02/c/{conv}")
    arrays[f"resnet/block1/unit01/b/{conv}"] = np.zeros((5, 5, 32, 32))
    del arrays["resnet/head/conv2d/bias"]
    np.savez(tmp_path / "x.npz", **arrays)
    names = [f"resnet/block{name}/{conv}" for name in ("2/unit02/c", "2/unit02/d", "1/unit01/b")]
    with refused(*names, "resnet/head/conv2d/bias", "(5, 5, 32, 32)", "(3, 3, 32, 32)"):
        weights.load(tmp_path / "x.npz")


def test_a_missing_stage_and_a_missing_unit_are_reported(tmp_path, hybrid):
    weights.save(
        hybrid(units=(1, 3, 1), patch_size=16, image_size=32), tmp_path / "x.npz", "google_npz"
    )
    arrays = dict(np.load(tmp_path / "x.npz"))
    for lost in ("block1/unit1/", "block2/unit2/"):
        left = {n: x for n, x in arrays.items() if not n.startswith(lost)}
        np.savez(tmp_path / "less.npz", **left)
        with refused(lost):
            weights.load(tmp_path / "less.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resnet/head/conv2d/kernel": (1, 1, 128, 3)}, "(1, 1, 128, 3)"),
        ({"resnet/group_norm/gamma": (64,), "resnet/group_norm/beta": (64,),
          "resnet/head/conv2d/kernel": (1, 1, 64, 3)}, "256"),
        ({"resnet/head/conv2d/bias": (4,)}, "head/conv2d/bias"),
    ],
)  # fmt: skip
def test_a_head_of_another_size(tmp_path, bit, change, message):
    weights.save(bit(), tmp_path / "x.npz", "google_npz")
    changed = {name: np.zeros(shape) for name, shape in change.items()}
    np.savez(tmp_path / "x.npz", **(dict(np.load(tmp_path / "x.npz")) | changed))
    with refused(message):
        weights.load(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weight_epsilon": 1e-8}, "weight_epsilon=1e-08"),
        ({"group_norm_epsilon": 1e-5}, "group_norm_epsilon=1e-05"),
        ({"pool": "map"}, "pooling/"),
    ],
)
def test_hybrids_that_google_lacks_are_not_written(tmp_path, hybrid, fields, message):
    with refused(message):
        weights.save(hybrid(**fields), tmp_path / "x.npz", "google_npz")
    assert not list(tmp_path.iterdir())


def edit_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize("fields", [{}, {"num_classes": 0}, {"units": (1, 1, 1, 1)}])
def test_hugging_faces_bit_there_and_back(tmp_path, bit, same, fields):
    ours = bit(weight_epsilon=1e-8, **fields)
    weights.save(ours, tmp_path / "out", "huggingface")
    again = weights.load_with_info(tmp_path / "out")
    same(again.model, ours.model)
    assert again.model.spec == ours.model.spec
    assert again.model.preprocess == ours.model.preprocess
    assert again.class_names == ours.class_names


def test_timms_hybrid_there_and_back(tmp_path, hybrid, same):
    ours = hybrid(**TIMM_HYBRID)
    weights.save(ours, tmp_path / "out", "timm")
    again = weights.load_with_info(tmp_path / "out")
    same(again.model, ours.model)
    assert again.model.spec == ours.model.spec
    assert again.model.preprocess == ours.model.preprocess
    assert again.class_names == ours.class_names


def test_by_command_through_formats(tmp_path, bit, same):
    ours = bit(num_classes=3)
    weights.save(ours, tmp_path / "a.npz", "google_npz")
    notice = convert(str(tmp_path / "a.npz"), str(tmp_path / "b"), to="checkpoint", image_size=32)
    assert notice == f"R1-2x1, images of 32 x 32 pixels, 3 classes: {tmp_path}/b"
    same(weights.load(tmp_path / "b"), ours.model)
    convert(str(tmp_path / "b"), str(tmp_path / "c"), to="huggingface", head="drop")
    assert weights.load(tmp_path / "c").num_classes == 0
    convert(str(tmp_path / "b"), str(tmp_path / "d"), to="huggingface")
    convert(str(tmp_path / "d"), str(tmp_path / "e.npz"), to="google_npz")
    again = np.load(tmp_path / "e.npz")
    # From one epsilon to another and back: kernels are multiplied by 10 and divided by it.
    for name, x in np.load(tmp_path / "a.npz").items():
        np.testing.assert_allclose(again[name], x, rtol=2e-7, err_msg=name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_type": "bottleneck"}, "layer_type='bottleneck'"),
        ({"global_padding": "SAME"}, "global_padding='SAME'"),
        ({"num_groups": 16}, "num_groups=16"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"output_stride": 4}, "output_stride=4"),
        ({"model_type": "vit"}, "ViT"),
        ({"model_type": "resnet"}, "'resnet'"),
    ],
)
def test_another_resnet_of_hugging_face_is_refused(tmp_path, bit, changes, message):
    weights.save(bit(), tmp_path / "out", "huggingface")
    edit_config(tmp_path / "out", **changes)
    with refused(message):
        weights.load(tmp_path / "out")


def test_processors_of_hugging_faces_bit(tmp_path, bit):
    weights.save(bit(), tmp_path / "out", "huggingface")
    file = tmp_path / "out" / "preprocessor_config.json"
    file.write_text(json.dumps({"size": 256, "crop_size": 192, "image_mean": [0.5, 0.5, 0.5]}))
    about = weights.load(tmp_path / "out").preprocess
    assert (about.resize, about.crop, about.image_size) == (256, (192, 192), (192, 192))
    assert (about.mean, about.std[0]) == ((0.5, 0.5, 0.5), 0.26862954)  # of BitImageProcessor
    file.write_text(json.dumps({"do_center_crop": False}))
    with refused():
        weights.load(tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"padding_same": False}, "padding_same=False"),
        ({"global_pool": "max"}, "global_pool='max'"),
    ],
)
def test_another_hybrid_of_timm_is_refused(tmp_path, hybrid, changes, message):
    weights.save(hybrid(**TIMM_HYBRID), tmp_path / "out", "timm")
    edit_config(tmp_path / "out", model_args=changes | {"num_heads": 2})
    with refused(message):
        weights.load(tmp_path / "out")


@pytest.mark.parametrize(
    ("model", "fields", "to", "message"),
    [
        ("bit", {}, "timm", "R50x1"),
        ("bit", {"units": (1, 1, 1, 1, 1)}, "google_npz", "resnet/stage5/first/"),
        ("bit", {"group_norm_epsilon": 1e-3}, "huggingface", "group_norm_epsilon=0.001"),
        ("bit", {"weight_epsilon_of": "deviation"}, "huggingface", "weight_epsilon_of=deviation"),
        ("hybrid", {}, "huggingface", "R50+ViT-B/16"),
        ("hybrid", OF_PORTS, "timm", "root_width=32"),
        ("hybrid", TIMM_HYBRID | OF_GOOGLE, "timm", "group_norm_epsilon=1e-06"),
    ],
)
def test_what_cannot_be_written(request, tmp_path, model, fields, to, message):
    ours = request.getfixturevalue(model)(**fields)
    with refused(message):
        weights.save(ours, tmp_path / ("x.npz" if to == "google_npz" else "out"), to)
    assert not list(tmp_path.iterdir())


def test_other_epsilons_are_written_on_request(tmp_path, hybrid, same, capsys):
    ours = hybrid(**TIMM_HYBRID | OF_GOOGLE)
    weights.save(ours, tmp_path / "out", "timm", approximate=True)
    notice = capsys.readouterr().err
    again = weights.load_with_info(tmp_path / "out")
    same(again.model, ours.model)
    assert {field: getattr(again.model.spec, field) for field in OF_PORTS} == OF_PORTS
    kernel = np.asarray(ours.model.patches.resnet.root.conv.kernel[...])
    deviation = np.std(kernel, axis=(0, 1, 2))
    change = (deviation + 1e-5) / np.sqrt(np.square(deviation) + 1e-8) - 1
    number = re.search(r"kernels by up to (\S+)", notice)[1]
    assert float(number) == pytest.approx(change.max(), rel=0.05)
    assert notice == (
        f"Notice: {tmp_path}/out: only nearly the same model: timm's hybrid without stages is "
        "computed with weight_epsilon=1e-08 instead of 1e-05, weight_epsilon_of=variance instead "
        "of deviation, group_norm_epsilon=1e-05 instead of 1e-06, which changes standardised "
        f"kernels by up to {number} of their size and what group norms give by up to 4.5e-06 / "
        "variance of the group, relatively.\n"
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


def test_a_width_not_divisible_into_groups_is_refused(tmp_path, bit):
    weights.save(bit(units=(1,)), tmp_path / "x.npz", "google_npz")
    arrays = dict(np.load(tmp_path / "x.npz"))
    halved = lambda x: tuple(s if s in (1, 3, 7) else s // 2 for s in x.shape)
    np.savez(tmp_path / "x.npz", **{n: np.zeros(halved(x)) for n, x in arrays.items()})
    with refused("root_width"):
        weights.load(tmp_path / "x.npz")


def test_a_run_starts_from_them(tmp_path, bit, tiny_run):
    ours = bit(weight_epsilon=1e-8)
    weights.save(ours, tmp_path / "in", "huggingface")
    config = tiny_run(
        "model.name=none", "model.depth=none", "model.width=none", "model.mlp_dim=none",
        "model.num_heads=none", f"init.weights={tmp_path / 'in'}", "init.head=reset",
        "input.num_classes=7",
    )  # fmt: skip
    model = networks.model(config, num_classes=7)
    assert model.info.name == "R1-2x1"
    assert (model.info.spec["units"], model.info.spec["weight_epsilon"]) == ((1, 2), 1e-8)
    layout = state_layout(
        model.make,
        optax.identity(),
        inputs.mesh(config.mesh),
        ema_decay=None,
        shard_optimizer=False,
    ).state
    state = jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding), layout)
    trained = networks.trained_weights(config.init)
    after = warm_start(
        state, trained, model.info, head="reset", position_resize="bilinear", ema=False
    )
    params = pytrees.flatten(after.params)
    assert params["head/kernel"].shape == (256, 7)
    kernel = ours.model.resnet.stage2.rest.block.conv2.kernel[...]
    np.testing.assert_array_equal(params["resnet/stage2/rest/block/conv2/kernel"], kernel)
