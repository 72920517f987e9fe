"""The masked autoencoder against that of transformers, on the same weights, images and masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax import models
from vit_jax.learning.method import StepContext, StepInputs
from vit_jax.learning.methods import mae, masking
from vit_jax.models.layers.posemb import sincos

SIZE, PATCH, WIDTH, DECODER, HEADS = 32, 8, 32, 16, 2
SAME = 1e-5


@pytest.fixture(scope="module")
def theirs():
    """transformers' model with random weights, and our tables of positions."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTMAEConfig(
        hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, intermediate_size=64,
        image_size=SIZE, patch_size=PATCH, decoder_hidden_size=DECODER, decoder_num_hidden_layers=1,
        decoder_num_attention_heads=HEADS, decoder_intermediate_size=4 * DECODER,
        layer_norm_eps=1e-6, hidden_act="gelu", norm_pix_loss=True,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.ViTMAEForPreTraining(config).eval()
    layout = models.spec("ViT-Ti/8", width=WIDTH, num_heads=HEADS).token_layout((SIZE, SIZE))
    table = lambda width: torch.tensor(sincos("sincos_2d", layout, width), dtype=torch.float32)[
        None
    ]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2)
        model.vit.embeddings.position_embeddings.copy_(table(WIDTH))
        model.decoder.decoder_pos_embed.copy_(table(DECODER))
    return model


def ours(theirs, method):
    """Our model with their weights."""
    model = models.create(
        "ViT-Ti/8", width=WIDTH, depth=2, num_heads=HEADS, mlp_dim=64, gelu="exact",
        position_embedding="sincos_2d", num_classes=0, image_size=SIZE, rngs=nnx.Rngs(0),
    )  # fmt: skip
    model.method = method.extend(model, nnx.Rngs(1))
    there = {name: x.detach().numpy() for name, x in theirs.named_parameters()}

    def dense(linear, name):
        linear.kernel[...] = there[f"{name}.weight"].T.reshape(linear.kernel.shape)
        linear.bias[...] = there[f"{name}.bias"].reshape(linear.bias.shape)

    def norm(ours, name):
        ours.scale[...], ours.bias[...] = there[f"{name}.weight"], there[f"{name}.bias"]

    blocks(model.blocks, there, "vit.layers")
    blocks(model.method.blocks, there, "decoder.decoder_layers")
    kernel = there["vit.embeddings.patch_embeddings.projection.weight"]
    model.patches.kernel[...] = kernel.transpose(2, 3, 1, 0)
    model.patches.bias[...] = there["vit.embeddings.patch_embeddings.projection.bias"]
    model.cls[...] = there["vit.embeddings.cls_token"].ravel()
    norm(model.norm, "vit.layernorm")
    dense(model.method.embed, "decoder.decoder_embed")
    model.method.mask[...] = there["decoder.mask_token"].ravel()
    norm(model.method.norm, "decoder.decoder_norm")
    dense(model.method.head, "decoder.decoder_pred")
    return model


