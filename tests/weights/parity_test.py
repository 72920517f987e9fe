"""Compares with the real implementations on random weights; docs/install.md: how to get them."""

import json

import numpy as np
import pytest

from tests.weights.agreement import (
    TIMM_TOY,
    assert_same_function,
    classifier,
    config_of,
    in_torch,
    loaded_in_full,
    randomise,
    save_timm,
    some_images,
    torch,
)
from tests.weights.conftest import edit, named_error
from vit_jax import weights
from vit_jax.models.head import probabilities
from vit_jax.weights.files import from_array, safetensors
from vit_jax.weights.formats import dino, huggingface, towers

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("quick_compilation")]


# --- Hugging Face


LOGITS = "ForImageClassification"
BIASED = {"use_relative_position_bias": True}
# Of transformers' models: kind, the end of the class's name, fields, the output that is ours.
THERE_AND_BACK = [
    ("ViT", LOGITS, {}, "logits"),
    ("ViT", LOGITS, {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 0.03}, "logits"),
    ("ViT", LOGITS, {"image_size": [12, 8]}, "logits"),
    ("ViT", LOGITS, {"qkv_bias": False}, "logits"),
    ("IJepa", LOGITS, {}, "logits"),
    ("IJepa", LOGITS, {"hidden_act": "gelu_pytorch_tanh", "qkv_bias": False}, "logits"),
    ("DeiT", LOGITS + "WithTeacher", {}, "logits"),
    # The distillation token, which a head or pooler of the class token does not see, is a register.
    ("DeiT", LOGITS, {}, "logits"),
    ("DeiT", "Model", {}, "pooler_output"),
    ("Dinov2", LOGITS, {}, "logits"),
    ("Dinov2WithRegisters", LOGITS, {"num_register_tokens": 3}, "logits"),
    ("CLIPVision", "Model", {}, "pooler_output"),
    ("CLIPVision", "ModelWithProjection", {"projection_dim": 8}, "image_embeds"),
    ("SiglipVision", "Model", {}, "pooler_output"),
    *(
        (kind, LOGITS, BIASED | {"use_mean_pooling": mean}, "logits")
        for kind in ("Beit", "Data2VecVision")
        for mean in (True, False)
    ),
]


@pytest.mark.parametrize(("kind", "suffix", "fields", "output"), THERE_AND_BACK, ids=str)
def test_a_model_comes_in_and_goes_out_again(hf, tmp_path, images, kind, suffix, fields, output):
    theirs = randomise(getattr(hf, kind + suffix)(config_of(hf, kind, **fields)))
    theirs.save_pretrained(tmp_path / "theirs")
    ours = weights.load_with_info(tmp_path / "theirs")
    has_head = output == "logits"
    assert ours.class_names == (("ant", "bee", "cat") if has_head else None)
    images = images[:, :, : ours.model.preprocess.image_size[1]]
    function = lambda x: theirs(x)[output]
    assert_same_function(function, ours.model, images, gradients=has_head and not fields)

    weights.save(ours, tmp_path / "ours", "huggingface")
    auto = hf.AutoModelForImageClassification if has_head else type(theirs)
    again = loaded_in_full(auto, tmp_path / "ours")
    with torch.no_grad():
        outputs = [model(in_torch(images))[output].numpy() for model in (again, theirs)]
    # A register and its position are added beforehand.
    atol = 1e-5 if ours.model.spec.registers == 1 else 0
    np.testing.assert_allclose(*outputs, atol=atol, rtol=0)


@pytest.mark.parametrize("pooler", [True, False])
def test_backbone(hf, tmp_path, images, pooler):
    theirs = randomise(hf.ViTModel(config_of(hf, "ViT"), add_pooling_layer=pooler))
    theirs.save_pretrained(tmp_path)
    ours = weights.load(tmp_path)
    assert (ours.num_classes, ours.spec.pre_logits) == (0, pooler)
    output = lambda x: theirs(x).pooler_output if pooler else theirs(x).last_hidden_state[:, 0]
    assert_same_function(output, ours, images)


@pytest.mark.parametrize("kind", ["ViT", "DeiT", "IJepa"])
def test_a_pooler_beside_a_classifier_is_left_out(hf, tmp_path, capsys, images, kind):
    theirs = classifier(hf, kind)
    theirs.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    arrays = {name: np.array(x.read()) for name, x in safetensors.read(file).items()}
    rng = np.random.default_rng(0)
    for name, shape in (("weight", (16, 16)), ("bias", (16,))):
        arrays[f"{kind.lower()}.pooler.dense.{name}"] = rng.normal(size=shape).astype(np.float32)
    safetensors.write(file, {name: from_array(x) for name, x in arrays.items()})
    again = type(theirs).from_pretrained(tmp_path).eval()
    ours = weights.load_with_info(tmp_path)
    assert_same_function(lambda x: again(x).logits, ours.model, images)
    assert f"{kind.lower()}.pooler.dense.weight" in capsys.readouterr().err

    weights.save(ours, tmp_path / "out", "huggingface")
    written = loaded_in_full(type(theirs), tmp_path / "out")
    assert_same_function(lambda x: written(x).logits, ours.model, images)


