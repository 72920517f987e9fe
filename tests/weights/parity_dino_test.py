"""DINOv2 and DINOv3 against transformers, on random weights; needs pip install '.[parity]'."""

import shutil

import numpy as np
import pytest
from PIL import Image

from tests.weights.agreement import (
    assert_same_function,
    classifier,
    in_torch,
    loaded_in_full,
    randomise,
    torch,
)
from tests.weights.image_processors import picture
from vit_jax import models, weights
from vit_jax.models import images as prediction

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("quick_compilation")]
hf = pytest.importorskip("transformers")

TOY = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 12,
    "patch_size": 4,
}  # fmt: skip


def dinov2(registers, **fields):
    if registers:
        config = hf.Dinov2WithRegistersConfig(num_register_tokens=registers, **fields)
        return hf.Dinov2WithRegistersModel(config)
    return hf.Dinov2Model(hf.Dinov2Config(**fields))


def tokens_of(theirs):
    return lambda x: theirs(x).last_hidden_state


@pytest.mark.parametrize(
    ("registers", "gated", "qkv_bias"),
    [(0, False, True), (0, True, False), (3, False, False), (3, True, True)],
)
def test_dinov2(tmp_path, images, registers, gated, qkv_bias):
    fields = {"mlp_ratio": 3, "use_swiglu_ffn": gated, "qkv_bias": qkv_bias}
    theirs = randomise(dinov2(registers, **fields, **TOY))
    theirs.save_pretrained(tmp_path / "theirs")
    ours = weights.load_with_info(tmp_path / "theirs")
    assert (ours.model.spec.registers, ours.model.spec.mlp == "swiglu") == (registers, gated)
    assert_same_function(
        tokens_of(theirs), ours.model.tokens, images, gradients=bool(registers and gated)
    )

    weights.save(ours, tmp_path / "ours", "huggingface")
    again = loaded_in_full(hf.AutoModel, tmp_path / "ours")
    with torch.no_grad():
        both = [tokens_of(m)(in_torch(images)) for m in (again, theirs)]
    assert torch.equal(*both)


@pytest.mark.parametrize("registers", [0, 3])
@pytest.mark.parametrize("side", [20, 48])
def test_dinov2_at_the_processors_size(tmp_path, capsys, registers, side):
    """Positions for 36 x 36 pixels, photos that the processor makes smaller or larger."""
    kind = "Dinov2WithRegisters" if registers else "Dinov2"
    theirs = classifier(hf, kind, num_register_tokens=registers, image_size=36)
    theirs.save_pretrained(tmp_path)
    processor = hf.BitImageProcessor(size={"shortest_edge": side + 4}, crop_size=side + 1)
    processor.save_pretrained(tmp_path)
    photo = picture(60, 90)
    pixels = processor(photo, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        expected = theirs(pixels).logits.numpy()
    ours = weights.load(tmp_path)
    prepared = prediction.load(photo, ours.preprocess)[None]
    assert prepared.shape[1:3] == (side + 1, side + 1)  # the last row and column fill no patch
    np.testing.assert_allclose(ours(prepared), expected, atol=1e-4 * np.abs(expected).max())
    assert f"{side + 1} x {side + 1} pixels" in capsys.readouterr().err

    # The positions' own size, without a change of them.
    own = weights.load(tmp_path, image_size=36)
    exact = np.random.default_rng(0).normal(size=(1, 36, 36, 3)).astype(np.float32)
    assert_same_function(lambda x: theirs(x).logits, own, exact)


NO_BIASES = {f"{name}_bias": False for name in ("query", "value", "proj", "mlp")}


def dinov3(name, config):
    """A model with nonzero weights; its config is that of the name, updated with TOY."""
    gated = "+" in name
    fields = {
        "intermediate_size": 24, "num_register_tokens": 4, "use_gated_mlp": gated,
        "hidden_act": "silu" if gated else "gelu",
    }  # fmt: skip
    return randomise(hf.DINOv3ViTModel(hf.DINOv3ViTConfig(**(TOY | fields | config))))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "config", "fields"),
    [
        ("ViT-B/4-dinov3", {}, {}),
        ("ViT-S+/4-dinov3", {"layer_norm_eps": 1e-3}, {"norm_epsilon": 1e-3}),
        ("ViT-B/4-dinov3", {"key_bias": True}, {"qkv_bias": "all"}),
        ("ViT-B/4-dinov3", {"rope_theta": 1e4}, {"rotary_base": 1e4}),
        ("ViT-S+/4-dinov3", NO_BIASES, {"qkv_bias": "none", "dense_bias": False}),
        ("ViT-S+/4-dinov3", {"hidden_act": "gelu_pytorch_tanh"}, {"mlp": "geglu", "gelu": "tanh"}),
        ("ViT-S+/4-dinov3", {"num_register_tokens": 0}, {"registers": 0}),
    ],
)
def test_dinov3(tmp_path, images, name, config, fields):
    theirs = dinov3(name, config)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="10KB")
    assert (tmp_path / "theirs" / "model.safetensors.index.json").exists()
    images = images[:, :, :8]
    ours = weights.load_with_info(tmp_path / "theirs", image_size=(12, 8))
    sizes = {"depth": 2, "width": 16, "mlp_dim": 24, "num_heads": 2, "layer_scale": 1.0}
    assert ours.model.spec == models.spec(name, **(sizes | fields))
    tokens = ours.model.tokens
    assert_same_function(tokens_of(theirs), tokens, images, gradients=not (config or fields))
    # The last block computes the class token alone: the same sums in another order.
    np.testing.assert_allclose(ours.model(images), tokens(images)[:, 0], atol=1e-6, rtol=1e-5)

    weights.save(ours, tmp_path / "ours", "huggingface")
    again = loaded_in_full(hf.AutoModel, tmp_path / "ours")
    assert again.config.pos_embed_rescale is None  # parts of their training only
    same_in_torch = theirs.state_dict() | {"embeddings.mask_token": torch.zeros(1, 1, 16)}
    assert all(torch.equal(same_in_torch[name], x) for name, x in again.state_dict().items())


