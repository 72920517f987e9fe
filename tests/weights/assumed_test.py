"""What a file does not state: who is asked, what is assumed, and what is said of it."""

from dataclasses import replace

import numpy as np
import pytest
from etils import epath
from flax import nnx

from tests.conftest import TINY_RUN
from tests.messages import refused
from tests.weights.conftest import edit, zeros_of
from vit_jax import config as configs
from vit_jax import models, weights
from vit_jax.core.errors import UserError
from vit_jax.core.screen import Screen
from vit_jax.evaluate import prepared
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.formats import timm, understand
from vit_jax.weights.formats.timm import _heads
from vit_jax.weights.tables import to_theirs

EVALUATED = "evals.test.preprocess=decode|resize(8)"
ROUNDING = 1e-5  # of float32 between one program and another


def saved(path, image_size, *, to="timm", width=64, **fields):
    fields = {"depth": 1, "width": width, "mlp_dim": 24, "num_heads": 2, "gelu": "exact"} | fields
    model = models.create(
        "ViT-Ti/4", num_classes=0, image_size=image_size, rngs=nnx.Rngs(0), **fields
    )
    weights.save(weights.Loaded(model, "ViT-Ti/4", None, 0), path, to)
    return model


def test_what_is_assumed_is_said_before_devices_are_used(tmp_path, run_python):
    """How many a CPU has, commands set by the weights' size."""
    saved(tmp_path / "a.npz", 8, to="google_npz", gelu="tanh")
    program = (
        "import sys, jax; from vit_jax import weights\n"
        "weights.checkpoint_info(sys.argv[1])\n"
        "jax.config.update('jax_num_cpu_devices', 3)"  # which fails once devices are used
    )
    done = run_python("-c", program, str(tmp_path / "a.npz"))
    assert done.returncode == 0, done.stderr
    assert "Notice: " in done.stderr


def test_a_rectangle_is_not_read_as_a_square(tmp_path):
    """14 x 16 patches and a class token have 225 = 15 x 15 positions."""
    model = saved(tmp_path / "a", (56, 64))
    file = tmp_path / "a" / "model.safetensors"
    images = np.random.default_rng(0).normal(size=(1, 56, 64, 3)).astype(np.float32)
    expected = model.features(images)
    np.testing.assert_array_equal(weights.load(tmp_path / "a").features(images), expected)
    (tmp_path / "a" / "config.json").unlink()
    given = weights.load(file, image_size=(56, 64), num_heads=2)
    np.testing.assert_allclose(given.features(images), expected, atol=ROUNDING)
    with refused("model.safetensors"):
        weights.load(file)
    with pytest.raises(UserError, match=r"image_size means 64 x 64 .* 257 or 256"):
        weights.load(file, image_size=64, num_heads=2)
    # Without a position of the class token, as timm's no_embed_class has it.
    other = weights.load(file, image_size=60, num_heads=2)
    assert other.preprocess.image_size == (60, 60)


def test_a_class_token_of_google_has_a_position_and_big_visions_none(tmp_path):
    saved(tmp_path / "a.npz", (16, 16), to="google_npz", gelu="tanh")
    with np.load(tmp_path / "a.npz") as arrays:
        released = dict(arrays)
    name = next(n for n in released if "pos_embedding" in n)
    released[name] = released[name][:, 1:]  # 16 rows and a class token: 15 patches, no square
    np.savez(tmp_path / "b.npz", **released)
    with refused("--image_size"):
        weights.load(tmp_path / "b.npz")


def opened(width, depth, **config):
    """A file of timm's ViT/16 for images of 32 pixels, without a head."""
    fields = {"width": width, "depth": depth, "mlp_dim": 4 * width, "num_heads": 1}
    _, params = zeros_of("ViT-Ti/16", num_classes=0, image_size=32, **fields)
    return Opened("x", "safetensors", to_theirs(timm.VIT, params), config or None, None)


@pytest.mark.parametrize(
    ("config", "assumed"),
    [
        ({"architecture": "vit_tiny_patch16_224", "pretrained_cfg": {"std": [1, 1, 1]}}, set()),
        ({"architecture": "vit_tiny_patch16_224"}, {"preprocess"}),
        ({"architecture": "my_vit"}, {"num_heads", "gelu", "norm_epsilon", "preprocess"}),
        (
            {
                "model_args": {"act_layer": "gelu", "num_heads": 3},
                "pretrained_cfg": {"std": [1] * 3},
            },
            {"norm_epsilon"},
        ),
    ],
)
def test_what_an_incomplete_config_does_not_state_is_assumed(config, assumed):
    there = understand(opened(192, 12, **config))
    assert set(there.assumed) == assumed | {"image_size"}


