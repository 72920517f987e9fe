"""Preprocessing as stated by timm, and back."""

import json

import pytest

from vit_jax import weights
from vit_jax.core.errors import UserError
from vit_jax.models import Preprocess, spec
from vit_jax.weights.formats import timm
from vit_jax.weights.saving import pillows

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
        ({"crop_mode": "bordr"}, "crop_mode='bordr'.*border"),
        ({"interpolation": "bicubik"}, "interpolation='bicubik'.*bicubic"),
    ],
)
def test_unsupported_preprocessing_is_refused(stated, message):
    with pytest.raises(UserError, match=message):
        timm.preprocess({"pretrained_cfg": stated}, SIZE)


def test_heads_that_only_the_architecture_tells(tmp_path, toy):
    weights.save(toy(width=64, num_heads=16, norm_epsilon=1e-6), tmp_path / "out", "timm")
    file = tmp_path / "out" / "config.json"
    config = json.loads(file.read_text()) | {"architecture": "vit_giantopt_patch16_siglip_256"}
    del config["model_args"]["num_heads"]
    file.write_text(json.dumps(config))
    assert weights.load(tmp_path / "out").spec.num_heads == 16


def test_unsupported_resizing_is_refused_or_reported():
    for about, instead in (
        (Preprocess(SIZE, 256, SIZE, interpolation="area", antialias=False), "box"),
        (Preprocess(SIZE, 256, SIZE, interpolation="bicubic", antialias=False), "bicubic"),
    ):
        with pytest.raises(UserError, match=f"--approximate, which .* {instead} with antialias"):
            pillows(about, "timm", approximate=False)
        preprocess, notice = pillows(about, "timm", approximate=True)
        assert preprocess == Preprocess(SIZE, 256, SIZE, interpolation=instead)
        assert f"by {instead} with antialias instead of" in notice
    assert pillows(preprocess, "timm", approximate=False) == (preprocess, "")
