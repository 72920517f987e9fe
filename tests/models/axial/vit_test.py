"""Axial-ViTs; tests/models/observe compares what they compute with float64 NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.messages import refused
from tests.models.by_hand import info, product_flops
from vit_jax import models
from vit_jax.core import pytrees
from vit_jax.learning.optim.optimizers import kernels_only
from vit_jax.models.axial import COLUMN, ROW, LineAttention, joined, lines

pytestmark = pytest.mark.usefixtures("quick_compilation")
AGREEMENT = 1e-5  # float32 sums in another order, relative to the largest entry
TOY = {"depth": 2, "width": 16, "mlp_dim": 24, "num_heads": 2}
NAMES = [name for name in models.available() if models.kind(name) == "An Axial-ViT"]
FIELDS = [
    {},
    {"pool": "map", "position_embedding": "rotary_2d", "qk_norm": True},
    {"position_at": "layers", "mlp": "swiglu", "layer_scale": 0.5, "parallel": True},
]


def toy(**fields):
    arguments = {"num_classes": 5, "image_size": (8, 12), "rngs": nnx.Rngs(0)} | TOY | fields
    return models.create("Axial-ViT-Ti/4", **arguments)


def random_images(*shape):
    return jax.random.normal(jax.random.key(0), shape)


def test_names():
    assert NAMES == ["Axial-ViT-B/16", "Axial-ViT-B/32"]
    spec = models.spec("Axial-ViT-12x512/8")
    assert (spec.depth, spec.width, spec.patch_size, spec.pool) == (12, 512, 8, "avg")
    for name in (
        "Axial-ViT-22B/14",
        "Axial-ViT-B/14-dinov2",
        "Axial-R50x1",
        "Axial-Axial-ViT-B/16",
    ):
        with refused():
            models.spec(name)
    with refused():
        models.spec("Axial-ViT-B")


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_those_of_a_vit_with_twice_the_blocks_and_no_class_token(name):
    plain = name.removeprefix("Axial-")
    twice = info(plain, pool="avg", depth=24).parameters
    assert info(name).parameters == twice
    d = 768
    block = 4 * (d * d + d) + 2 * 4 * d * d + 4 * d + d + 4 * d
    assert twice - info(plain).parameters == 12 * block - 2 * d  # the token, and its position


@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_flops_are_those_of_the_matrix_products(fields):
    def run(images):
        return toy(scan=True, **fields)(images)

    flops = product_flops(jax.make_jaxpr(run)(jnp.zeros((1, 8, 12, 3))).jaxpr)
    own = models.info("Axial-ViT-Ti/4", num_classes=5, image_size=(8, 12), **TOY, **fields)
    once = 2 * 16 * 16 if fields.get("pool") == "map" else 0  # the probe's query
    assert flops == own.forward_flops + once


def test_what_is_kept_for_the_backward_pass():
    """Of every token the tokens and MLPs of two blocks, and weights of its row and its column."""
    of = lambda name: models.info(name, image_size=(256, 512), pool="avg").activation_bytes
    heads, tokens, depth = 12, 16 * 32, 12
    without = of("ViT-B/16") - 2 * depth * tokens * heads * tokens
    assert of("Axial-ViT-B/16") == 2 * without + 2 * depth * tokens * heads * (16 + 32)


@pytest.mark.parametrize("of", [ROW, COLUMN])
def test_lines_are_rows_or_columns(of):
    x = np.arange(2 * 6 * 3).reshape(2, 6, 3)
    grid = x.reshape(2, 2, 3, 3)
    cut = lines(x, (2, 3), of)
    expected = list(grid[0]) if of == ROW else list(grid[0].swapaxes(0, 1))
    np.testing.assert_array_equal(cut[: len(expected)], expected)
    np.testing.assert_array_equal(joined(cut, (2, 3), of), x)


def test_rows_of_a_grid_are_columns_of_the_transposed_one():
    spec = models.spec("Axial-ViT-Ti/4", **TOY)

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def along(grid, of, x):
        attention = LineAttention(spec, grid=grid, kind=of, rngs=nnx.Rngs(0))
        return attention(x.reshape(2, 6, 16)).reshape(2, *grid, 16)

    x = random_images(2, 2, 3, 16)
    by_row = along((2, 3), ROW, x)
    by_column = along((3, 2), COLUMN, x.swapaxes(1, 2)).swapaxes(1, 2)
    np.testing.assert_allclose(by_row, by_column, atol=AGREEMENT * float(jnp.abs(by_row).max()))


def _first_layer(block):
    graph, state = nnx.split(block)
    return graph, jax.tree.map(lambda x: x[0], state)


def test_a_token_reaches_its_row_then_every_place():
    """Through one pair of blocks each patch affects all others, through the first its row alone."""
    graph, state = _first_layer(nnx.jit(lambda: toy(depth=1))().blocks.block)
    run = jax.jit(lambda x: ((block := nnx.merge(graph, state)).row(x), block(x)))
    x = random_images(1, 6, 16)
    moved = [
        jnp.abs(a - b).max((0, 2)) > AGREEMENT
        for a, b in zip(run(x), run(x.at[0, 1].multiply(-1)), strict=True)
    ]
    assert moved[0].tolist() == [True] * 3 + [False] * 3 and moved[1].all()


def loss_and_gradients(images, **fields):
    graph, shapes = nnx.split(nnx.eval_shape(lambda: toy(**fields)), nnx.Param)
    rng = np.random.default_rng(0)
    draw = lambda p: jnp.asarray(0.1 + 0.3 * rng.normal(size=p.shape), jnp.float32)
    params = jax.tree.map(draw, nnx.to_pure_dict(shapes))

    def loss(params):
        logits = nnx.merge(graph, params)(images, train=True, rngs=jax.random.key(1))
        return -jax.nn.log_softmax(logits)[:, 0].mean()

    value, grads = jax.jit(jax.value_and_grad(loss))(params)
    return value, pytrees.flatten(grads)


def test_ways_to_run_the_blocks_agree_and_move_every_parameter():
    images, fields = random_images(2, 8, 12, 3), {"stochastic_depth": 0.5}
    loss, grads = loss_and_gradients(images, **fields)
    scanned_loss, scanned = loss_and_gradients(images, scan=True, remat="full", **fields)
    np.testing.assert_allclose(scanned_loss, loss, rtol=AGREEMENT)
    for name, grad in grads.items():
        scale = float(jnp.abs(grad).max())
        assert scale > 0, name
        np.testing.assert_allclose(scanned[name], grad, atol=AGREEMENT * scale, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_bfloat16_moves_every_parameter(fields):
    loss, grads = loss_and_gradients(random_images(2, 8, 12, 3), dtype="bfloat16", **fields)
    assert np.isfinite(loss)
    for name, grad in grads.items():
        assert np.isfinite(grad).all() and grad.any(), name


def test_stochastic_depth_drops_whole_examples():
    """A branch of an image is dropped in all of its rows and columns."""
    graph, state = _first_layer(nnx.jit(lambda: toy(depth=1, stochastic_depth=0.5))().blocks.block)
    x = random_images(16, 6, 16)
    run = lambda x: nnx.merge(graph, state)(x, jax.random.key(0), jnp.float32(0.8))
    y = jax.jit(run)(x)
    same = (y == x).all(axis=2)
    assert (same.all(axis=1) == same.any(axis=1)).all() and 0 < same[:, 0].sum() < 16


def test_parameters_are_stacked_and_only_kernels_decay():
    params = pytrees.flatten(nnx.to_pure_dict(nnx.state(nnx.eval_shape(toy), nnx.Param)))
    decayed = kernels_only(params)
    for name, x in params.items():
        assert decayed[name] == name.endswith("kernel")
        assert name.startswith(("blocks/block/row/", "blocks/block/column/")) == ("block" in name)
        assert "block" not in name or x.shape[0] == 2


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"pool": "cls"}, "model.pool=cls"),
        ({"pool": "cls_avg"}, "model.pool=cls_avg"),
        ({"registers": 2}, "model.registers=2"),
        ({"position_embedding": "relative"}, "model.position_embedding"),
        ({"attention": "fused"}, "model.attention=fused"),
        ({"image_size": (9, 12)}, "(8, 12)"),
        ({"width": 17}, "model.width=17"),
        ({"units": (1,)}, "'units'"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(fields, name):
    with refused(name):
        toy(**fields)
