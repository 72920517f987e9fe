import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.messages import refused
from tests.models.by_hand import info, vit_parameters
from vit_jax import models
from vit_jax.core.token_layout import TokenLayout
from vit_jax.models.layers.posemb import SinCosPositions, sincos_1d

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROUNDING = 1e-5  # float32 sums in another order
TINY = {"depth": 2, "width": 16, "mlp_dim": 32, "num_heads": 2}


def tiny(**fields):
    fields = {"name": "ViT-Ti/4", "num_classes": 5, "image_size": 8, "rngs": nnx.Rngs(0)} | fields
    return models.create(**(TINY | fields))


# The table of models, 1000 classes, 224 px; Ti, S: arXiv 2012.12877. No paper counts So400m, g and
# G with a class token and such a head: theirs are `counted`.
PARAMETERS = {
    "ViT-Ti/16": 5_717_416,
    "ViT-S/16": 22_050_664,
    "ViT-B/16": 86_567_656,
    "ViT-B/32": 88_224_232,
    "ViT-L/16": 304_326_632,
    "ViT-L/32": 306_535_400,
    "ViT-H/14": 632_045_800,
    "ViT-So400m/14": 413_597_656,
    "ViT-g/14": 1_012_611_432,
    "ViT-G/14": 1_844_440_680,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts(name):
    assert info(name).parameters == PARAMETERS[name]


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts_by_hand(name):
    counted = vit_parameters(models.spec(name), num_classes=1000, image_size=(224, 224))
    assert counted == PARAMETERS[name]


# exaFLOPs of pre-training on 303 M images (paper, table 6), and the tolerance of the rule "3 x
# forward FLOPs x images": the paper's B/32 figure is known to lie 2 % below its own rule.
EXAFLOPS = {
    ("ViT-B/32", 7): (55, 0.025),
    ("ViT-B/16", 7): (224, 0.01),
    ("ViT-L/32", 7): (196, 0.01),
    ("ViT-L/16", 7): (783, 0.01),
    ("ViT-L/16", 14): (1567, 0.01),
    ("ViT-H/14", 14): (4262, 0.01),
}


@pytest.mark.parametrize(("name", "epochs"), EXAFLOPS)
def test_flops_against_the_paper(name, epochs):
    published, tolerance = EXAFLOPS[name, epochs]
    spec = models.spec(name, pre_logits=True)
    flops = spec.forward_flops(18_291, (224, 224))
    assert abs(3 * flops * epochs * 303e6 / 1e18 / published - 1) < tolerance


NAMES = [n for n in models.available() if n.startswith("ViT-")]
# One of each style, for tests that do not depend on the size.
STYLES = ["ViT-S/16", "ViT-22B/14", "ViT-g/14-dinov2", "ViT-S/14-dinov2-reg", "ViT-7B/16-dinov3"]
OTHER_FIELDS = [
    {"pool": "avg", "pre_logits": True},
    {"pool": "map", "position_embedding": "sincos_2d", "layer_scale": 1e-4},
]


@pytest.mark.parametrize(
    ("name", "fields"),
    [(name, {}) for name in NAMES] + list(itertools.product(STYLES, OTHER_FIELDS)),
)
def test_every_name_builds_and_gives_float32_logits(name, fields):
    fields = fields | {"dtype": "bfloat16", "scan": True}  # which traces one block, not all
    images = jax.ShapeDtypeStruct((2, 224, 224, 3), jnp.float32)

    def run(images):
        model = models.create(name, num_classes=7, image_size=224, rngs=nnx.Rngs(0), **fields)
        return model(images), model.features(images)

    logits, features = jax.eval_shape(run, images)
    assert (logits.shape, logits.dtype) == ((2, 7), jnp.float32)
    assert features.shape == (2, models.spec(name).width)
    assert features.dtype == jnp.bfloat16


def test_parameters_are_float32_and_start_as_published():
    model = models.create(
        "ViT-Ti/16", num_classes=10, image_size=64, rngs=nnx.Rngs(0), head_bias=-10.0
    )
    for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        assert variable[...].dtype == jnp.float32, path
    assert not model.cls[...].any()
    assert not model.head.kernel[...].any()
    assert (model.head.bias[...] == -10).all()
    # Standard deviations of 3,264 and 9,216 normal draws: one sigma is 1.2 % and 0.7 %.
    assert abs(float(model.positions.embedding[...].std()) / 0.02 - 1) < 0.05
    assert abs(float(model.blocks.block.mlp.fc1.bias[...].std()) / 1e-6 - 1) < 0.03
    assert (model.norm.scale[...] == 1).all()


def test_fresh_head_gives_its_bias():
    logits = tiny(head_bias=-10.0)(jnp.ones((2, 8, 8, 3)))
    np.testing.assert_array_equal(logits, np.full((2, 5), -10.0))


def test_tokens_features_and_logits_fit_together():
    images = jax.random.normal(jax.random.key(0), (2, 8, 8, 3))
    for pool in ("cls", "avg", "cls_avg"):
        model = tiny(pool=pool)
        model.head.kernel[...] = jax.random.normal(jax.random.key(1), model.head.kernel.shape)
        tokens = model.tokens(images)
        assert tokens.shape == (2, 4 + (pool != "avg"), 16)
        pooled = {
            "cls": tokens[:, 0],
            "avg": tokens.mean(axis=1),
            "cls_avg": jnp.concatenate([tokens[:, 0], tokens[:, 1:].mean(axis=1)], axis=1),
        }[pool]
        np.testing.assert_allclose(model.features(images), pooled, atol=ROUNDING)
        expected = pooled @ model.head.kernel[...] + model.head.bias[...]
        np.testing.assert_allclose(model(images), expected, atol=ROUNDING)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"dropout": 0.2, "stochastic_depth": 0.2, "remat": "dots"},
        {"position_embedding": "relative", "layer_scale": 0.1},
        {"position_embedding": "rotary_2d", "parallel": True, "dropout": 0.2},
    ],
)
def test_a_last_block_for_the_class_token_alone_is_the_whole_one(fields):
    """A loop runs the last block for all tokens."""
    images = jax.random.normal(jax.random.key(0), (3, 8, 8, 3))

    def gradients(scan):
        graph, params = nnx.split(tiny(scan=scan, head_bias=0.1, **fields), nnx.Param)
        params = jax.tree.map(
            lambda p: p + 0.1 * jnp.cos(jnp.arange(p.size).reshape(p.shape)), params
        )
        logits = lambda p: nnx.merge(graph, p)(images, train=True, rngs=jax.random.key(1))
        return jax.value_and_grad(lambda p: jnp.sum(jnp.sin(3 * logits(p))))(params)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        gradients(False),
        gradients(True),
    )


