"""DINOv2 and DINOv3 against transformers, on random weights: pip install '.[parity]' brings it."""

import jax
import numpy as np
import pytest
from flax import nnx

from vit_jax import models, weights

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers")

FEATURES = 1e-4  # float32 through a few layers, sums in another order
GRADIENTS = 1e-3  # relative to the largest
TOY = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 12,
    "patch_size": 4,
}  # fmt: skip


def randomise(module):
    """All parameters, norms, biases and class token too; evaluation mode."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in module.parameters():
            p.normal_(0, 0.3, generator=generator)
    return module.eval()


def assert_same_tokens(theirs, ours, images):
    x = torch.tensor(images.transpose(0, 3, 1, 2), requires_grad=True)
    expected = theirs(x).last_hidden_state
    weight = torch.linspace(-1, 1, expected.numel()).reshape(expected.shape)
    (expected * weight).sum().backward()
    found = ours.tokens(images)
    np.testing.assert_allclose(found, expected.detach().numpy(), atol=FEATURES, rtol=0)
    np.testing.assert_array_equal(ours(images), found[:, 0])
    gradient = jax.grad(lambda x: (ours.tokens(x) * weight.numpy()).sum())(images)
    reference = x.grad.numpy().transpose(0, 2, 3, 1)
    assert np.abs(gradient - reference).max() <= GRADIENTS * np.abs(reference).max()


def dinov2(registers, **fields):
    if registers:
        config = hf.Dinov2WithRegistersConfig(num_register_tokens=registers, **fields)
        return hf.Dinov2WithRegistersModel(config)
    return hf.Dinov2Model(hf.Dinov2Config(**fields))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("registers", [0, 3])
def test_dinov2(tmp_path, images, same, registers, gated):
    theirs = randomise(dinov2(registers, mlp_ratio=3, use_swiglu_ffn=gated, **TOY))
    theirs.save_pretrained(tmp_path / "theirs")
    ours = weights.load_described(tmp_path / "theirs")
    assert (ours.model.spec.registers, ours.model.spec.mlp == "swiglu") == (registers, gated)
    assert_same_tokens(theirs, ours.model, images)

    weights.save(ours, tmp_path / "ours", "huggingface")
    again, told = hf.AutoModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(told[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert_same_tokens(again.eval(), ours.model, images)
    same(weights.load(tmp_path / "ours"), ours.model)


@pytest.mark.parametrize("registers", [0, 3])
def test_classifier_of_dinov2(tmp_path, images, same, registers):
    names = {"id2label": {0: "ant", 1: "bee", 2: "cat"}, "label2id": {"ant": 0, "bee": 1, "cat": 2}}
    if registers:
        config = hf.Dinov2WithRegistersConfig(num_register_tokens=registers, **TOY, **names)
        theirs = randomise(hf.Dinov2WithRegistersForImageClassification(config))
    else:
        theirs = randomise(hf.Dinov2ForImageClassification(hf.Dinov2Config(**TOY, **names)))
    theirs.save_pretrained(tmp_path / "theirs")
    ours = weights.load_described(tmp_path / "theirs")
    assert ours.class_names == ("ant", "bee", "cat")

    x = torch.tensor(images.transpose(0, 3, 1, 2), requires_grad=True)
    expected = theirs(x).logits
    expected[:, 1].sum().backward()
    np.testing.assert_allclose(ours.model(images), expected.detach().numpy(), atol=FEATURES, rtol=0)
    gradient = jax.grad(lambda x: ours.model(x)[:, 1].sum())(images)
    reference = x.grad.numpy().transpose(0, 2, 3, 1)
    assert np.abs(gradient - reference).max() <= GRADIENTS * np.abs(reference).max()

    weights.save(ours, tmp_path / "ours", "huggingface")
    again, told = hf.AutoModelForImageClassification.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(told[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert again.config.id2label[2] == "cat"
    np.testing.assert_array_equal(again.eval()(x).logits.detach(), expected.detach())
    same(weights.load(tmp_path / "ours"), ours.model)


def of_dinov3(state, spec):
    """The parameters of DINOv3ViTModel by our names, [out, in] turned around."""
    array = lambda name: state[name].numpy()
    heads = (spec.heads, spec.width // spec.heads)

    def stacked(name, *shape, turned=False):
        each = [array(f"model.layer.{i}.{name}") for i in range(spec.depth)]
        return np.stack([(x.T if turned else x).reshape(shape or x.T.shape) for x in each])

    def dense(name):
        return {
            "kernel": stacked(f"{name}.weight", turned=True),
            "bias": stacked(f"{name}.bias"),
        }

    def kernel(name, *shape):
        return stacked(f"attention.{name}_proj.weight", *shape, turned=True)

    norm = lambda name: {"scale": stacked(f"{name}.weight"), "bias": stacked(f"{name}.bias")}
    qkv = [kernel(n, spec.width, *heads) for n in "qkv"]
    mlp = {"fc1": dense("mlp.up_proj"), "fc2": dense("mlp.down_proj")}
    if spec.mlp == "swiglu":
        mlp["gate"] = dense("mlp.gate_proj")
    block = {
        "norm1": norm("norm1"),
        "attention": {
            "qkv": {"kernel": np.stack(qkv, axis=2)},
            "query_bias": stacked("attention.q_proj.bias", *heads),
            "value_bias": stacked("attention.v_proj.bias", *heads),
            "out": {
                "kernel": kernel("o", *heads, spec.width),
                "bias": stacked("attention.o_proj.bias"),
            },
        },
        "norm2": norm("norm2"),
        "mlp": mlp,
        "scale1": {"scale": stacked("layer_scale1.lambda1")},
        "scale2": {"scale": stacked("layer_scale2.lambda1")},
    }
    return {
        "patches": {
            "kernel": array("embeddings.patch_embeddings.weight").transpose(2, 3, 1, 0),
            "bias": array("embeddings.patch_embeddings.bias"),
        },
        "cls": array("embeddings.cls_token")[0, 0],
        "registers": array("embeddings.register_tokens")[0],
        "blocks": {"block": block},
        "norm": {"scale": array("norm.weight"), "bias": array("norm.bias")},
    }


@pytest.mark.parametrize(("name", "gated"), [("ViT-B/4-dinov3", False), ("ViT-S+/4-dinov3", True)])
def test_dinov3(images, name, gated):
    config = hf.DINOv3ViTConfig(
        intermediate_size=24,
        num_register_tokens=4,
        use_gated_mlp=gated,
        hidden_act="silu" if gated else "gelu",
        **TOY,
    )
    theirs = randomise(hf.DINOv3ViTModel(config))
    ours = models.create(
        name, num_classes=0, image_size=(12, 8), depth=2, width=16, mlp_dim=24, heads=2,
        rngs=nnx.Rngs(0),
    )  # fmt: skip
    graph, own = nnx.split(ours, nnx.Param)
    params = of_dinov3(theirs.state_dict(), ours.spec)
    same_shapes = jax.tree.map(lambda a, b: a.shape == b.shape, params, nnx.to_pure_dict(own))
    assert all(jax.tree.leaves(same_shapes))
    assert_same_tokens(theirs, nnx.merge(graph, params), images[:, :, :8])


def size_of(make):
    """Without memory; the token for masked patches left out."""
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
