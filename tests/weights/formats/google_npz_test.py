"""Google's .npz: computes the same as a Linen ViT with those files' names, and back."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from tests.messages import refused
from vit_jax import models, weights
from vit_jax.convert import convert
from vit_jax.core.errors import UserError

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROUNDING = 1e-4  # float32 through a few layers, sums in another order


class Reference(nn.Module):
    """A ViT of depth 2 whose parameters are named as in the released files, or as in big_vision."""

    pool: str
    pre_logits: bool
    num_classes: int
    released: bool
    old_names: bool

    @nn.compact
    def __call__(self, images):
        x = nn.Conv(16, (4, 4), (4, 4), padding="VALID", name="embedding")(images)
        x = x.reshape(x.shape[0], -1, 16)
        if not self.released:  # big_vision adds positions first, so the class token has none
            x = x + self.param("pos_embedding", nn.initializers.normal(1), (1, x.shape[1], 16))
        if self.pool == "cls":
            cls = self.param("cls", nn.initializers.normal(1), (1, 1, 16))
            x = jnp.concatenate([jnp.tile(cls, (x.shape[0], 1, 1)), x], axis=1)
        x = Encoder(self.released, self.old_names, name="Transformer")(x)
        if self.pool == "map":
            x = MapHead(name="MAPHead_0")(x)
        else:
            x = x[:, 0] if self.pool == "cls" else x.mean(1)
        if self.pre_logits:
            x = jnp.tanh(nn.Dense(16, name="pre_logits")(x))
        return nn.Dense(self.num_classes, name="head")(x) if self.num_classes else x


class Encoder(nn.Module):
    released: bool
    old_names: bool

    @nn.compact
    def __call__(self, x):
        if self.released:
            x = Positions(name="posembed_input")(x)
        for i in range(2):
            x = Block(self.old_names, name=f"encoderblock_{i}")(x)
        return nn.LayerNorm(name="encoder_norm")(x)


class Positions(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x + self.param("pos_embedding", nn.initializers.normal(1), (1, *x.shape[1:]))


class Block(nn.Module):
    old_names: bool

    @nn.compact
    def __call__(self, x):
        numbers = (0, 1, 2, 3) if self.old_names else (0, 0, 1, 0)
        norm1, attention, norm2, mlp = (
            f"{kind}_{number}"
            for kind, number in zip(
                ("LayerNorm", "MultiHeadDotProductAttention", "LayerNorm", "MlpBlock"),
                numbers,
                strict=True,
            )
        )
        y = nn.LayerNorm(name=norm1)(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2, name=attention)(y, y)
        return x + Mlp(name=mlp)(nn.LayerNorm(name=norm2)(x))


class Mlp(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(16, name="Dense_1")(nn.gelu(nn.Dense(24, name="Dense_0")(x)))


class MapHead(nn.Module):
    @nn.compact
    def __call__(self, x):
        probe = self.param("probe", nn.initializers.normal(1), (1, 1, 16))
        probe = jnp.tile(probe, (x.shape[0], 1, 1))
        attention = nn.MultiHeadDotProductAttention(
            num_heads=2, name="MultiHeadDotProductAttention_0"
        )
        x = attention(probe, x)
        return (x + Mlp(name="MlpBlock_0")(nn.LayerNorm(name="LayerNorm_0")(x)))[:, 0]


def reference(images, *, released, old_names=None, pool="cls", pre_logits=False, num_classes=3):
    """(arrays by Google's names, its results); `old_names` selects those of the released files."""
    old_names = released if old_names is None else old_names
    module = Reference(pool, pre_logits, num_classes, released, old_names)
    params = module.init(jax.random.key(0), images)["params"]
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), params)
    named = jax.tree_util.tree_leaves_with_path(params)
    arrays = {jax.tree_util.keystr(p, simple=True, separator="/"): x for p, x in named}
    return arrays, module.apply({"params": params}, images)


def stacked(arrays):
    """Stacks each array's layers along a leading axis."""
    result = {n: x for n, x in arrays.items() if "encoderblock_" not in n}
    for name, first in arrays.items():
        if "encoderblock_0/" in name:
            second = arrays[name.replace("encoderblock_0/", "encoderblock_1/")]
            result[name.replace("encoderblock_0/", "encoderblock/")] = np.stack([first, second])
    return result


@pytest.mark.parametrize(
    "layout",
    [
        {"released": True},
        {"released": True, "pre_logits": True, "num_classes": 5},
        {"released": True, "num_classes": 0},
        {"released": True, "old_names": False},
        {"released": True, "old_names": False, "pool": "avg", "pre_logits": True},
        {"released": False},
        {"released": False, "pool": "map"},
        {"released": False, "pool": "avg"},
    ],
    ids=["released", "pre_logits", "headless", "linen", "linen_avg", "big_vision", "map", "avg"],
)
def test_computes_the_same(tmp_path, images, layout):
    arrays, expected = reference(images, **layout)
    np.savez(tmp_path / "x.npz", **arrays)
    model = weights.load(tmp_path / "x.npz")
    np.testing.assert_allclose(model(images), expected, atol=ROUNDING)
    assert model.preprocess.image_size == (12, 12)