def test_attention_pooling_sees_the_tokens():
    images = jax.random.normal(jax.random.key(0), (2, 8, 8, 3))
    model = tiny(pool="map")
    tokens = model.tokens(images)
    assert tokens.shape == (2, 4, 16)
    np.testing.assert_allclose(model.features(images), model.pooling(tokens), atol=ROUNDING)


# Weights of the SigLIP image tower: the head's classes left out (timm's model card: 427.68 M).
def test_parameters_with_attention_pooling_are_the_published_ones():
    info = models.info("ViT-So400m/14", num_classes=1, pool="map")
    assert round((info.parameters - 1152 - 1) / 1e6, 2) == 427.68


@pytest.mark.parametrize("kind", ["learned_1d", "sincos_1d", "sincos_2d"])
def test_position_embeddings_tell_places_apart(kind):
    """Equal patches give tokens that differ only by their places."""
    model = tiny(position_embedding=kind, depth=1, image_size=(8, 12))
    learned = "positions" in nnx.to_pure_dict(nnx.state(model, nnx.Param))
    assert learned == (kind == "learned_1d")
    tokens = model.tokens(jnp.ones((1, 8, 12, 3)))[0]
    distances = jnp.abs(tokens[:, None] - tokens[None]).max(axis=-1) + jnp.eye(7)
    assert float(distances.min()) > ROUNDING


def test_layer_scale_is_a_parameter_of_every_block():
    block = tiny(layer_scale=1e-4).blocks.block
    assert block.scale1.scale.shape == block.scale2.scale.shape == (2, 16)
    assert (block.scale1.scale[...] == np.float32(1e-4)).all()
    assert tiny().blocks.block.scale1 is None


def test_layers_of_tokens():
    model, images = tiny(), jnp.ones((1, 8, 8, 3))
    first, last = model.tokens(images, layers=(0, 1))
    assert first.shape == (1, 5, 16)
    np.testing.assert_allclose(model.norm(last), model.tokens(images), atol=ROUNDING)


