"""Attention, rollout, distances and norms against float64 NumPy, for all kinds of ViTs."""

import math

import jax
import numpy as np
import pytest
from flax import nnx

from tests.models.observe.by_formula import Forward
from tests.models.observe.toys import flat, random_images
from vit_jax.models import observe
from vit_jax.models.observe import attention, gradients

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROUNDING = 1e-5  # float32 against float64; relative to values of order one
GRID = (2, 3)
FIELDS = [
    {},
    {"pool": "avg", "position_embedding": "relative", "gelu": "exact"},
    {"pool": "map", "registers": 2, "position_embedding": "rotary_2d", "norm": "rms"},
    {"pool": "cls_avg", "registers": 3, "layer_scale": 0.5, "class_position": False},
    {"distillation_token": True, "registers": 1},
    {"pool": "avg", "registers": 2, "mlp": "geglu", "dense_bias": False, "norm": "layer_no_bias"},
    {
        "parallel": True, "qk_norm": True, "qkv_bias": "none", "position_at": "layers",
        "class_position": False,
    },
    {"position_embedding": "relative", "position_at": "shared", "qk_norm": True, "registers": 1},
    {"position_embedding": "learned_2d", "position_at": "shared", "mlp": "swiglu", "scan": True},
    {"qkv_bias": "query_value", "pre_logits": True, "position_embedding": "learned_2d"},
    {
        "position_embedding": "rotary_axial", "absolute_positions": True, "rotary_base": 1e4,
        "rotary_grid": 5, "rotary_offset": 1.0, "attention_norm": True, "mlp_norm": True,
        "mlp": "swiglu",
    },
    {
        "position_embedding": "rotary_axial", "rotary_columns_first": True, "pool": "map",
        "pool_heads": 1, "pool_mlp_dim": 12, "registers": 1, "mlp_norm": True,
    },
    {"position_embedding": "rotary_mixed", "registers": 1, "scan": True},
    {"value_residual": 0.5, "qkv_bias": "query_value", "scan": True},
    {"value_residual": 0.5, "position_embedding": "learned_2d", "position_at": "layers"},
    {"name": "Axial-ViT-Ti/4", "depth": 1, "position_embedding": "rotary_mixed"},
    {"name": "Axial-ViT-Ti/4", "depth": 1},
    {
        "name": "Axial-ViT-Ti/4", "depth": 1, "pool": "map", "position_embedding": "rotary_2d",
        "qk_norm": True, "layer_scale": 0.5, "scan": True,
    },
    {"name": "Axial-ViT-Ti/4", "depth": 1, "position_at": "layers", "mlp": "geglu"},
]  # fmt: skip


def spell(fields):
    return ",".join(f"{k}={v}" for k, v in fields.items()) or "plain"


def expected_reads(forward, tokens):
    """How the head mixes the last tokens, [B, N], from the meaning of each kind of pooling."""
    spec, (batch, n) = forward.spec, tokens.shape[:2]
    if spec.pool == "map":
        rows = forward.read.mean(axis=1)
        return np.concatenate([np.zeros((batch, spec.registers)), rows], axis=1)
    of_class, patches = np.zeros(n), np.zeros(n)
    heads = 1 + spec.distillation_token  # of whose tokens the logits are the mean
    of_class[:heads] = 1 / heads
    patches[-math.prod(forward.grid) :] = 1 / math.prod(forward.grid)
    row = {"cls": of_class, "avg": patches, "cls_avg": of_class / 2 + patches / 2}[spec.pool]
    return np.tile(row, (batch, 1))


@pytest.mark.parametrize("fields", FIELDS, ids=spell)
def test_everything_equals_the_formulas(toy, fields):
    model, images = toy(**fields), random_images(2)
    forward = Forward(model)
    logits = forward(images)
    reducers = (
        observe.Weights((1, 0)), observe.Rollout(), observe.Distances(), observe.TokenNorms(),
        observe.FromQuery((1, 2)),
    )  # fmt: skip
    seen = observe.look(model, images, reducers)
    weights, rollout, distances, norms, query = seen.results
    scale = np.abs(logits).max()
    np.testing.assert_allclose(seen.logits, logits, atol=ROUNDING * scale)
    np.testing.assert_allclose(seen.logits, jax.jit(model)(images), atol=ROUNDING * scale)
    first, second = forward.weights
    assert 0.05 < first.std() < 0.4  # neither even nor saturated, where mistakes would hide
    np.testing.assert_allclose(weights, np.stack([second, first], axis=1), atol=ROUNDING)

    identity = np.eye(first.shape[-1])
    each = [w.mean(axis=1) + identity for w in (first, second)]
    each = [w / w.sum(axis=-1, keepdims=True) for w in each]
    reads = expected_reads(forward, forward.last)
    expected = np.einsum("bq,bqr,brs->bs", reads, each[1], each[0])
    np.testing.assert_allclose(flat(rollout), expected, atol=ROUNDING)
    np.testing.assert_allclose(flat(rollout).sum(axis=-1), 1, atol=ROUNDING)

    np.testing.assert_allclose(
        distances, [[by_loops(w[i]) for w in (first, second)] for i in range(2)], rtol=ROUNDING
    )
    of_blocks = np.stack([np.sqrt((x**2).sum(-1)) for x in forward.outputs], axis=1)
    np.testing.assert_allclose(flat(norms.blocks), of_blocks, rtol=ROUNDING)
    np.testing.assert_allclose(
        flat(norms.output), np.sqrt((forward.last**2).sum(-1)), rtol=ROUNDING
    )
    np.testing.assert_allclose(
        flat(query), np.stack([first[:, :, -1], second[:, :, -1]], axis=1), atol=ROUNDING
    )


