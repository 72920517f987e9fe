"""timm's preprocessing and EfficientNets, in and out, without timm."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.messages import refused
from vit_jax import models, weights
from vit_jax.core import pytrees
from vit_jax.models import Preprocess, spec
from vit_jax.weights.files import from_array, safetensors
from vit_jax.weights.formats import timm
from vit_jax.weights.saving import pillows
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
    config = timm.FORMAT.documents(spec("ViT-B/16", norm_epsilon=1e-6), 3, None, about)[
        "config.json"
    ]
    assert config["pretrained_cfg"]["crop_mode"] == mode
    assert timm.preprocess(config, SIZE) == about


def test_images_that_are_not_square_cover_both_sides():
    """timm's ResizeKeepRatio; the shorter side alone would leave too little of the other."""
    cfg = {"pretrained_cfg": {"crop_pct": 0.9, **dict(zip(("mean", "std"), HALF, strict=True))}}
    about = timm.preprocess(cfg, (224, 160))
    assert about == Preprocess(
        (224, 160), (248, 177), (224, 160), *HALF, "bicubic", fit="cover", **CROP
    )
    config = timm.FORMAT.documents(spec("ViT-B/16", norm_epsilon=1e-6), 3, None, about)[
        "config.json"
    ]
    assert timm.preprocess(config, (224, 160)) == about


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"crop_mode": "bordr"}, "crop_mode='bordr'"),
        ({"interpolation": "bicubik"}, "interpolation='bicubik'"),
    ],
)
def test_unsupported_preprocessing_is_refused(stated, message):
    with refused(message):
        timm.preprocess({"pretrained_cfg": stated}, SIZE)


def test_heads_that_only_the_architecture_tells(tmp_path, toy):
    weights.save(toy(width=64, num_heads=16, norm_epsilon=1e-6), tmp_path / "out", "timm")
    file = tmp_path / "out" / "config.json"
    config = json.loads(file.read_text()) | {"architecture": "vit_giantopt_patch16_siglip_256"}
    del config["model_args"]["num_heads"]
    file.write_text(json.dumps(config))
    assert weights.load(tmp_path / "out").spec.num_heads == 16


def test_a_config_without_sections_as_timm_wrote_it_until_version_0_6(tmp_path, toy, capsys):
    ours = toy(gelu="exact", preprocess=Preprocess((12, 12), 16, (12, 12), *IMAGENET, **SHORTER))
    weights.save(ours, tmp_path / "out", "timm")
    file = tmp_path / "out" / "config.json"
    config = json.loads(file.read_text())
    del config["model_args"]
    labels = {"labels": config.pop("label_names"), "architecture": "test_vit"}
    file.write_text(json.dumps(config | config.pop("pretrained_cfg") | labels))
    again = weights.load_with_info(tmp_path / "out")
    assert again.model.preprocess == ours.model.preprocess
    assert again.class_names == ours.class_names
    assert "assumed" not in capsys.readouterr().err


@pytest.mark.parametrize("argument", ["pool_include_prefix", "dynamic_img_pad"])
def test_arguments_that_make_another_model_of_the_same_arrays_are_refused(tmp_path, toy, argument):
    weights.save(toy(pool="avg", registers=2), tmp_path / "x", "timm")
    file = tmp_path / "x" / "config.json"
    config = json.loads(file.read_text())
    config["model_args"][argument] = False
    file.write_text(json.dumps(config))
    weights.checkpoint_info(tmp_path / "x")
    config["model_args"][argument] = True
    file.write_text(json.dumps(config))
    with refused(argument):
        weights.checkpoint_info(tmp_path / "x")


def test_unsupported_resizing_is_refused_or_reported():
    for about, instead in (
        (Preprocess(SIZE, 256, SIZE, interpolation="area", antialias=False), "box"),
        (Preprocess(SIZE, 256, SIZE, interpolation="bicubic", antialias=False), "bicubic"),
    ):
        with refused(instead):
            pillows(about, "timm", approximate=False)
        preprocess, notice = pillows(about, "timm", approximate=True)
        assert preprocess == Preprocess(SIZE, 256, SIZE, interpolation=instead)
        assert f"by {instead} with antialias instead of" in notice
    assert pillows(preprocess, "timm", approximate=False) == (preprocess, "")


