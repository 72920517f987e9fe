"""timm's preprocessing and EfficientNets, in and out, without timm."""

import json

import numpy as np
import pytest

from tests.messages import refused
from tests.weights.conftest import edit, params_of, randomised
from vit_jax import models, weights
from vit_jax.models import Preprocess, spec
from vit_jax.weights.external import ModelToWrite
from vit_jax.weights.files import from_array, safetensors
from vit_jax.weights.formats import timm
from vit_jax.weights.tables import to_theirs

SIZE = (224, 224)
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5,) * 3, (0.5,) * 3)
# torchvision's rounding of the longer side and of a crop's position.
SHORTER, CROP = {"longer": "down", "middle": "nearest"}, {"middle": "nearest"}


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({}, Preprocess(SIZE, SIZE)),
        (
            {"mean": HALF[0]},
            Preprocess(SIZE, 256, SIZE, HALF[0], IMAGENET[1], "bicubic", **SHORTER),
        ),
        (
            {"crop_pct": 0.9, "interpolation": "bilinear"},
            Preprocess(SIZE, 248, SIZE, *IMAGENET, "bilinear", **SHORTER),
        ),
        (
            {"crop_pct": 1.0, "crop_mode": "squash"},
            Preprocess(SIZE, SIZE, None, *IMAGENET, "bicubic"),
        ),
        (
            {"crop_pct": 0.9, "crop_mode": "squash"},
            Preprocess(SIZE, (248, 248), SIZE, *IMAGENET, "bicubic", **CROP),
        ),
        (
            {"crop_pct": 0.95, "crop_mode": "border"},
            Preprocess(SIZE, (235, 235), SIZE, *IMAGENET, "bicubic", fit="inside", **CROP),
        ),
    ],
)
def test_preprocessing(stated, expected):
    assert timm.preprocess({"pretrained_cfg": stated}, SIZE) == expected


def config_of(spec, about):
    return timm.FORMAT.documents(ModelToWrite(spec, 3, None, about))["config.json"]


@pytest.mark.parametrize("side", [*range(224, 260), 438])
@pytest.mark.parametrize("mode", ["center", "squash", "border"])
def test_preprocessing_there_and_back(side, mode):
    if mode == "center":
        about = Preprocess(SIZE, side, SIZE, *HALF, "lanczos", **SHORTER)
    elif mode == "squash" and side == 224:
        about = Preprocess(SIZE, SIZE, None, *HALF, "hamming")
    else:
        fit = "stretch" if mode == "squash" else "inside"
        about = Preprocess(SIZE, (side, side), SIZE, *HALF, "bicubic", fit=fit, **CROP)
    config = config_of(spec("ViT-B/16", norm_epsilon=1e-6), about)
    assert config["pretrained_cfg"]["crop_mode"] == mode
    assert timm.preprocess(config, SIZE) == about


def test_images_that_are_not_square_cover_both_sides():
    """timm's ResizeKeepRatio; the shorter side alone would leave too little of the other."""
    cfg = {"pretrained_cfg": {"crop_pct": 0.9, **dict(zip(("mean", "std"), HALF, strict=True))}}
    about = timm.preprocess(cfg, (224, 160))
    assert about == Preprocess(
        (224, 160), (248, 177), (224, 160), *HALF, "bicubic", fit="cover", **CROP
    )
    config = config_of(spec("ViT-B/16", norm_epsilon=1e-6), about)
    assert timm.preprocess(config, (224, 160)) == about


def test_a_config_without_sections_as_timm_wrote_it_until_version_0_6(tmp_path, toy, capsys):
    ours = toy(gelu="exact", preprocess=Preprocess((12, 12), 16, (12, 12), *IMAGENET, **SHORTER))
    weights.save(ours, tmp_path / "out", "timm")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    labels = {"labels": config["label_names"], "architecture": "test_vit"}
    sections = dict.fromkeys(("model_args", "label_names", "pretrained_cfg"), ...)
    edit(tmp_path / "out", config["pretrained_cfg"] | labels | sections)
    again = weights.load_with_info(tmp_path / "out")
    assert again.model.preprocess == ours.model.preprocess
    assert again.class_names == ours.class_names
    assert "assumed" not in capsys.readouterr().err


_AREA = {"resize": 16, "interpolation": "area", "antialias": False}
_BICUBIC = _AREA | {"interpolation": "bicubic"}
_ANTIALIAS = "antialias=True instead of False"
_INSIDE = {"resize": (16, 12), "fit": "inside", "fill": (0, 0, 0)}
_PADDING = "padding=(128, 128, 128) instead of (0, 0, 0)"