def by_loops(weights):
    """[H, N, N] -> [H]: the distance of figure 7, patch by patch, 4 pixels each."""
    rows, columns = GRID
    patches = [(r, c) for r in range(rows) for c in range(columns)]
    first = weights.shape[-1] - len(patches)
    found = []
    for head in weights:
        of_queries = []
        for q, (row, column) in enumerate(patches):
            row_of = head[first + q, first:]
            apart = [4 * math.dist((row, column), other) for other in patches]
            of_queries.append(np.dot(row_of, apart) / row_of.sum())
        found.append(np.mean(of_queries))
    return found


def test_a_hybrids_distances_are_in_pixels_of_the_image(toy):
    model = toy(
        "R50+ViT-B/16", units=(1, 1), root_width=32, patch_size=8, image_size=(16, 24), depth=1
    )
    images = random_images(1, (16, 24))
    forward = Forward(model)
    logits = forward(images)
    seen = observe.look(model, images, (observe.Distances(), observe.Rollout()))
    distances, rollout = seen.results
    expected = 2 * np.array(by_loops(forward.weights[0][0]))
    np.testing.assert_allclose(distances[0, 0], expected, rtol=ROUNDING)
    of_class = forward.weights[0].mean(axis=1)[:, 0] / 2
    of_class[:, 0] += 1 / 2
    np.testing.assert_allclose(flat(rollout), of_class, atol=ROUNDING)
    np.testing.assert_allclose(seen.logits, logits, atol=ROUNDING * np.abs(logits).max())


def test_pixels_that_fill_no_patch_change_nothing(toy):
    fields = {"position_embedding": "none", "depth": 1}
    whole, images = toy(**fields), random_images(2)
    cropped = toy(crop_to_patches=True, image_size=(11, 15), **fields)
    rest = np.pad(images, ((0, 0), (0, 3), (0, 3), (0, 0)), constant_values=9)
    reducers = (observe.Distances(), observe.Rollout())
    found, expected = (observe.look(*each, reducers) for each in ((cropped, rest), (whole, images)))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    np.testing.assert_array_equal(observe.seen_pixels(cropped, rest), images)


def test_chunks_change_nothing_and_images_may_come_one_by_one(toy):
    model, images = toy(pool="cls_avg", registers=1), random_images(5)
    whole = observe.look(model, images, (observe.Rollout(), observe.Distances()))
    least = observe.chunks.bytes_per_image(model)
    two = observe.look(
        model, iter(images), (observe.Rollout(), observe.Distances()), memory_bytes=2 * least
    )
    assert whole.logits.shape == (5, 5)
    np.testing.assert_allclose(two.logits, whole.logits, atol=1e-4)
    np.testing.assert_allclose(flat(two.results[0]), flat(whole.results[0]), atol=ROUNDING)
    np.testing.assert_allclose(two.results[1], whole.results[1], rtol=ROUNDING)


def test_memory_for_an_image_is_not_more_than_counted(toy):
    """What XLA plans to use beside arguments and results, for one image more."""
    model = toy(image_size=64, depth=8)  # 256 patches
    graph, state = nnx.split(model)
    images = lambda number: jax.ShapeDtypeStruct((number, 64, 64, 3), "float32")
    reducers = (observe.Rollout(), observe.Distances(), observe.TokenNorms())
    view = attention.view_of(model)
    of_look = lambda n: attention.one_pass.lower(graph, reducers, view, state, images(n))
    classes = lambda number: jax.ShapeDtypeStruct((number,), "int32")
    of_relevance = lambda n: gradients.of_attention.lower(graph, state, images(n), classes(n))
    for lower in (of_look, of_relevance):
        three, one = (lower(n).compile().memory_analysis().temp_size_in_bytes for n in (3, 1))
        assert (three - one) / 2 <= observe.chunks.bytes_per_image(model)
