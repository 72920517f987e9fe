import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.messages import refused
from vit_jax import models
from vit_jax.core.token_layout import TokenLayout
from vit_jax.models.layers.posemb import SinCosPositions, sincos_1d

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROUNDING = 1e-5  # float32 sums in another order
TINY = {"depth": 2, "width": 16, "mlp_dim": 32, "num_heads": 2}


def tiny(**fields):
    fields = {"name": "ViT-Ti/4", "num_classes": 5, "image_size": 8, "rngs": nnx.Rngs(0)} | fields
    return models.create(**(TINY | fields))


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


# Weights of the SigLIP image tower: the head's classes left out (timm's model card: 427.68 M).
def test_parameters_with_attention_pooling_are_the_published_ones():
    info = models.info("ViT-So400m/14", num_classes=1, pool="map")
    assert round((info.parameters - 1152 - 1) / 1e6, 2) == 427.68


def test_layers_of_tokens():
    model, images = tiny(), jnp.ones((1, 8, 8, 3))
    first, last = model.tokens(images, layers=(0, 1))
    assert first.shape == (1, 5, 16)
    np.testing.assert_allclose(model.norm(last), model.tokens(images), atol=ROUNDING)


def test_evaluation_is_the_default_and_training_needs_random_numbers():
    model, images = tiny(dropout=0.5, stochastic_depth=0.5), jnp.ones((2, 8, 8, 3))
    model.head.kernel[...] = jnp.ones((16, 5)) * jnp.arange(16)[:, None]
    np.testing.assert_array_equal(model(images), model(images))
    trained = model(images, train=True, rngs=nnx.Rngs(dropout=1))
    assert not np.array_equal(trained, model(images))
    np.testing.assert_array_equal(trained, model(images, train=True, rngs=nnx.Rngs(dropout=1)))
    with refused("rngs", error=ValueError):
        model(images, train=True)


@pytest.mark.parametrize("pool", ["cls", "map"])
def test_norm_epsilon_is_that_of_every_layer_norm(pool):
    model = tiny(pool=pool, norm_epsilon=0.5)
    norms = [m.epsilon for _, m in nnx.iter_graph(model) if isinstance(m, nnx.LayerNorm)]
    assert set(norms) == {0.5}
    assert len(norms) == (4 if pool == "map" else 3)


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


def test_sines_of_the_sequence_may_leave_the_class_token_out():
    layout = TokenLayout((2, 2), class_token=True, registers=1, class_place=False)
    spec = models.spec("ViT-Ti/4", width=16, num_heads=2, position_embedding="sincos_1d")
    added = np.asarray(SinCosPositions(spec, layout)(jnp.zeros((1, layout.num_tokens, 16))))[0]
    assert layout.num_tokens == 6
    assert not added[:2].any()
    np.testing.assert_allclose(added[2:], sincos_1d(4, 16), atol=1e-6)
