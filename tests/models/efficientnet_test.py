import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.messages import refused
from tests.models.by_hand import info
from vit_jax import models
from vit_jax.core import pytrees
from vit_jax.models import observe
from vit_jax.models.efficientnet import SIZES, with_sizes
from vit_jax.models.layers.mbconv import MBConv, squeezed
from vit_jax.models.layers.stack import Stage

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROUNDING = 1e-5  # float32 sums in another order
AGREEMENT = 1e-4  # likewise of gradients, relative to the largest entry
TINY = "EfficientNet-0.25x0.1"
NAMES = [name for name in models.available() if name.startswith("EfficientNet")]

# Counted by timm 1.0.31: its tf_efficientnet_*, made on torch.device("meta").
PARAMETERS = {
    "EfficientNet-B0": 5_288_548,
    "EfficientNet-B1": 7_794_184,
    "EfficientNet-B2": 9_109_994,
    "EfficientNet-B3": 12_233_232,
    "EfficientNet-B4": 19_341_616,
    "EfficientNet-B5": 30_389_784,
    "EfficientNet-B6": 43_040_704,
    "EfficientNet-B7": 66_347_960,
    "EfficientNet-L2": 480_309_308,
}
# Table 2 of arXiv 1905.11946: billions of multiply-adds at the model's own image size.
BILLIONS = {
    "EfficientNet-B0": 0.39, "EfficientNet-B1": 0.70, "EfficientNet-B2": 1.0,
    "EfficientNet-B3": 1.8, "EfficientNet-B4": 4.2, "EfficientNet-B5": 9.9,
    "EfficientNet-B6": 19.0, "EfficientNet-B7": 37.0,
}  # fmt: skip


def build(name=TINY, **fields):
    arguments = {"num_classes": 5, "image_size": 32, "rngs": nnx.Rngs(0)} | fields
    return models.create(name, **arguments)


def drawn(**fields):
    """A model with random parameters."""
    return random_parameters(lambda: build(**fields))


def random_parameters(make):
    """(graph, parameters) of a module, variances above 0; compiles nothing."""
    graph, shapes = nnx.split(nnx.eval_shape(make), nnx.Param)
    rng = np.random.default_rng(0)

    def draw(name, x):
        values = rng.normal(size=x.shape)
        values = np.abs(values) + 0.5 if name.endswith("variance") else values
        fan_in = x.size // x.shape[-1] / (x.shape[0] if "block" in name else 1)
        values /= np.sqrt(fan_in) if name.endswith("kernel") else 1
        return jnp.asarray(values, jnp.float32)

    return graph, pytrees.map_named(draw, nnx.to_pure_dict(shapes))


def random_images(*shape):
    return np.random.default_rng(1).normal(size=(*shape, 3)).astype(np.float32)


@pytest.mark.parametrize("name", NAMES)
def test_parameter_counts(name):
    assert info(name).parameters == PARAMETERS[name]


def test_running_statistics_are_not_counted():
    everything = nnx.state(nnx.eval_shape(lambda: build(NAMES[0], num_classes=1000)), nnx.Param)
    # Two for each channel that is normed: twice what has a scale.
    norms = PARAMETERS[NAMES[0]] - 5_246_532
    assert pytrees.num_elements(everything) == PARAMETERS[NAMES[0]] + norms == 5_330_564


@pytest.mark.parametrize("name", BILLIONS)
def test_flops_against_the_paper(name):
    """The paper's are rounded, and may count products with the zeros around a map."""
    side = SIZES[name.removeprefix("EfficientNet-")].image_size_px
    ours = models.spec(name).forward_flops(1000, (side, side)) / 2e9
    assert 0.93 < ours / BILLIONS[name] < 1.05


def test_channels_and_units():
    b0, b7 = models.spec("EfficientNet-B0"), models.spec("EfficientNet-B7")
    assert (b0.units, b0.depth) == ((1, 2, 2, 3, 3, 4, 1), 16)
    assert (b0.channels, b0.map_channels) == ((32, 16, 24, 40, 80, 112, 192, 320), 1280)
    assert b7.units == (4, 7, 7, 10, 10, 13, 4)
    assert (b7.channels, b7.map_channels) == ((64, 32, 48, 80, 160, 224, 384, 640), 2560)
    assert (b0.dropout, b7.dropout, b7.stochastic_depth) == (0.2, 0.5, 0.2)
    narrow = models.spec("EfficientNet-0.45x1").channels
    assert narrow == (16, 8, 16, 24, 40, 48, 88, 144)  # 10.8 to 16: not a tenth less
    for unit in b0.each_unit((33, 70)):
        assert squeezed(unit) == unit.inputs // 4
    assert unit.size_out == (2, 3)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_found_by_its_sizes_and_builds(name):
    spec = models.spec(name)
    assert with_sizes(spec.units, spec.channels, spec.map_channels) == name
    images = jax.ShapeDtypeStruct((2, 64, 96, 3), jnp.float32)

    def run(images):
        model = build(name, image_size=(64, 96), dtype="bfloat16", scan=True)
        return model(images), model.tokens(images)

    if name == "EfficientNet-L2":  # the others are smaller
        logits, tokens = jax.eval_shape(run, images)
        assert (logits.shape, logits.dtype) == ((2, 5), jnp.float32)
        assert (tokens.shape, tokens.dtype) == ((2, 6, spec.map_channels), jnp.bfloat16)
        assert spec.token_layout((64, 96)).num_tokens == 6