def test_without_positions_they_are_fixed(tmp_path, images):
    """big_vision's files are such; tests/outside/models_test.py has its own code's logits."""
    arrays, _ = reference(images, released=False, pool="avg")
    arrays.pop("pos_embedding")
    np.savez(tmp_path / "x.npz", **arrays)
    np.savez(tmp_path / "stacked.npz", **stacked(arrays))
    for file in ("x.npz", "stacked.npz"):
        model = weights.load(tmp_path / file)
        assert model.spec.position_embedding == "sincos_2d"
        assert model.preprocess.image_size == (224, 224)
        model = weights.load(tmp_path / file, image_size=12)
        assert model(images).shape == (2, 3)


def test_layers_may_be_stacked_and_names_prefixed(tmp_path, images, same):
    arrays, _ = reference(images, released=False, pool="map")
    np.savez(tmp_path / "plain.npz", **arrays)
    np.savez_compressed(tmp_path / "stacked.npz", **stacked(arrays))
    state = {"opt/0/count": np.zeros(3), "opt/0/mu/head/kernel": np.zeros((16, 3))}
    prefixed = {f"params/{name}": x for name, x in arrays.items()}
    np.savez(tmp_path / "state.npz", **state, **prefixed)
    plain = weights.load(tmp_path / "plain.npz")
    same(weights.load(tmp_path / "stacked.npz"), plain)
    same(weights.load(tmp_path / "state.npz"), plain)


def test_arrays_with_and_without_a_prefix_are_refused(tmp_path, images):
    arrays, _ = reference(images, released=True)
    prefixed = {f"params/{name}": x for name, x in arrays.items()}
    np.savez(tmp_path / "x.npz", **prefixed, **{"head/bias": np.full(3, 9, np.float32)})
    with refused("params/head/bias"):
        weights.load(tmp_path / "x.npz")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64, ">f4"])
def test_other_floats(tmp_path, images, dtype):
    arrays, expected = reference(images, released=True)
    arrays = {name: x.astype(dtype) for name, x in arrays.items()}
    arrays["head/kernel"] = np.asfortranarray(arrays["head/kernel"])
    np.savez(tmp_path / "x.npz", **arrays)
    logits = weights.load(tmp_path / "x.npz")(images)
    assert np.abs(logits - expected).max() < 0.1
    exact = arrays["head/kernel"].astype(np.float32)
    np.testing.assert_array_equal(weights.load(tmp_path / "x.npz").head.kernel[...], exact)


def test_a_missing_array_is_reported_by_todays_name(tmp_path, images):
    arrays, _ = reference(images, released=True, old_names=False)
    lost = "Transformer/encoderblock_1/MlpBlock_0/Dense_0/bias"
    arrays.pop(lost)
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(UserError) as error:
        weights.load(tmp_path / "x.npz")
    first, second = str(error.value).splitlines()
    assert "looks like Google's .npz with the names of today's code" in first
    assert f"  {lost} is missing" in second


def test_integers_are_not_weights(tmp_path, images):
    arrays, _ = reference(images, released=True)
    arrays["head/kernel"] = arrays["head/kernel"].astype(np.int8)
    np.savez(tmp_path / "x.npz", **arrays)
    with refused():
        weights.load(tmp_path / "x.npz")


@pytest.mark.parametrize(
    "fields", [{"pre_logits": True}, {"num_classes": 0}, {"pool": "map"}, {"pool": "avg"}]
)
def test_there_and_back_is_the_same(tmp_path, toy, same, fields):
    ours = toy(**fields)
    weights.save(ours, tmp_path / "x.npz", "google_npz")
    again = weights.load(tmp_path / "x.npz")
    same(again, ours.model)
    arrays = dict(np.load(tmp_path / "x.npz"))
    weights.save(ours._replace(model=again), tmp_path / "y.npz", "google_npz")
    for name, x in np.load(tmp_path / "y.npz").items():
        np.testing.assert_array_equal(x, arrays.pop(name))
    assert not arrays


def test_names_are_those_of_the_released_files(tmp_path, toy, images):
    weights.save(toy(pre_logits=True), tmp_path / "x.npz", "google_npz")
    expected, _ = reference(images, released=True, pre_logits=True)
    written = dict(np.load(tmp_path / "x.npz"))
    assert {n: x.shape for n, x in written.items()} == {n: x.shape for n, x in expected.items()}