@pytest.mark.parametrize(
    ("size", "resize", "theirs"),
    [
        ((16, 12), 20, (26, 20)),
        ((12, 12), (16, 24), (16, 16)),
        ((12, 12), (24, 16), (24, 24)),
        ((12, 12), None, (12, 12)),  # a crop alone
    ],
)
def test_resizing_by_two_factors_or_none_is_refused_or_reported(
    tmp_path, toy, capsys, size, resize, theirs
):
    ours = toy(image_size=size, preprocess=Preprocess(size, resize, size))
    with refused(f"resize={resize}", f"resize={theirs}"):
        weights.save(ours, tmp_path / "x", "timm")
    assert not list(tmp_path.iterdir())
    weights.save(ours, tmp_path / "x", "timm", approximate=True)
    told = capsys.readouterr().err
    assert f"with resize={theirs}, " in told and f"instead of resize={resize}" in told
    assert weights.checkpoint_info(tmp_path / "x").preprocess.resize in (theirs, theirs[0])


def test_padding_with_another_colour_than_the_mean_is_refused_or_reported(tmp_path, toy, capsys):
    about = Preprocess((16, 12), (16, 12), (16, 12), fit="inside", fill=(0, 0, 0))
    ours = toy(image_size=(16, 12), preprocess=about)
    with refused("fill=(0, 0, 0)", "fill=(128, 128, 128)"):
        weights.save(ours, tmp_path / "x", "timm")
    with refused("fill=(0, 0, 0)"):
        weights.save(ours, tmp_path / "x", "huggingface")
    weights.save(ours, tmp_path / "x", "timm", approximate=True)
    assert "instead of" in capsys.readouterr().err
    assert weights.checkpoint_info(tmp_path / "x").preprocess.padding == (128, 128, 128)


def test_rounding_of_a_side_is_written(tmp_path, toy):
    about = Preprocess((16, 12), (20, 14), (16, 12))  # 12 / 0.8 = 15
    weights.save(toy(image_size=(16, 12), preprocess=about), tmp_path / "x", "timm")
    assert weights.checkpoint_info(tmp_path / "x").preprocess.resize == (20, 15)


# --- EfficientNets


def loaded(name="EfficientNet-0.2x0.1", **fields):
    """A model with random parameters, as `weights.load_with_info` gives it."""
    make = lambda: models.create(name, rngs=nnx.Rngs(0), num_classes=3, image_size=32, **fields)
    graph, shapes = nnx.split(nnx.eval_shape(make), nnx.Param)
    rng = np.random.default_rng(0)
    draw = lambda x: jnp.asarray(rng.uniform(0.1, 1, x.shape), jnp.float32)
    params = {n: draw(x) for n, x in pytrees.flatten(nnx.to_pure_dict(shapes)).items()}
    model = nnx.merge(graph, pytrees.unflatten(params))
    return weights.Loaded(model, name, ("ant", "bee", "cat"), step=0)


def params_of(model):
    named = pytrees.flatten(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    return {name: np.asarray(x) for name, x in named.items()}


def write(folder, model, config=None, change=lambda arrays: arrays):
    """Writes a model of any coefficients, as timm has no name for."""
    folder.mkdir()
    arrays = to_theirs(timm.FORMAT.layout_for(model.spec), params_of(model))
    safetensors.write(folder / "model.safetensors", change(arrays))
    (folder / "config.json").write_text(json.dumps(config or {}))


def test_there_and_back_bit_for_bit(tmp_path):
    ours = loaded("EfficientNet-0.2x0.67")
    write(tmp_path / "x", ours.model)
    there = weights.load_with_info(tmp_path / "x")
    assert there.name == ours.name and there.model.spec == ours.model.spec
    right = params_of(there.model)
    for name, x in params_of(ours.model).items():
        np.testing.assert_array_equal(right.pop(name), x, err_msg=name)
    assert not right


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
    config = timm.FORMAT.documents(spec, 1000, None, about)["config.json"]
    assert (config["architecture"], config.get("model_args")) == (architecture, arguments)


def test_what_timm_does_not_have_is_refused(tmp_path):
    with refused("width_coefficient"):
        weights.save(loaded(), tmp_path / "out", "timm")
    for to in ("huggingface", "google_npz"):
        with refused(to):
            weights.save(loaded(), tmp_path / "out.npz", to)


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
    with refused():
        weights.load(tmp_path / "wide")

    lacking = lambda arrays: {n: x for n, x in arrays.items() if n != "bn2.running_var"}
    write(tmp_path / "lacking", model, change=lacking)
    with refused("bn2.running_var"):
        weights.load(tmp_path / "lacking")