def test_images_need_not_be_square():
    model = tiny(image_size=(8, 16))
    assert model.positions.embedding.shape == (2 * 4 + 1, 16)
    assert model(jnp.ones((1, 8, 16, 3))).shape == (1, 5)


def test_pre_logits_is_a_tanh_layer():
    model, images = tiny(pre_logits=True), jnp.ones((1, 8, 8, 3))
    pooled = model.tokens(images)[:, 0]
    expected = jnp.tanh(pooled @ model.pre_logits.kernel[...] + model.pre_logits.bias[...])
    np.testing.assert_allclose(model.features(images), expected, atol=ROUNDING)


def test_evaluation_is_the_default_and_training_needs_random_numbers():
    model, images = tiny(dropout=0.5, stochastic_depth=0.5), jnp.ones((2, 8, 8, 3))
    model.head.kernel[...] = jnp.ones((16, 5)) * jnp.arange(16)[:, None]
    np.testing.assert_array_equal(model(images), model(images))
    trained = model(images, train=True, rngs=nnx.Rngs(dropout=1))
    assert not np.array_equal(trained, model(images))
    np.testing.assert_array_equal(trained, model(images, train=True, rngs=nnx.Rngs(dropout=1)))
    with refused("rngs", error=ValueError):
        model(images, train=True)


def test_gelu_forms_differ_slightly():
    images = jax.random.normal(jax.random.key(0), (2, 8, 8, 3))
    difference = jnp.abs(tiny(gelu="tanh").tokens(images) - tiny(gelu="exact").tokens(images)).max()
    assert 0 < float(difference) < 1e-2  # the approximation is good to about 1e-3


@pytest.mark.parametrize("pool", ["cls", "map"])
def test_norm_epsilon_is_that_of_every_layer_norm(pool):
    model = tiny(pool=pool, norm_epsilon=0.5)
    norms = [m.epsilon for _, m in nnx.iter_graph(model) if isinstance(m, nnx.LayerNorm)]
    assert set(norms) == {0.5}
    assert len(norms) == (4 if pool == "map" else 3)
    with refused("norm_epsilon"):
        tiny(norm_epsilon=0.0)


def test_without_a_head_a_model_gives_features():
    images = jax.random.normal(jax.random.key(0), (2, 8, 8, 3))
    model = tiny(num_classes=0)
    assert not hasattr(model, "head")
    np.testing.assert_array_equal(model(images), model.features(images))
    np.testing.assert_array_equal(model(images), tiny().features(images))


def test_bfloat16_is_near_float32():
    images = jax.random.normal(jax.random.key(0), (2, 8, 8, 3))
    half, full = tiny(dtype="bfloat16").features(images), tiny().features(images)
    assert half.dtype == jnp.bfloat16
    # Three significant digits per step, a few steps deep, entries of about 1.
    np.testing.assert_allclose(half.astype(jnp.float32), full, atol=0.1)


def test_the_softmax_has_its_own_dtype():
    images = jax.random.normal(jax.random.key(0), (2, 8, 8, 3))
    fine = tiny(dtype="bfloat16").tokens(images).astype(jnp.float32)
    coarse = tiny(dtype="bfloat16", softmax_dtype="bfloat16").tokens(images).astype(jnp.float32)
    assert 0 < float(jnp.abs(fine - coarse).max()) < 0.1  # as above


@pytest.mark.slow
@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("place", ["input", "layers"])
def test_tokens_between_blocks_have_their_own_dtype(scan, place):
    """Tokens in float32 lose less than those rounded after each block."""
    images = jax.random.normal(jax.random.key(0), (16, 8, 8, 3))
    fields = {"scan": scan, "position_at": place, "depth": 6}
    exact = tiny(**fields).tokens(images, layers=(5,))[0]
    kept = tiny(dtype="bfloat16", residual_dtype="float32", **fields)
    rounded = tiny(dtype="bfloat16", **fields)
    (fine,), (coarse,) = kept.tokens(images, layers=(5,)), rounded.tokens(images, layers=(5,))
    assert (fine.dtype, coarse.dtype) == (jnp.float32, jnp.bfloat16)
    assert kept.tokens(images).dtype == jnp.bfloat16  # after the last norm
    error = lambda tokens: float(jnp.square(tokens.astype(jnp.float32) - exact).mean())
    assert 0 < error(fine) < 0.8 * error(coarse)  # the rest is rounded within blocks


