import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.messages import refused
from tests.models.by_hand import info
from vit_jax import models
from vit_jax.models.bit import DEPTHS

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROUNDING = 1e-5  # float32 sums in another order
TINY = {"units": (1, 2), "root_width": 32}
BIT = [name for name in models.available() if models.kind(name) == "A BiT ResNet"]


def build(**fields):
    arguments = {"num_classes": 5, "image_size": 16, "rngs": nnx.Rngs(0)} | TINY | fields
    return models.create("R50x1", **arguments)


def outputs(model, images, layers=()):
    """(logits, features, tokens, tokens after `layers`), from one program."""

    def run(m, x):
        return m(x), m.features(x), m.tokens(x), m.tokens(x, layers=layers)

    return nnx.jit(run)(model, images)


# Counted by timm 1.0.31: its resnetv2_*_bit, or, for those without a name there,
# timm.models.resnetv2._create_resnetv2_bit(..., layers=units, width_factor=factor), made on
# torch.device("meta") with 1000 classes.
PARAMETERS = {
    "R26x1": 15_987_496,
    "R50x1": 25_549_352,
    "R50x2": 97_988_712,
    "R50x3": 217_319_080,
    "R101x1": 44_541_480,
    "R101x3": 387_934_888,
    "R152x1": 60_185_128,
    "R152x2": 236_335_208,
    "R152x4": 936_533_224,
    "R200x3": 568_633_000,
}


@pytest.mark.parametrize("name", BIT)
def test_parameter_counts(name):
    assert info(name).parameters == PARAMETERS[name]


def counted(units, factor):
    """Counts kernels, norms and head by hand."""
    inputs = 64 * factor
    total = 7 * 7 * 3 * inputs
    for stage, number in enumerate(units):
        hidden = 64 * factor * 2**stage
        outputs = 4 * hidden
        total += inputs * outputs  # the shortcut's projection
        for _ in range(number):
            total += inputs * hidden + 9 * hidden * hidden + hidden * outputs
            total += 2 * (inputs + 2 * hidden)
            inputs = outputs
    return total + 2 * inputs + inputs * 1000 + 1000


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts_by_hand(name):
    layers, factor = map(int, name.removeprefix("R").split("x"))
    assert counted(DEPTHS[layers], factor) == PARAMETERS[name]


# exaFLOPs on 303 M images (arXiv 2010.11929, table 6), by 3 x forward FLOPs x images.
EXAFLOPS = {
    ("R50x1", 7): 50,
    ("R50x2", 7): 199,
    ("R101x1", 7): 96,
    ("R152x1", 7): 141,
    ("R152x2", 7): 563,
    ("R200x3", 14): 3306,
}


@pytest.mark.parametrize(("name", "epochs"), EXAFLOPS)
def test_flops_against_the_paper(name, epochs):
    flops = models.spec(name).forward_flops(18_291, (224, 224))
    assert abs(3 * flops * epochs * 303e6 / 1e18 / EXAFLOPS[name, epochs] - 1) < 0.015


@pytest.mark.parametrize("name", BIT)
def test_every_name_builds_and_gives_float32_logits(name):
    images = jax.ShapeDtypeStruct((2, 64, 96, 3), jnp.float32)

    def run(images):
        model = models.create(
            name, num_classes=7, image_size=(64, 96), rngs=nnx.Rngs(0), dtype="bfloat16", scan=True
        )
        return model(images), model.tokens(images)

    logits, tokens = jax.eval_shape(run, images)
    spec = models.spec(name)
    layout = spec.token_layout((64, 96))
    assert (logits.shape, logits.dtype) == ((2, 7), jnp.float32)
    assert (spec.stride, layout.grid) == (32, (2, 3))
    assert tokens.shape == (2, layout.num_tokens, 32 * spec.root_width)
    assert tokens.dtype == jnp.bfloat16


def test_the_head_starts_at_zero():
    head = nnx.jit(lambda: build(head_bias=-10.0).head)()
    assert not head.kernel[...].any()
    assert (head.bias[...] == -10).all()


def test_tokens_features_and_logits_fit_together(drawn):
    model, images = drawn(build), jax.random.normal(jax.random.key(0), (2, 16, 16, 3))
    logits, features, tokens, (_, last) = outputs(model, images, layers=(0, 2))
    assert tokens.shape == (2, 4, 256)
    assert float(tokens.min()) == 0  # after a relu
    np.testing.assert_allclose(features, np.mean(tokens, axis=1), atol=ROUNDING)
    expected = features @ model.head.kernel[...] + model.head.bias[...]
    np.testing.assert_allclose(logits, expected, rtol=ROUNDING, atol=1e-4)
    normed = jax.nn.relu(model.norm(last.reshape(2, 2, 2, 256))).reshape(tokens.shape)
    np.testing.assert_allclose(normed, tokens, atol=ROUNDING)


def test_without_classes_it_gives_features():
    images = jax.ShapeDtypeStruct((2, 16, 16, 3), jnp.float32)

    def run(images):
        model = build(num_classes=0, dtype="bfloat16")
        return model(images)

    features = jax.eval_shape(run, images)
    assert (features.shape, features.dtype) == ((2, 256), jnp.float32)
    assert models.info("R50x1", num_classes=0, **TINY).parameters == (
        models.info("R50x1", num_classes=5, **TINY).parameters - 5 * 257
    )


def test_images_of_any_size():
    info = models.info("R50x1", image_size=(37, 50), num_classes=5, **TINY)
    tokens = jax.eval_shape(lambda x: build().tokens(x), jnp.ones((1, 37, 50, 3)))
    assert tokens.shape[1] == info.tokens.num_tokens == 5 * 7


def test_constants_of_the_ports_are_fields(drawn):
    images = jax.random.normal(jax.random.key(0), (1, 16, 16, 3))

    def tokens(**fields):
        model = drawn(lambda: build(units=(1,), **fields))
        return nnx.jit(lambda m, x: m.tokens(x))(model, images)

    own, other = tokens(), tokens(weight_epsilon=1e-3, group_norm_epsilon=0.1)
    assert float(jnp.abs(own - other).max()) > 1e-3


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"units": ()}, "model.units"),
        ({"units": (1, 0)}, "model.units=(1, 0)"),
        ({"root_width": 48}, "model.root_width=48"),
        ({"width": 64}, "'width'"),
        ({"pool": "avg"}, "'pool'"),
        ({"dropout": 0.1}, "'dropout'"),
        ({"dtype": "float16"}, "model.dtype"),
        ({"weight_epsilon_of": "std"}, "weight_epsilon_of"),
    ],
)
def test_impossible_fields_are_refused(fields, name):
    with refused(name):
        build(**fields)


@pytest.mark.parametrize("name", ["R51x1", "R50x0", "R50", "r50x1", "R50+ViT-B/8", "R+ViT-B/32"])
def test_unknown_names(name):
    with refused():
        models.info(name)
