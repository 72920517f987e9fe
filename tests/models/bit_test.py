import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.models.bit import DEPTHS

ROUNDING = 1e-5  # float32 sums in another order
TINY = {"units": (1, 2), "root_width": 32}


def tiny(**fields):
    arguments = {"num_classes": 5, "image_size": 16, "rngs": nnx.Rngs(0)} | TINY | fields
    return models.create("R50x1", **arguments)


# The model of arXiv 1912.11370's code with a head of 1000 classes.
PARAMETERS = {
    "R50x1": 25_549_352,
    "R101x1": 44_541_480,
    "R50x3": 217_319_080,
    "R152x2": 236_335_208,
    "R101x3": 387_934_888,
    "R152x4": 936_533_224,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts(name):
    assert models.info(name).parameters == PARAMETERS[name]


def counted(units, factor):
    """Kernels, norms and head by hand."""
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


# exaFLOPs of 7 epochs of 303 M images (arXiv 2010.11929, table 6), by 3 x forward FLOPs x images.
EXAFLOPS = {"R50x1": 50, "R50x2": 199, "R101x1": 96, "R152x1": 141, "R152x2": 563}


@pytest.mark.parametrize("name", EXAFLOPS)
def test_flops_against_the_paper(name):
    flops = models.info(name, num_classes=18_291).forward_flops
    assert abs(3 * flops * 7 * 303e6 / 1e18 / EXAFLOPS[name] - 1) < 0.015


BIT = [name for name in models.available() if "ViT" not in name]


@pytest.mark.parametrize("name", BIT)
def test_every_name_builds_and_gives_float32_logits(name):
    images = jax.ShapeDtypeStruct((2, 64, 96, 3), jnp.float32)

    def run(images):
        model = models.create(
            name, num_classes=7, image_size=(64, 96), rngs=nnx.Rngs(0), dtype="bfloat16", scan=True
        )
        return model(images), model.features(images), model.tokens(images)

    logits, features, tokens = jax.eval_shape(run, images)
    found = models.info(name, num_classes=7, image_size=(64, 96))
    assert (logits.shape, logits.dtype) == ((2, 7), jnp.float32)
    assert (found.stride, found.tokens.grid) == (32, (2, 3))
    assert tokens.shape == (2, found.tokens.num_tokens, features.shape[-1])
    assert (features.shape[-1], features.dtype) == (32 * found.spec["root_width"], jnp.bfloat16)


def test_tokens_features_and_logits_fit_together():
    model, images = tiny(head_bias=-10.0), jax.random.normal(jax.random.key(0), (2, 16, 16, 3))
    np.testing.assert_array_equal(model(images), np.full((2, 5), -10.0))  # the head starts at zero
    model.head.kernel[...] = jax.random.normal(jax.random.key(1), (256, 5))
    tokens = model.tokens(images)
    assert tokens.shape == (2, 4, 256)
    assert float(tokens.min()) == 0  # behind a relu
    features = tokens.mean(axis=1)
    np.testing.assert_allclose(model.features(images), features, atol=ROUNDING)
    expected = features @ model.head.kernel[...] - 10
    np.testing.assert_allclose(model(images), expected, rtol=ROUNDING, atol=1e-4)
    *_, last = model.tokens(images, layers=(0, 2))
    np.testing.assert_allclose(
        jax.nn.relu(model.norm(last.reshape(2, 2, 2, 256))).reshape(tokens.shape),
        tokens,
        atol=ROUNDING,
    )


def test_without_classes_it_gives_features():
    images = jax.ShapeDtypeStruct((2, 16, 16, 3), jnp.float32)

    def run(images):
        model = tiny(num_classes=0, dtype="bfloat16")
        return model(images)

    features = jax.eval_shape(run, images)
    assert (features.shape, features.dtype) == ((2, 256), jnp.float32)
    assert models.info("R50x1", num_classes=0, **TINY).parameters == (
        models.info("R50x1", num_classes=5, **TINY).parameters - 5 * 257
    )


def test_images_of_any_size():
    info = models.info("R50x1", image_size=(37, 50), num_classes=5, **TINY)
    assert tiny().tokens(jnp.ones((1, 37, 50, 3))).shape[1] == info.tokens.num_tokens == 5 * 7


def test_constants_of_the_ports_are_fields():
    images = jax.random.normal(jax.random.key(0), (1, 16, 16, 3))
    own, other = (
        tiny().tokens(images),
        tiny(weight_epsilon=1e-3, group_norm_epsilon=0.1).tokens(images),
    )
    assert float(jnp.abs(own - other).max()) > 1e-3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"units": ()}, "model.units is empty"),
        ({"units": (1, 0)}, "at least 1"),
        ({"root_width": 48}, "nearest: 64"),
        ({"width": 64}, "A BiT ResNet has no field 'width'. Did you mean 'root_width'"),
        ({"pool": "avg"}, "A BiT ResNet has no field 'pool'"),
        ({"dropout": 0.1}, "A BiT ResNet has no field 'dropout'"),
        ({"dtype": "float16"}, "model.dtype='float16'"),
        ({"weight_epsilon_of": "std"}, "deviation"),
    ],
)
def test_what_cannot_be_built(fields, message):
    with pytest.raises(UserError, match=message):
        tiny(**fields)


@pytest.mark.parametrize("name", ["R51x1", "R50x0", "R50", "r50x1", "R50+ViT-B/8", "R+ViT-B/32"])
def test_unknown_names(name):
    with pytest.raises(UserError, match=r"Unknown model .* There are ViT-<"):
        models.info(name)