HIDDEN = {
    "num_attention_heads": 2, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 0.03,
    "image_size": 12, "patch_size": 4, "qkv_bias": False, "num_hidden_layers": 2,
    "intermediate_size": 24,
}  # fmt: skip


@pytest.mark.parametrize("lost", HIDDEN)
def test_what_a_config_does_not_state(hf, tmp_path, lost):
    """It is what the arrays show, or has transformers' default."""
    again = classifier(hf, "ViT", **HIDDEN, hidden_size=24)
    again.save_pretrained(tmp_path)
    edit(tmp_path, {lost: ...})
    if lost == "image_size":
        with named_error("224 x 224"):
            weights.load(tmp_path)
        return
    if lost in ("num_attention_heads", "hidden_act", "layer_norm_eps"):
        again = hf.ViTForImageClassification.from_pretrained(tmp_path).eval()
    assert_same_function(lambda x: again(x).logits, weights.load(tmp_path), some_images(12))


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("ViTConfig", huggingface.VIT_CONFIG),
        ("ViTMAEConfig", {k: x for k, x in huggingface.VIT_CONFIG.items() if k != "pooler_act"}),
        ("DeiTConfig", huggingface.VIT_CONFIG),
        ("IJepaConfig", huggingface.VIT_CONFIG),
        ("Dinov2Config", dino.CONFIG),
        ("Dinov2WithRegistersConfig", dino.CONFIG),
        ("DINOv3ViTConfig", dino.V3_CONFIG),
        ("BitConfig", {"depths": huggingface.BIT_DEPTHS}),
        ("CLIPVisionConfig", towers.defaults("clip")),
        ("SiglipVisionConfig", towers.defaults("siglip")),
        ("BeitConfig", towers.defaults("beit")),
    ],
)
def test_defaults_of_configs(hf, name, ours):
    theirs = getattr(hf, name)()
    assert ours == {key: getattr(theirs, key) for key in ours}


@pytest.mark.parametrize("kind", ["ViT", "DeiT", "IJepa", "Dinov2", "Bit"])
@pytest.mark.parametrize("problem", ["multi_label_classification", None])
def test_problem_type(hf, tmp_path, images, kind, problem):
    classifier(hf, kind, problem_type=problem).save_pretrained(tmp_path / "in")
    loaded = weights.load_with_info(tmp_path / "in")
    logits = loaded.model(images)
    function = torch.sigmoid if problem else lambda x: torch.softmax(x, -1)
    expected = function(torch.tensor(np.asarray(logits))).numpy()
    np.testing.assert_allclose(probabilities(loaded.model, logits), expected, atol=1e-6)
    weights.save(loaded, tmp_path / "out", "huggingface")
    assert hf.AutoConfig.from_pretrained(tmp_path / "out").problem_type == problem
    weights.save(loaded, tmp_path / "checkpoint", "checkpoint")
    assert weights.load(tmp_path / "checkpoint").spec == loaded.model.spec


@pytest.mark.parametrize("kind", ["ViT", "DeiT", "IJepa", "Dinov2", "Dinov2WithRegisters", "Bit"])
def test_a_classifier_that_is_named_and_missing(hf, tmp_path, kind):
    classifier(hf, kind).save_pretrained(tmp_path, max_shard_size="10KB")
    file = tmp_path / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    lost = [name for name in index["weight_map"] if "classifier" in name]
    index["weight_map"] = {n: f for n, f in index["weight_map"].items() if n not in lost}
    file.write_text(json.dumps(index))
    with named_error(*lost):
        weights.load(tmp_path)


def test_backbone_of_ijepa(hf, tmp_path, images):
    config = config_of(hf, "IJepa")
    theirs = randomise(hf.IJepaModel(config))
    theirs.save_pretrained(tmp_path / "mean")
    ours = weights.load(tmp_path / "mean")
    assert_same_function(lambda x: theirs(x).last_hidden_state.mean(1), ours, images)
    # Its pooler takes the first patch, which no model here can do.
    hf.IJepaModel(config, add_pooling_layer=True).save_pretrained(tmp_path / "pooler")
    with named_error("pooler.dense.bias"):
        weights.load(tmp_path / "pooler")


