import jax
import numpy as np
import pytest
from flax import nnx

from tests.models.axial import resnet_by_formula
from vit_jax import models
from vit_jax.models import observe

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROUNDING = 1e-5  # float32 against float64, relative to the largest entry
TINY = {"units": (1, 2), "root_width": 32, "num_heads": 4, "num_classes": 5}
SIZE = (20, 36)  # maps of 5 x 9, then 3 x 5


def build(**fields):
    arguments = {"image_size": SIZE, "rngs": nnx.Rngs(0)} | TINY | fields
    return models.create("AxialResNet-50", **arguments)


@pytest.fixture
def tiny(drawn):
    """`tiny(scan=True)`: with random parameters, small enough that nothing saturates."""

    def make(**fields):
        model = drawn(lambda: build(**fields))
        for path, value in nnx.to_flat_state(nnx.state(model, nnx.Param)):
            if path[-1] in ("offsets", "scale"):
                value[...] = 0.5 * value[...] + (0.5 if path[-1] == "scale" else 0)
        return model

    return make


def random_images(number=2, size=SIZE):
    return np.random.default_rng(1).normal(size=(number, *size, 3)).astype(np.float32)


@pytest.mark.parametrize("fields", [{}, {"scan": True, "units": (1, 3), "num_heads": 16}], ids=str)
def test_it_equals_the_formulas_in_float64(tiny, fields):
    model, images = tiny(**fields), random_images()
    of_map, of_logits = resnet_by_formula.outputs(model, images)
    found_map, found = nnx.jit(lambda m, x: (m.feature_map(x), m(x)))(model, images)
    scale = np.abs(of_map).max()
    assert of_map.std() > 0.05 * scale and np.abs(of_map[0] - of_map[1]).max() > 0.1 * scale
    np.testing.assert_allclose(found_map, of_map, atol=ROUNDING * scale)
    np.testing.assert_allclose(found, of_logits, atol=ROUNDING * np.abs(of_logits).max())


def test_it_starts_as_its_shortcuts():
    """The last norm of each unit starts at 0, so attention does nothing at first."""

    def features(images, factor):
        model = build(units=(1,))
        for path, value in nnx.to_flat_state(nnx.state(model, nnx.Param)):
            if path[-1] == "offsets":
                value[...] = factor * value[...]
        return model.features(images)

    run = jax.jit(features)
    np.testing.assert_array_equal(run(random_images(), 1.0), run(random_images(), 2.0))


def test_features_tokens_and_relevance(tiny):
    model, images = tiny(), random_images()
    features, tokens, (first,) = nnx.jit(
        lambda m, x: (m.features(x), m.tokens(x), m.tokens(x, layers=(0,)))
    )(model, images)
    assert tokens.shape == (2, 15, 256) and first.shape == (2, 45, 128)
    np.testing.assert_allclose(features, tokens.mean(axis=1), rtol=1e-4, atol=1e-5)
    found = observe.relevance(model, images, (1, 2))
    assert found.map.patches.shape == (2, 3, 5) and found.map.patches.max() > 0
    np.testing.assert_allclose(found.logits, jax.jit(model)(images), rtol=1e-4, atol=1e-4)