def test_other_sizes_get_the_smallest_coefficients():
    spec = models.spec("EfficientNet-0.5x0.6")
    assert with_sizes(spec.units, spec.channels, spec.map_channels) == "EfficientNet-0.5x0.51"
    assert with_sizes((1,) * 7, spec.channels, 1281) is None


def test_tokens_features_and_logits_fit_together():
    graph, params = drawn()
    images = random_images(2, 33, 64)

    def run(params, images):
        m = nnx.merge(graph, params)
        maps = m.tokens(images, layers=(0, 6))
        return m(images), m.features(images), m.tokens(images), m.feature_map(images), maps

    logits, features, tokens, feature_map, (first, last) = jax.jit(run)(params, images)
    spec = models.spec(TINY)
    assert feature_map.shape == (2, 2, 2, spec.map_channels)
    assert (first.shape, last.shape) == ((2, 17 * 32, 8), (2, 4, spec.channels[-1]))
    np.testing.assert_array_equal(tokens, feature_map.reshape(tokens.shape))
    np.testing.assert_allclose(features, np.mean(tokens, axis=1), atol=ROUNDING)
    head = params["head"]
    np.testing.assert_allclose(logits, features @ head["kernel"] + head["bias"], atol=1e-4)


def gradients(graph, params, images, key=None):
    def loss(params):
        logits = nnx.merge(graph, params)(images, train=True, rngs=key)
        return -jax.nn.log_softmax(logits)[:, 0].mean()

    return jax.jit(jax.value_and_grad(loss))(params)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_step_of_training_moves_every_parameter(dtype):
    graph, params = drawn(dtype=dtype)
    loss, grads = gradients(graph, params, random_images(4, 64, 64), jax.random.key(1))
    assert np.isfinite(loss)
    for name, grad in pytrees.flatten(grads).items():
        assert np.isfinite(grad).all() and grad.any(), name


def test_ways_to_run_the_units_agree():
    """Running statistics too, which scans and rematerialisation hand on as gradients."""
    spec = models.spec(TINY, depth_coefficient=1.3)
    images, key = random_images(4, 12, 12)[..., [0] * 8], jax.random.key(0)
    units = list(spec.each_unit((24, 24)))[2:5]  # a stage

    def results(**fields):
        own = dataclasses.replace(spec, **fields)
        rate = lambda i: own.stochastic_depth * (2 + i) / own.depth
        make_unit = functools.partial(MBConv, spec=own)
        make = lambda: Stage(make_unit, units, own, drop_rate=rate, rngs=nnx.Rngs(0))
        graph, params = random_parameters(make)

        def loss(params):
            y, _ = nnx.merge(graph, params)(images, key, True, keep=False)
            return jnp.sum(jnp.sin(y)), y

        (_, y), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
        return y, pytrees.flatten(grads)

    y, grads = results()
    assert grads["rest/block/norm1/running_mean"].shape == (2, units[1].hidden)
    for fields in ({"scan": True, "remat": "full"}, {"remat": "dots"}):
        other, theirs = results(**fields)
        np.testing.assert_allclose(other, y, atol=ROUNDING * float(jnp.abs(y).max()))
        for name, grad in grads.items():
            atol = AGREEMENT * float(jnp.abs(grad).max())
            np.testing.assert_allclose(theirs[name], grad, atol=atol, err_msg=name)


def test_rates_of_stochastic_depth_rise_over_all_units():
    model = nnx.eval_shape(lambda: build("EfficientNet-B0"))
    rates = []
    for stage, units in enumerate(model.spec.units, 1):
        own = getattr(model, f"stage{stage}")
        for stack in (own.first, own.rest) if units > 1 else (own.first,):
            rates += np.linspace(stack.first_depth, stack.stochastic_depth, stack.depth).tolist()
    np.testing.assert_allclose(rates, 0.2 * np.arange(16) / 16)


def test_training_draws_random_numbers_only_where_it_needs_them():
    images = random_images(2, 32, 32)
    with refused("rngs", error=ValueError):
        nnx.eval_shape(lambda: build()(images, train=True))
    plain = lambda: build(dropout=0.0, stochastic_depth=0.0)(images, train=True)
    assert nnx.eval_shape(plain).shape == (2, 5)


def test_without_classes_it_gives_features():
    features = nnx.eval_shape(lambda: build(num_classes=0)(random_images(2, 32, 32)))
    assert features.shape == (2, 320)


def test_grad_cam():
    """The head is linear in the mean of the map, so the gradient is the class's weights."""
    graph, params = drawn(image_size=(40, 72))
    model, images = nnx.merge(graph, params), random_images(2, 40, 72)
    features = np.asarray(jax.jit(model.feature_map)(images), np.float64)
    weights = np.asarray(params["head"]["kernel"], np.float64)[:, [2, 1]] / 6
    expected = np.maximum(np.einsum("bhwc,cb->bhw", features, weights), 0)
    found = observe.relevance(model, images, (2, 1))
    assert expected.max() > 0
    np.testing.assert_allclose(found.map.patches, expected, atol=ROUNDING * expected.max())


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"padding": "valid"}, "model.padding"),
        ({"width_coefficient": 0}, "model.width_coefficient=0"),
        ({"depth_coefficient": "2"}, "model.depth_coefficient"),
        ({"batch_norm_momentum": 1.0}, "model.batch_norm_momentum=1.0"),
        ({"units": (1, 2)}, "'units'"),
    ],
)
def test_impossible_fields_are_refused(fields, name):
    with refused(name):
        build(**fields)


@pytest.mark.parametrize("name", ["EfficientNet-B8", "EfficientNet-0x1", "EfficientNet-1", "B0"])
def test_unknown_names(name):
    with refused():
        models.info(name)