def test_float32_between_blocks_takes_memory():
    fields = {"image_size": 224, "dtype": "bfloat16"}
    coarse = models.info("ViT-B/16", **fields)
    fine = models.info("ViT-B/16", residual_dtype="float32", **fields)
    assert fine.block_input_bytes == 2 * coarse.block_input_bytes
    more = fine.activation_bytes - coarse.activation_bytes
    assert more == 2 * coarse.block_input_bytes  # a block's input and its middle


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16"])
def test_gradients_of_kernels_have_their_own_dtype(dtype):
    model = tiny(dtype="bfloat16", gradient_dtype=dtype)
    model.head.kernel[...] = jax.random.normal(jax.random.key(1), (16, 5))  # not zero, as at first
    graph, params = nnx.split(model, nnx.Param)
    images = jax.random.normal(jax.random.key(0), (2, 8, 8, 3))
    grads = jax.grad(lambda p: jnp.sin(nnx.merge(graph, p)(images)).sum())(params)
    in_blocks, in_head = grads.blocks.block.mlp.fc2.kernel[...], grads.head.kernel[...]
    assert in_blocks.dtype == in_head.dtype == jnp.float32
    is_coarse = lambda x: bool((x == x.astype(jnp.bfloat16)).all())
    assert is_coarse(in_blocks) == (dtype != "float32")
    assert is_coarse(in_head) == (dtype == "bfloat16")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"name": "ViT-X/16"}, "'ViT-X/16'"),
        ({"name": "vit-b/16"}, "'ViT-B/16'"),
        ({"name": "ViT-So400/14"}, "'ViT-So400m/14'"),
        ({"name": "ViT-B/0"}, "'ViT-B/0'"),
        ({"image_size": 10}, "(8, 8)"),
        ({"image_size": (8, 3)}, "(8, 4)"),
        ({"width": 17}, "model.width=17"),
        ({"width": 18, "position_embedding": "sincos_2d"}, "model.width=18"),
        ({"width": 17, "num_heads": 1, "position_embedding": "sincos_1d"}, "model.width=17"),
        ({"pool": "max"}, "model.pool"),
        ({"residual_dtype": "float16"}, "'float32'"),
        ({"gradient_dtype": "float16"}, "'bfloat16'"),
        ({"position_embedding": "sincos"}, "'sincos_2d'"),
        ({"dropout": 1.0}, "model.dropout=1.0"),
        ({"num_heads": 0}, "model.num_heads=0"),
        ({"registers": -1}, "model.registers=-1"),
        ({"widht": 17}, "'width'"),
    ],
)
def test_impossible_fields_are_refused(fields, name):
    with refused(name):
        tiny(**fields)


def test_models_do_not_import_tensorflow(run_python):
    code = (
        "import sys, vit_jax.models, vit_jax.learning.step; assert 'tensorflow' not in sys.modules"
    )
    assert run_python("-c", code, fresh=True).returncode == 0


@pytest.mark.parametrize("fields", [{}, {"registers": 2}, {"position_at": "layers"}])
def test_a_class_token_without_a_position_is_one_with_zeros(fields):
    """The form of DeiT III, big_vision and timm's no_embed_class."""
    model, other = tiny(class_position=False, **fields), tiny(rngs=nnx.Rngs(1), **fields)
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    in_layers = bool(fields.get("position_at"))
    of = params["blocks"]["block"] if in_layers else params
    table = of["positions"]["embedding"]
    assert table.shape[-2] == 4
    of["positions"]["embedding"] = jnp.pad(table, [(0, 0)] * in_layers + [(1, 0), (0, 0)])
    nnx.update(other, params)
    images = jax.random.normal(jax.random.key(0), (2, 8, 8, 3))
    np.testing.assert_array_equal(model.features(images), other.features(images))


def test_sines_of_the_sequence_may_leave_the_class_token_out():
    layout = TokenLayout((2, 2), class_token=True, registers=1, class_place=False)
    added = np.asarray(SinCosPositions(layout, "sincos_1d")(jnp.zeros((1, layout.num_tokens, 16))))[
        0
    ]
    assert layout.num_tokens == 6
    assert not added[:2].any()
    np.testing.assert_allclose(added[2:], sincos_1d(4, 16), atol=1e-6)
