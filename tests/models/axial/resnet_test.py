import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.messages import refused
from tests.models.axial import resnet_by_formula
from tests.models.by_hand import info
from vit_jax import models
from vit_jax.core import pytrees
from vit_jax.learning.optim.optimizers import kernels_only
from vit_jax.models import observe

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROUNDING = 1e-5  # float32 against float64, relative to the largest entry
AGREEMENT = 2e-4  # gradients by float32 sums in another order, relative to the largest entry
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


def counted(units, width, num_heads, image_size, num_classes):
    """Kernels, norms, offsets and head by hand."""
    inputs, side = width, image_size // 4
    total = 7 * 7 * 3 * width + 2 * width
    for stage, number in enumerate(units):
        hidden = width * 2**stage
        outputs, head_size = 4 * hidden, hidden // num_heads
        total += inputs * outputs + 2 * outputs  # the shortcut's projection
        for i in range(number):
            total += inputs * hidden + hidden * outputs + 2 * (hidden + outputs)
            attention = 2 * hidden**2 + (2 * side - 1) * 2 * head_size + 2 * 3 * hidden
            total += 2 * attention
            side = side // 2 if stage and not i else side
            inputs = outputs
    return total + inputs * num_classes + num_classes


def test_parameter_counts_by_hand():
    assert (
        counted((3, 4, 6, 3), 64, 8, 224, 1000) == info("AxialResNet-50").parameters == 19_373_640
    )
    double = info("AxialResNet-1-2x2", num_classes=7, image_size=64)
    assert counted((1, 2), 128, 8, 64, 7) == double.parameters
    with_convolutions = info("R50x1").parameters
    assert info("AxialResNet-50").parameters < with_convolutions


def test_names():
    spec = models.spec("AxialResNet-1-2")
    assert (spec.units, spec.root_width, spec.num_heads) == ((1, 2), 64, 8)
    for name in ("AxialResNet-51", "AxialResNet-50x0", "AxialResNet50", "AxialResNet-"):
        with refused("'AxialResNet-50'"):
            models.spec(name)


def gradients(**fields):
    graph, shapes = nnx.split(nnx.eval_shape(lambda: build(**fields)), nnx.Param)
    rng = np.random.default_rng(0)
    draw = lambda p: jnp.asarray(0.1 + 0.3 * rng.normal(size=p.shape), jnp.float32)
    params = jax.tree.map(draw, nnx.to_pure_dict(shapes))
    images = random_images()

    def loss(params):
        return -jax.nn.log_softmax(nnx.merge(graph, params)(images, train=True))[:, 0].mean()

    return pytrees.flatten(jax.jit(jax.grad(loss))(params))


@pytest.mark.slow
def test_ways_to_run_the_units_agree_and_move_every_parameter():
    grads, scanned = gradients(units=(1, 3)), gradients(units=(1, 3), scan=True, remat="full")
    for name, grad in grads.items():
        scale = float(jnp.abs(grad).max())
        assert np.isfinite(scale) and scale > 0, name
        np.testing.assert_allclose(scanned[name], grad, atol=AGREEMENT * scale, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["none", "dots", "dots_no_batch"])
def test_bfloat16_moves_every_parameter(remat):
    for name, grad in gradients(dtype="bfloat16", remat=remat).items():
        assert np.isfinite(grad).all() and grad.any(), name


def test_parameters_are_stacked_and_only_kernels_decay():
    params = pytrees.flatten(nnx.to_pure_dict(nnx.state(nnx.eval_shape(build), nnx.Param)))
    decayed = kernels_only(params)
    assert all(decayed[name] == name.endswith("kernel") for name in params)
    assert params["resnet/stage2/rest/block/row/offsets"].shape == (1, 2 * 5 - 1, 2 * 16)
    assert params["resnet/stage2/first/block/column/offsets"].shape == (1, 2 * 5 - 1, 2 * 16)
    assert params["resnet/stage2/rest/block/column/offsets"].shape == (1, 2 * 3 - 1, 2 * 16)


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
    with refused():
        observe.attention_distance(model, images)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"num_heads": 5}, "model.num_heads=5"),
        ({"num_heads": 100}, "model.num_heads=100"),
        ({"root_width": 48}, "model.root_width=48"),
        ({"units": ()}, "model.units"),
        ({"width": 64}, "'width'"),
        ({"dropout": 0.1}, "'dropout'"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(fields, name):
    with refused(name):
        build(**fields)
