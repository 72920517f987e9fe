"""MAE's loss, and its positions, against the code of its authors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax import models
from vit_jax.learning.method import StepContext, StepInputs
from vit_jax.learning.methods import masking
from vit_jax.learning.methods.mae import MAE
from vit_jax.models.layers import posemb

SIZE, PATCH, WIDTH, DEPTH, HEADS, DECODER = 32, 8, 32, 2, 2, 16
EXAMPLES, PLACES = 3, (SIZE // PATCH) ** 2
SAME = 1e-5
KEY = jax.random.key(5)


def drawn():
    images = np.random.default_rng(0).normal(size=(EXAMPLES, SIZE, SIZE, 3)).astype(np.float32)
    noise = jax.random.uniform(jax.random.split(KEY)[0], (EXAMPLES, PLACES))
    np.testing.assert_array_equal(
        masking.random_order(jax.random.split(KEY)[0], EXAMPLES, PLACES), noise.argsort(1)
    )
    return {
        "images": images, "noise": noise, "masked": 0.75, "img_size": SIZE, "patch_size": PATCH,
        "embed_dim": WIDTH, "depth": DEPTH, "num_heads": HEADS, "decoder_embed_dim": DECODER,
        "decoder_depth": 1, "decoder_num_heads": HEADS,
    }  # fmt: skip


def fill(ours, theirs, name):
    """A linear layer or a norm."""
    kernel = theirs[f"{name}.weight"]
    if hasattr(ours, "kernel"):
        ours.kernel[...] = kernel.T.reshape(ours.kernel.shape)
    else:
        ours.scale[...] = kernel
    ours.bias[...] = theirs[f"{name}.bias"].reshape(ours.bias.shape)


def fill_patches(model, theirs, name=""):
    model.patches.kernel[...] = theirs[f"{name}patch_embed.proj.weight"].transpose(2, 3, 1, 0)
    model.patches.bias[...] = theirs[f"{name}patch_embed.proj.bias"]


def fill_blocks(stack, theirs, name):
    of = lambda part: np.stack([theirs[f"{name}.{i}.{part}"] for i in range(stack.depth)])
    block = stack.block
    layers = {
        "attn.qkv": block.attention.qkv, "attn.proj": block.attention.out,
        "mlp.fc1": block.mlp.fc1, "mlp.fc2": block.mlp.fc2,
    }  # fmt: skip
    for part, ours in layers.items():
        ours.kernel[...] = of(f"{part}.weight").swapaxes(1, 2).reshape(ours.kernel.shape)
        ours.bias[...] = of(f"{part}.bias").reshape(ours.bias.shape)
    for part, ours in (("norm1", block.norm1), ("norm2", block.norm2)):
        ours.scale[...], ours.bias[...] = of(f"{part}.weight"), of(f"{part}.bias")


def with_weights(method, theirs):
    model = models.create(
        "ViT-Ti/8", width=WIDTH, depth=DEPTH, num_heads=HEADS, mlp_dim=4 * WIDTH, gelu="exact",
        position_embedding="sincos_2d", num_classes=0, image_size=SIZE, rngs=nnx.Rngs(0),
    )  # fmt: skip
    model.method = method.extend(model, nnx.Rngs(1))
    fill_patches(model, theirs)
    model.cls[...] = theirs["cls_token"].ravel()
    model.method.mask[...] = theirs["mask_token"].ravel()
    for ours, name in (
        (model.norm, "norm"), (model.method.embed, "decoder_embed"),
        (model.method.norm, "decoder_norm"), (model.method.head, "decoder_pred"),
    ):  # fmt: skip
        fill(ours, theirs, name)
    fill_blocks(model.blocks, theirs, "blocks")
    fill_blocks(model.method.blocks, theirs, "decoder_blocks")
    return model


@pytest.mark.slow
@pytest.mark.parametrize("normalized", [False, True])
def test_the_loss_is_its_authors(theirs, normalized, monkeypatch):
    inputs = drawn()
    expected = theirs("mae", "mae_loss", lambda: inputs)
    tables = [expected[name][0, 1:] for name in ("pos_embed", "decoder_pos_embed")]
    of_width = {table.shape[1]: table for table in tables}
    monkeypatch.setattr(posemb, "sincos_2d", lambda grid, width: of_width[width])
    method = MAE(
        decoder_width=DECODER, decoder_depth=1, decoder_heads=HEADS, normalize_pixels=normalized
    )
    model = with_weights(method, expected)
    images = StepInputs(jnp.asarray(inputs["images"]), jnp.zeros(()), {})
    losses = method.loss(model, images, KEY, StepContext(None)).losses
    np.testing.assert_allclose(losses.mean(), expected[f"loss_{normalized}"], rtol=SAME)


def test_positions_are_its_authors_with_other_frequencies(theirs):
    """Ours are those of arXiv 2205.01580, theirs a step of D/4 and not of D/4 - 1 apart."""
    expected = theirs("mae", "mae_loss", drawn)["pos_embed"][0]
    layout = models.spec("ViT-Ti/8", width=WIDTH, num_heads=HEADS).token_layout((SIZE, SIZE))
    ours = posemb.sincos("sincos_2d", layout, WIDTH)
    assert ours.shape == expected.shape
    assert not ours[0].any()
    assert not expected[0].any()
    columns = np.arange(SIZE // PATCH)
    slow = 10_000.0 ** -(np.arange(WIDTH // 4) / (WIDTH // 4))
    np.testing.assert_allclose(
        expected[1:5, : WIDTH // 4], np.sin(columns[:, None] * slow), atol=SAME
    )