def blocks(stack, there, name):
    """Fills our stacked blocks."""
    of = lambda part: np.stack([there[f"{name}.{i}.{part}"] for i in range(stack.depth)])
    block = stack.block
    kernels = [of(f"attention.{x}_proj.weight").swapaxes(1, 2) for x in "qkv"]
    biases = [of(f"attention.{x}_proj.bias") for x in "qkv"]
    qkv, out = block.attention.qkv, block.attention.out
    qkv.kernel[...] = np.stack(kernels, axis=2).reshape(qkv.kernel.shape)
    qkv.bias[...] = np.stack(biases, axis=1).reshape(qkv.bias.shape)
    for linear, part in (
        (out, "attention.o_proj"), (block.mlp.fc1, "mlp.fc1"), (block.mlp.fc2, "mlp.fc2")
    ):  # fmt: skip
        linear.kernel[...] = of(f"{part}.weight").swapaxes(1, 2).reshape(linear.kernel.shape)
        linear.bias[...] = of(f"{part}.bias")
    for ours, part in ((block.norm1, "layernorm_before"), (block.norm2, "layernorm_after")):
        ours.scale[...], ours.bias[...] = of(f"{part}.weight"), of(f"{part}.bias")


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("normalize", [True, False])
def test_the_loss_is_that_of_transformers(theirs, normalize):
    import torch

    method = mae.MAE(
        decoder_width=DECODER, decoder_depth=1, decoder_heads=HEADS, normalize_pixels=normalize
    )
    model = ours(theirs, method)
    images = np.random.default_rng(0).normal(size=(3, SIZE, SIZE, 3)).astype(np.float32)
    key = jax.random.key(5)
    n = (SIZE // PATCH) ** 2
    order_key = jax.random.split(key)[0]
    noise = jax.random.uniform(order_key, (3, n))
    np.testing.assert_array_equal(masking.random_order(order_key, 3, n), noise.argsort(1))
    theirs.config.norm_pix_loss = normalize
    with torch.no_grad():
        wanted = theirs(
            torch.tensor(images.transpose(0, 3, 1, 2)), noise=torch.tensor(np.asarray(noise))
        )
    found = method.loss(
        model, StepInputs(jnp.asarray(images), jnp.zeros(()), {}), key, StepContext(None)
    )
    np.testing.assert_allclose(found.losses.mean(), float(wanted.loss), rtol=SAME)


@pytest.mark.slow
def test_masked_patches_do_not_reach_the_encoder():
    """Only the loss sees them: gradients of its predictions by their pixels are 0."""
    model = models.create(
        "ViT-Ti/8", width=WIDTH, depth=1, num_heads=HEADS, mlp_dim=64, registers=2, num_classes=0,
        image_size=SIZE, rngs=nnx.Rngs(0),
    )  # fmt: skip
    images = jax.random.normal(jax.random.key(0), (2, SIZE, SIZE, 3))
    visible = jnp.array([[3, 7, 1], [15, 0, 8]])
    tokens = lambda images: mae.encode_visible(model, images, visible, None)
    assert tokens(images).shape == (2, 4, WIDTH)
    grads = jax.grad(lambda images: jnp.sum(jnp.square(tokens(images))))(images)
    moved = np.abs(grads).reshape(2, 4, PATCH, 4, PATCH, 3).max(axis=(2, 4, 5)).reshape(2, 16)
    assert [np.flatnonzero(row).tolist() for row in moved] == [[1, 3, 7], [0, 8, 15]]


def test_normalised_pixels_have_mean_0_and_variance_1():
    patches = np.random.default_rng(0).normal(3, 2, (2, 5, 4, 4, 3)).astype(np.float32)
    found = np.asarray(mae.MAE().targets(patches))
    np.testing.assert_allclose(found.mean(-1), 0, atol=1e-6)
    np.testing.assert_allclose(found.var(-1, ddof=1), 1, rtol=1e-5)
    assert mae.MAE(normalize_pixels=False).targets(patches).tolist() == (
        patches.reshape(2, 5, 48).tolist()
    )


def test_all_masked_patches_count_and_no_others(drawn):
    """A prediction of zeros is off by the variance of normalised pixels, (P^2 3 - 1) / P^2 3."""
    make = lambda: models.create(
        "ViT-Ti/8", width=WIDTH, depth=1, num_heads=HEADS, mlp_dim=64, num_classes=0,
        image_size=SIZE, rngs=nnx.Rngs(0),
    )  # fmt: skip
    model = drawn(make)
    pixels = 3 * PATCH**2
    model.method = lambda tokens, places, layout: jnp.zeros((2, layout.num_patches, pixels))
    images = jax.random.normal(jax.random.key(0), (2, SIZE, SIZE, 3))

    @jax.jit
    def losses(images):
        inputs = StepInputs(images, jnp.zeros(()), {})
        return mae.MAE().loss(model, inputs, jax.random.key(1), StepContext(None)).losses

    np.testing.assert_allclose(losses(images), (pixels - 1) / pixels, rtol=SAME)