def test_epsilon_is_that_of_the_architecture():
    there = understand(opened(384, 1, architecture="vit_small_patch16_clip_224"))
    assert there.spec.norm_epsilon == 1e-5


@pytest.mark.parametrize("to", ["timm", "checkpoint", "google_npz"])
def test_another_number_of_heads_than_weights_state_is_refused(tmp_path, to):
    saved(tmp_path / "a.npz", (16, 16), to=to, gelu="tanh")
    assert weights.load(tmp_path / "a.npz", num_heads=2).spec.num_heads == 2
    with refused("num_heads"):
        weights.load(tmp_path / "a.npz", num_heads=4)


@pytest.mark.parametrize(
    ("without", "size", "expected"),
    [
        (True, None, (60, 60)),
        (True, (60, 60), (60, 60)),
        (False, (56, 64), (56, 64)),
        (True, (56, 64), "would be 224."),
        (False, (60, 60), "225"),
        (False, None, "225"),
        (False, (224, 224), "224 x 224"),
    ],
)
def test_the_config_says_whether_the_class_token_has_a_position(tmp_path, without, size, expected):
    model = saved(tmp_path / "a", (56, 64))
    stated = [3, *size] if size else ...
    changes = {"model_args.img_size": ..., "pretrained_cfg.input_size": stated}
    edit(tmp_path / "a", changes | {"model_args.no_embed_class": without})
    if isinstance(expected, tuple):
        assert weights.load(tmp_path / "a").preprocess.image_size == expected
    else:
        with refused(expected):
            weights.load(tmp_path / "a")
    if without:
        return
    # The caller's size comes before that of config.json.
    images = np.random.default_rng(0).normal(size=(1, 56, 64, 3)).astype(np.float32)
    given = weights.load(tmp_path / "a", image_size=(56, 64))
    np.testing.assert_array_equal(given.features(images), model.features(images))


def test_heads_are_those_of_the_architecture_whatever_its_depth():
    there = opened(1280, 2, architecture="vit_huge_patch14_224")
    assert understand(there).spec.num_heads == 16
    assert "num_heads" not in understand(there).assumed
    stated = opened(1280, 2, architecture="vit_huge_patch14_224", model_args={"num_heads": 10})
    assert understand(stated).spec.num_heads == 10


@pytest.mark.parametrize("width", [1152, 1280, 1408, 1664])
def test_heads_that_nothing_decides_are_asked_for(width):
    with refused("its arrays: num_heads"):
        understand(opened(width, 2))
    with refused("config.json: num_heads"):
        understand(opened(width, 2, model_args={"num_heads": 7}))
    assert understand(replace(opened(width, 2), caller_num_heads=16)).spec.num_heads == 16


def test_assumptions_are_said_once_on_stderr(tmp_path, capsys):
    saved(tmp_path / "a", (16, 16))
    weights.load(tmp_path / "a")
    assert "assumed" not in capsys.readouterr().err  # config.json states everything
    (tmp_path / "a" / "config.json").unlink()
    weights.load(tmp_path / "a")
    weights.load(tmp_path / "a")
    assert capsys.readouterr().err.count("num_heads=1, ") == 1


@pytest.mark.parametrize("image_size", [18, (16, 19)])
def test_patches_leave_the_rest_of_an_image_as_timm_does(tmp_path, image_size):
    """Such images are refused of new models, unless asked for, and kept of published ones."""
    saved(tmp_path / "a", (16, 16))
    edit(tmp_path / "a", {"model_args.img_size": image_size})
    model = weights.load(tmp_path / "a")
    height, width = model.preprocess.image_size
    images = np.random.default_rng(0).normal(size=(1, height, width, 3)).astype(np.float32)
    cut = model.features(images[:, :16, :16])
    np.testing.assert_array_equal(model.features(images), cut)
    with refused("(21, 21)", "(20, 20)"):
        weights.load(tmp_path / "a", image_size=21)
    for to in ("timm", "checkpoint"):
        weights.save(weights.Loaded(model, "ViT-Ti/4", None, 0), tmp_path / to, to)
        again = weights.load(tmp_path / to)
        assert again.preprocess.image_size == (height, width)
        np.testing.assert_array_equal(again.features(images), cut)


