"""Hugging Face's CLIP, SigLIP, BEiT and their kin, in and out, beside transformers."""

import json

import numpy as np
import pytest

from tests.weights.agreement import (
    HF_TOY,
    TIMM_TOY,
    assert_same_function,
    classifier,
    config_of,
    in_torch,
    randomise,
    save_timm,
    torch,
)
from vit_jax import weights
from vit_jax.models.head import probabilities

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("quick_compilation")]
PROBABILITIES = 1e-5  # of cosines in float32, times a scale of e^0.3
TEXT = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
    "vocab_size": 9,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["CLIP", "Siglip"])
def test_the_half_of_a_model_of_images_and_texts(hf, tmp_path, images, capsys, kind):
    theirs = of_images_and_texts(hf, kind)
    theirs.save_pretrained(tmp_path)
    ours = weights.load(tmp_path)
    assert_same_function(lambda x: theirs.get_image_features(x).pooler_output, ours, images)
    assert "text_model." in capsys.readouterr().err


def of_images_and_texts(hf, kind):
    """A random CLIPModel or SiglipModel."""
    config = getattr(hf, f"{kind}Config")(
        text_config=TEXT, vision_config=HF_TOY, projection_dim=8 if kind == "CLIP" else 16
    )
    return randomise(getattr(hf, f"{kind}Model")(config))


def write_labels(path, theirs, tokens, names=("a cat", "a dog", "a hen")):
    """As docs/weights.md does it."""
    with torch.no_grad():
        vectors = theirs.get_text_features(input_ids=tokens).pooler_output
    vectors = vectors / vectors.norm(dim=-1, keepdim=True)
    numbers = {"scale": theirs.logit_scale.exp()}
    if hasattr(theirs, "logit_bias"):
        numbers["bias"] = theirs.logit_bias
    arrays = {name: x.detach().numpy() for name, x in numbers.items()}
    np.savez(path, names=names, embeddings=vectors.numpy(), **arrays)


@pytest.mark.parametrize("kind", ["CLIP", "Siglip"])
def test_zero_shot(hf, tmp_path, images, kind):
    """Probabilities of classes that a text tower named, also out of a checkpoint."""
    theirs, tokens = of_images_and_texts(hf, kind), torch.tensor([[1, 2, 8], [3, 4, 8], [5, 6, 8]])
    theirs.save_pretrained(tmp_path / "theirs")
    write_labels(tmp_path / "cats.npz", theirs, tokens)
    with torch.no_grad():
        logits = theirs(input_ids=tokens, pixel_values=in_torch(images)).logits_per_image
    expected = logits.softmax(-1) if kind == "CLIP" else logits.sigmoid()
    ours = weights.with_labels(weights.load_with_info(tmp_path / "theirs"), tmp_path / "cats.npz")
    assert ours.class_names == ("a cat", "a dog", "a hen")
    weights.save(ours, tmp_path / "run", "checkpoint")
    for model in (ours.model, weights.load(tmp_path / "run")):
        np.testing.assert_allclose(
            probabilities(model, model(images)), expected.numpy(), atol=PROBABILITIES
        )


def test_zero_shot_by_timms_clip(timm, tmp_path, images):
    """timm has the projection as a head without a bias."""
    theirs = randomise(timm.create_model("vit_base_patch16_clip_224", num_classes=8, **TIMM_TOY))
    theirs.head.bias.data.zero_()
    save_timm(
        tmp_path / "in", theirs, architecture="vit_base_patch16_clip_224", model_args=TIMM_TOY,
        num_classes=8,
    )  # fmt: skip
    vectors = np.eye(8, dtype=np.float32)[:3]
    np.savez(tmp_path / "labels.npz", names=["a", "b", "c"], embeddings=vectors, scale=7.0)
    ours = weights.with_labels(weights.load_with_info(tmp_path / "in"), tmp_path / "labels.npz")
    expected = lambda x: 7 * torch.nn.functional.normalize(theirs(x))[:, :3]
    assert_same_function(expected, ours.model, images)


@pytest.mark.parametrize("num_classes", [3, 0])
def test_masked_siamese_networks(hf, tmp_path, images, num_classes):
    theirs = randomise(hf.ViTMSNModel(config_of(hf, "ViTMSN")))
    function = lambda x: theirs(x).last_hidden_state[:, 0]
    if num_classes:
        theirs = classifier(hf, "ViTMSN")
        function = lambda x: theirs(x).logits
    theirs.save_pretrained(tmp_path)
    assert_same_function(function, weights.load(tmp_path), images)


@pytest.mark.parametrize("both", [True, False])
def test_siglip2(hf, tmp_path, images, both):
    """Images of the size that it has positions for, in patches row by row."""
    vision = {k: x for k, x in HF_TOY.items() if k != "image_size"} | {"num_patches": 9}
    if both:
        theirs = hf.Siglip2Model(hf.Siglip2Config(text_config=TEXT, vision_config=vision))
    else:
        theirs = hf.Siglip2VisionModel(hf.Siglip2VisionConfig(**vision))
    randomise(theirs).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": "Siglip2ImageProcessor", "max_num_patches": 9})
    )
    tower = theirs.vision_model if both else theirs
    shape, mask = torch.tensor([[3, 3]] * 2), torch.ones(2, 9, dtype=torch.int64)

    def function(x):
        patches = x.reshape(2, 3, 3, 4, 3, 4).permute(0, 2, 4, 3, 5, 1).reshape(2, 9, 48)
        return tower(patches, pixel_attention_mask=mask, spatial_shapes=shape).pooler_output

    ours = weights.load(tmp_path)
    assert_same_function(function, ours, images)
    assert (ours.preprocess.resize, ours.preprocess.interpolation) == ((12, 12), "bilinear")