@pytest.mark.parametrize(
    ("to", "size", "fields", "said", "read"),
    [
        ("timm", (12, 12), _AREA, _ANTIALIAS, {"interpolation": "box"}),
        ("huggingface", (12, 12), _AREA, _ANTIALIAS, {"interpolation": "box"}),
        ("timm", (12, 12), _BICUBIC, _ANTIALIAS, {"interpolation": "bicubic"}),
        ("timm", (16, 12), {"resize": 20}, "resize=(26, 20) instead of 20", {"resize": (26, 20)}),
        ("timm", (12, 12), {"resize": (16, 24)}, "instead of (16, 24)", {"resize": (16, 16)}),
        (
            "timm",
            (12, 12),
            {"resize": None},
            "resize=(12, 12) instead of None",
            {"resize": (12, 12)},
        ),
        ("timm", (16, 12), _INSIDE, _PADDING, {"padding": (128, 128, 128)}),
    ],
)
def test_what_readers_cannot_do_is_refused_or_reported(
    tmp_path, toy, capsys, to, size, fields, said, read
):
    """Resizing without antialias, by two factors or none, and another colour than the mean."""
    ours = toy(image_size=size, preprocess=Preprocess(size, crop=size, **fields))
    with refused(said):
        weights.save(ours, tmp_path / "x", to)
    assert not list(tmp_path.iterdir())
    weights.save(ours, tmp_path / "x", to, approximate=True)
    assert said in capsys.readouterr().err
    again = weights.checkpoint_info(tmp_path / "x").preprocess
    assert {name: getattr(again, name) for name in read} == read


def test_padding_is_nothing_for_hugging_face(tmp_path, toy):
    ours = toy(image_size=(16, 12), preprocess=Preprocess((16, 12), crop=(16, 12), **_INSIDE))
    with refused("fill=(0, 0, 0)"):
        weights.save(ours, tmp_path / "x", "huggingface")


# --- EfficientNets


def loaded(name="EfficientNet-0.2x0.1"):
    return randomised(name, num_classes=3, image_size=32)


def write(folder, model, config=None, change=lambda arrays: arrays):
    """Writes a model of any coefficients, as timm has no name for."""
    folder.mkdir()
    arrays = to_theirs(timm.FORMAT.layout_for(model.spec), params_of(model))
    safetensors.write(folder / "model.safetensors", change(arrays))
    (folder / "config.json").write_text(json.dumps(config or {}))


def test_there_and_back_bit_for_bit(tmp_path, same):
    ours = loaded("EfficientNet-0.2x0.67")
    write(tmp_path / "x", ours.model)
    again = weights.load_with_info(tmp_path / "x")
    assert (again.name, again.model.spec) == (ours.name, ours.model.spec)
    same(again.model, ours.model)


@pytest.mark.parametrize(
    ("fields", "architecture", "arguments"),
    [
        ({}, "tf_efficientnet_b1", None),
        ({"padding": "symmetric", "batch_norm_epsilon": 1e-5}, "efficientnet_b1", None),
        ({"padding": "symmetric"}, "efficientnet_b1", {"bn_eps": 1e-3}),
        ({"batch_norm_epsilon": 0.1}, "tf_efficientnet_b1", {"bn_eps": 0.1}),
    ],
)
def test_padding_and_epsilon_choose_the_architecture(fields, architecture, arguments):
    spec = models.spec("EfficientNet-B1", **fields)
    about = models.Preprocess((240, 240), (240, 240))
    config = config_of(spec, about)
    assert (config["architecture"], config.get("model_args")) == (architecture, arguments)


# A stray array, one of vit_giant_patch14_dinov2, whose fc2 takes half of what fc1 gives, and one of
# beit_base_patch16_224.
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("norm_pre.running_mean", 16),
        ("blocks.0.mlp.fc2.weight", (16, 8)),
        ("blocks.0.attn.relative_position_bias_table", (9, 4)),
    ],
)
def test_what_an_architecture_has_beside_is_named(tmp_path, toy, name, size):
    more = {name: from_array(np.ones(size, np.float32))}
    write(tmp_path / "x", toy(gelu="exact").model, change=lambda arrays: arrays | more)
    with refused(name):
        weights.load(tmp_path / "x", num_heads=2)


def test_arrays_of_another_network_are_refused(tmp_path):
    def wide(arrays):
        """Squeezes the last stage to twice as many channels."""
        se = "blocks.6.0.se.conv_"
        x = arrays[f"{se}reduce.weight"].read()
        changes = {
            f"{se}reduce.weight": np.repeat(x, 2, 0),
            f"{se}reduce.bias": np.ones(2 * len(x), np.float32),
            f"{se}expand.weight": np.repeat(arrays[f"{se}expand.weight"].read(), 2, 1),
        }
        return arrays | {name: from_array(x) for name, x in changes.items()}

    model = loaded().model
    write(tmp_path / "wide", model, change=wide)
    with refused("2, 2, 2, 2, 4, 6, 20"):
        weights.load(tmp_path / "wide")

    lacking = lambda arrays: {n: x for n, x in arrays.items() if n != "bn2.running_var"}
    write(tmp_path / "lacking", model, change=lacking)
    with refused("bn2.running_var"):
        weights.load(tmp_path / "lacking")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architecture": "mixnet_s"}, "architecture='mixnet_s' cannot be computed"),
        ({"global_pool": "max"}, "global_pool='max'"),
        ({"model_args": {"act_layer": "relu"}}, "act_layer='relu'"),
        ({"model_args": {"output_stride": 16}}, "output_stride=16"),
        ({"model_args": {"pad_type": "valid"}}, "pad_type='valid'"),
    ],
)
def test_other_efficientnets_are_refused(tmp_path, config, message):
    write(tmp_path / "x", loaded().model, {"architecture": "efficientnet_b0"} | config)
    with refused(message):
        weights.load(tmp_path / "x")