def test_an_npz_cannot_state_what_patches_leave_of_an_image(tmp_path):
    model = models.create(
        "ViT-Ti/4", depth=1, num_classes=0, image_size=18, crop_to_patches=True, rngs=nnx.Rngs(0)
    )
    with refused("--image_size"):
        weights.save(weights.Loaded(model, "ViT-Ti/4", None, 0), tmp_path / "a.npz", "google_npz")


def test_new_models_leave_out_pixels_only_if_asked():
    make = lambda name="ViT-Ti/4", **fields: models.info(name, image_size=18, **fields)
    with refused("model.crop_to_patches=true"):
        make()
    assert make(crop_to_patches=True).tokens.grid == (4, 4)
    with refused("crop_to_patches"):
        make("R26+ViT-S/32", crop_to_patches=True)


def test_a_head_of_zeros_names_no_class(tmp_path):
    """As in the files that Google released for ImageNet-21k without their heads."""
    from vit_jax.predict import Predictor

    model = models.create(
        "ViT-Ti/4", depth=1, width=48, mlp_dim=24, num_classes=5, image_size=8, rngs=nnx.Rngs(0)
    )
    weights.save(weights.Loaded(model, "ViT-Ti/4", None, 0), tmp_path / "a.npz", "google_npz")
    with refused("--config"):
        Predictor(str(tmp_path / "a.npz"))
    file, screen = epath.Path(tmp_path / "a.npz"), Screen(quiet=True)
    with refused("--config"):
        prepared.prepare(configs.resolve(TINY_RUN, [EVALUATED]), file, screen, ema=False)
    frozen = configs.resolve(TINY_RUN, [EVALUATED, "evals.test.kind=frozen"])
    assert prepared.prepare(frozen, file, screen, ema=False).classes.number == 5


@pytest.mark.parametrize("pool", ["cls", "avg"])
def test_the_callers_rectangle_comes_before_a_square(tmp_path, pool, capsys):
    """9 x 16 patches are as many as 12 x 12."""
    model = saved(tmp_path / "a", (36, 64), pool=pool)
    (tmp_path / "a" / "config.json").unlink()
    images = np.random.default_rng(0).normal(size=(1, 36, 64, 3)).astype(np.float32)
    loaded = weights.load(tmp_path / "a", image_size=(36, 64), num_heads=2)
    np.testing.assert_allclose(loaded.features(images), model.features(images), atol=ROUNDING)
    said = "images of 36 x 64 pixels, so positions of 9 x 16 patches"
    assert said in capsys.readouterr().err
    assert weights.load(tmp_path / "a").preprocess.image_size == (48, 48)


# From timm 1.0.31: name, num_heads.
HEADS = {
    "vit_tiny_patch16_224": 3, "vit_base_patch16_gap_224": 16, "test_vit": 2, "test_vit3": 3,
    "vit_base_patch16_plus_240": 14, "vit_giant_patch14_dinov2": 24, "vit_giant_patch14_224": 16,
    "vit_so400m_patch14_siglip_384": 16, "vit_huge_patch14_224": 16, "deit3_medium_patch16_224": 8,
    "vit_giantopt_patch16_siglip_256": 16, "flexivit_large": 16,
    "vit_little_patch16_reg4_gap_256": 5, "vit_small_patch16_224.augreg_in21k": 6,
    "vit_mediumd_patch16_reg4_gap_256": 8, "vit_basement_patch16_224": None, "": None,
}  # fmt: skip


@pytest.mark.parametrize(("name", "number"), HEADS.items())
def test_heads_of_timms_architectures(name, number):
    assert _heads(name) == number


def test_a_bare_file_says_what_is_assumed_of_it():
    settings = understand(opened(768, 12))
    assert settings.spec.num_heads == 12
    assert set(settings.assumed) == {
        "num_heads",
        "image_size",
        "gelu",
        "norm_epsilon",
        "preprocess",
    }
    said = settings.assumptions()
    assert "num_heads=12" in said and "gelu=exact" in said and "mean 0.5 0.5 0.5" in said
    assert understand(replace(opened(768, 12), caller_num_heads=6)).spec.num_heads == 6
    assert understand(opened(448, 2)).spec.num_heads == 7