@pytest.mark.parametrize("kind", ["ViTForMaskedImageModeling", "ViTMAEForPreTraining"])
def test_masked_image_modelling(hf, tmp_path, images, kind):
    config = config_of(hf, "ViT", encoder_stride=4)
    if "MAE" in kind:
        decoder = {"decoder_hidden_size": 16, "decoder_num_attention_heads": 2}
        config = config_of(hf, "ViTMAE", **decoder, mask_ratio=0.0)
    theirs = randomise(getattr(hf, kind)(config))
    theirs.save_pretrained(tmp_path)
    ours = weights.load(tmp_path)
    assert_same_function(lambda x: theirs.vit(x).last_hidden_state[:, 0], ours, images)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves(hf, tmp_path, images, dtype):
    theirs = classifier(hf, "ViT").to(getattr(torch, dtype))
    theirs.save_pretrained(tmp_path)
    assert_same_function(lambda x: theirs.float()(x).logits, weights.load(tmp_path), images)


def test_several_files(hf, tmp_path, same):
    theirs = classifier(hf, "ViT")
    theirs.save_pretrained(tmp_path / "one")
    theirs.save_pretrained(tmp_path / "several", max_shard_size="8KB")
    assert len(list((tmp_path / "several").glob("*.safetensors"))) > 1
    same(weights.load(tmp_path / "several"), weights.load(tmp_path / "one"))


def test_pickles_are_read_if_they_hold_only_tensors(hf, tmp_path, same):
    theirs = classifier(hf, "ViT")
    theirs.save_pretrained(tmp_path / "safe")
    (tmp_path / "pickle").mkdir()
    (tmp_path / "pickle" / "config.json").write_text((tmp_path / "safe/config.json").read_text())
    file = tmp_path / "pickle" / "pytorch_model.bin"
    torch.save(theirs.state_dict(), file)
    same(weights.load(tmp_path / "pickle"), weights.load(tmp_path / "safe"))
    sharded = tmp_path / "sharded"
    sharded.mkdir()
    (sharded / "config.json").write_text((tmp_path / "safe/config.json").read_text())
    parts = {"a.bin": {}, "b.bin": {}}
    for number, (name, x) in enumerate(theirs.state_dict().items()):
        parts["ab"[number % 2] + ".bin"][name] = x
    for part, tensors in parts.items():
        torch.save(tensors, sharded / part)
    index = {"weight_map": {name: part for part, tensors in parts.items() for name in tensors}}
    (sharded / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    same(weights.load(sharded), weights.load(tmp_path / "safe"))


@pytest.mark.parametrize(
    ("num_classes", "fields"),
    [
        (3, {}),
        (0, {}),
        (3, {"gelu": "exact", "norm_epsilon": 0.02, "qkv_bias": "none"}),
        (3, {"pool": "avg", "image_size": (12, 8)}),
        (0, {"pool": "avg", "qkv_bias": "none", "gelu": "exact", "norm_epsilon": 0.02}),
    ],
    ids=["default", "backbone", "no_bias", "avg", "avg_backbone_no_bias"],
)
def test_written_models_load_in_transformers(hf, tmp_path, toy, images, fields, num_classes):
    mean = fields.get("pool") == "avg"
    ours = toy(num_classes=num_classes, pre_logits=not (num_classes or mean), **fields)
    images = images[:, :, : ours.model.preprocess.image_size[1]]
    weights.save(ours, tmp_path / "out", "huggingface")
    auto = hf.AutoModelForImageClassification if num_classes else hf.AutoModel
    theirs = loaded_in_full(auto, tmp_path / "out")
    features = lambda x: x.last_hidden_state.mean(1) if mean else x.pooler_output
    result = lambda x: theirs(x).logits if num_classes else features(theirs(x))
    assert_same_function(result, ours.model, images)


# --- images that patches do not divide


@pytest.mark.parametrize("project", ["timm", "huggingface"])
def test_images_that_patches_do_not_divide(hf, timm, tmp_path, project):
    """As of timm's so400m/14 at 384 pixels: the last rows and columns are left out."""
    size = [15, 14]  # of patches of 4
    images = some_images(*size)
    if project == "timm":
        arguments = TIMM_TOY | {"img_size": size, "class_token": False, "global_pool": "map"}
        theirs = timm.create_model("vit_base_patch16_224", num_classes=3, **arguments)
        randomise(theirs)
        config = {"architecture": "vit_base_patch16_224", "model_args": arguments}
        save_timm(tmp_path / "in", theirs, **config)
        logits = theirs
    else:
        theirs = classifier(hf, "ViT", image_size=size)
        theirs.save_pretrained(tmp_path / "in")
        logits = lambda x: theirs(x).logits
    ours = weights.load_with_info(tmp_path / "in")
    assert ours.model.preprocess.image_size == tuple(size)
    assert_same_function(logits, ours.model, images)
    weights.save(ours, tmp_path / "out", project)
    if project == "timm":
        again = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    else:
        model = loaded_in_full(hf.AutoModelForImageClassification, tmp_path / "out")
        again = lambda x: model(x).logits
    assert_same_function(again, ours.model, images)