def test_state_dict_of_dinov3(tmp_path, same):
    """A state dict names layers differently from the files."""
    theirs = dinov3("ViT-B/4-dinov3", {})
    theirs.save_pretrained(tmp_path / "files")
    (tmp_path / "state").mkdir()
    torch.save(theirs.state_dict(), tmp_path / "state" / "pytorch_model.bin")
    shutil.copy(tmp_path / "files" / "config.json", tmp_path / "state")
    same(weights.load(tmp_path / "state"), weights.load(tmp_path / "files"))


def test_images_of_dinov3(tmp_path):
    """Equal to DINOv3ViTImageProcessor (needs torchvision) up to the rounding of pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    theirs = dinov3("ViT-B/4-dinov3", {})
    theirs.save_pretrained(tmp_path / "in")
    ours = weights.load_with_info(tmp_path / "in")
    prepared = prediction.load(tmp_path / "image.png", ours.model.preprocess)

    floats = torch.tensor(pixels.transpose(2, 0, 1)[None]) / 255
    resized = torch.nn.functional.interpolate(floats, (12, 12), mode="bilinear", antialias=True)
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    expected = (resized[0].numpy().transpose(1, 2, 0) - mean) / std
    assert np.abs((prepared - expected) * std).max() <= 1 / 255


def size_of(make):
    """Number of parameters, without memory or the token for masked patches."""
    with torch.device("meta"):
        named = make().named_parameters()
    return sum(p.numel() for name, p in named if "mask_token" not in name)


# Released config.json: hidden_size, num_hidden_layers, num_attention_heads.
SHAPES = {
    "S": (384, 12, 6), "S+": (384, 12, 6), "B": (768, 12, 12), "L": (1024, 24, 16),
    "g": (1536, 40, 24), "H+": (1280, 32, 20), "7B": (4096, 40, 32),
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in models.available() if "-dino" in n and "7B" not in n])
def test_parameters_of_full_size(name):
    size, patch = name.removeprefix("ViT-").split("/")
    width, depth, heads = SHAPES[size]
    arguments = {
        "hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": heads,
        "patch_size": int(patch[:2]), "image_size": 224,
    }  # fmt: skip
    if "dinov3" in name:
        config = hf.DINOv3ViTConfig(
            intermediate_size=4 * width,
            num_register_tokens=4,
            use_gated_mlp="+" in size,
            **arguments,
        )
        expected = size_of(lambda: hf.DINOv3ViTModel(config))
    else:
        registers = 4 if "reg" in name else 0
        gated = {"use_swiglu_ffn": size == "g"}
        expected = size_of(lambda: dinov2(registers, **arguments, **gated))
    assert models.info(name, num_classes=0).parameters == expected