def test_fixed_positions_are_written_as_a_table(tmp_path, toy, images):
    for kind in ("sincos_1d", "sincos_2d"):
        ours = toy(position_embedding=kind)
        weights.save(ours, tmp_path / f"{kind}.npz", "google_npz")
        again = weights.load(tmp_path / f"{kind}.npz")
        np.testing.assert_allclose(again(images), ours.model(images), atol=ROUNDING)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gelu": "exact"}, "gelu=exact"),
        ({"norm_epsilon": 0.01}, "norm_epsilon=0.01"),
        (
            {"layer_scale": 0.1},
            "blocks/block/scale1/scale",
        ),
        ({"image_size": (12, 8)}, "12 x 8"),
    ],
)
def test_what_the_arrays_cannot_tell_is_not_written(tmp_path, toy, fields, message):
    with refused(message):
        weights.save(toy(**fields), tmp_path / "x.npz", "google_npz")
    assert not list(tmp_path.iterdir())


def test_what_the_arrays_do_not_say_is_told(tmp_path, toy, capsys):
    about = models.Preprocess((12, 12), 14, (12, 12), (0.4, 0.5, 0.6), interpolation="bicubic")
    ours = toy(preprocess=about)
    weights.save(ours, tmp_path / "x.npz", "google_npz")
    told = capsys.readouterr().err
    for name in ("resize=14", "crop=(12, 12)", "mean=(0.4, 0.5, 0.6)", "=bicubic", "classes"):
        assert name in told
    assert "std=" not in told
    again = weights.load_with_info(tmp_path / "x.npz")
    capsys.readouterr()
    weights.save(again, tmp_path / "y.npz", "google_npz")
    assert not capsys.readouterr().err


def test_differences_are_reported_at_once(tmp_path, images):
    arrays, _ = reference(images, released=True)
    arrays["head/kernal"] = arrays.pop("head/kernel")
    arrays["Transformer/encoderblock_1/MlpBlock_3/Dense_0/bias"] = np.zeros(23)
    np.savez(tmp_path / "x.npz", **arrays)
    with refused("head/kernel", "MlpBlock_3/Dense_0/bias", "(23,)", "(24,)", "head/kernal"):
        weights.load(tmp_path / "x.npz")


def test_an_unknown_layout_names_those_that_were_tried(tmp_path):
    np.savez(tmp_path / "x.npz", conv1=np.zeros((3, 3)), fc=np.zeros(4))
    with pytest.raises(UserError) as error:
        weights.load(tmp_path / "x.npz")
    lines = str(error.value).splitlines()
    assert "none of the layouts" in lines[0]
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "Google's .npz as released",
        "Google's .npz with the names of today's code",
        "big_vision's .npz, layer by layer",
        "big_vision's .npz, layers stacked",
        "big_vision's .npz, layer by layer, positions fixed",
        "big_vision's .npz, layers stacked, positions fixed",
        "Google's .npz of hybrids",
        "Google's .npz of hybrids with the names of today's code",
        "Google's .npz of BiT",
    ]
    assert all("is missing" in line for line in lines[1:])


def test_a_stray_layer_does_not_report_thousands_missing(toy, tmp_path):
    weights.save(toy(), tmp_path / "x.npz", "google_npz")
    arrays = dict(np.load(tmp_path / "x.npz"))
    name = "Transformer/encoderblock_{}/LayerNorm_0/bias"
    np.savez(tmp_path / "y.npz", **arrays, **{name.format(9999): arrays[name.format(0)]})
    with pytest.raises(UserError) as error:
        weights.load(tmp_path / "y.npz")
    first, second = str(error.value).splitlines()
    assert "looks like Google's .npz as released" in first
    assert f"  {name.format(9999)} is unexpected" in second


def test_unnamed_sizes_are_named_after_their_dimensions(tmp_path, toy, hybrid, images):
    arrays, _ = reference(images, released=True)
    np.savez(tmp_path / "x.npz", **arrays)
    assert weights.checkpoint_info(tmp_path / "x.npz").name == "ViT-2x16/4"
    weights.save(hybrid(units=(3, 4, 9), patch_size=16, image_size=32), tmp_path / "h.npz",
                 "google_npz")  # fmt: skip
    assert weights.checkpoint_info(tmp_path / "h.npz").name == "R50+ViT-2x16/16"
    weights.save(toy(layer_scale=1.0, num_classes=0, mlp_dim=32), tmp_path / "d", "huggingface")
    assert weights.checkpoint_info(tmp_path / "d").name == "ViT-2x16/4"
    # Such a name goes into a checkpoint and back.
    notice = convert(str(tmp_path / "x.npz"), str(tmp_path / "c"), to="checkpoint")
    assert notice.startswith("ViT-2x16/4, images of 12 x 12 pixels, 3 classes")
    assert weights.checkpoint_info(tmp_path / "c").name == "ViT-2x16/4"
    assert models.spec("ViT-2x128/4") == models.spec(
        "ViT-B/4", depth=2, width=128, mlp_dim=512, num_heads=2
    )
