"""Hugging Face's CLIP, SigLIP, BEiT and their kin, in and out, beside transformers."""

import pytest

from tests.weights.agreement import (
    HF_TOY,
    assert_same_function,
    classifier,
    config_of,
    in_torch,
    loaded_in_full,
    randomise,
    torch,
)
from vit_jax import weights
from vit_jax.weights.formats import towers

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("quick_compilation")]
TEXT = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
    "vocab_size": 9,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["CLIP", "Siglip"])
def test_a_tower_of_images(hf, tmp_path, images, kind):
    theirs = randomise(getattr(hf, f"{kind}VisionModel")(config_of(hf, f"{kind}Vision")))
    theirs.save_pretrained(tmp_path / "theirs")
    ours = weights.load_with_info(tmp_path / "theirs")
    assert_same_function(lambda x: theirs(x).pooler_output, ours.model, images)
    weights.save(ours, tmp_path / "ours", "huggingface")
    again = loaded_in_full(type(theirs), tmp_path / "ours")
    with torch.no_grad():
        outputs = [model(in_torch(images)).pooler_output for model in (again, theirs)]
    assert torch.equal(*outputs)


@pytest.mark.parametrize("kind", ["CLIP", "Siglip"])
def test_the_half_of_a_model_of_images_and_texts(hf, tmp_path, images, capsys, kind):
    config = getattr(hf, f"{kind}Config")(text_config=TEXT, vision_config=HF_TOY)
    theirs = randomise(getattr(hf, f"{kind}Model")(config))
    theirs.save_pretrained(tmp_path)
    ours = weights.load(tmp_path)
    assert_same_function(lambda x: theirs.vision_model(x).pooler_output, ours, images)
    assert "text_model." in capsys.readouterr().err


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("kind", ["Beit", "Data2VecVision"])
def test_beit(hf, tmp_path, images, kind, mean):
    fields = {"use_relative_position_bias": True, "use_mean_pooling": mean}
    theirs = classifier(hf, kind, **fields)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = weights.load_with_info(tmp_path / "theirs")
    assert ours.class_names == ("ant", "bee", "cat")
    assert_same_function(lambda x: theirs(x).logits, ours.model, images)
    weights.save(ours, tmp_path / "ours", "huggingface")
    again = loaded_in_full(hf.BeitForImageClassification, tmp_path / "ours")
    with torch.no_grad():
        assert torch.equal(again(in_torch(images)).logits, theirs(in_torch(images)).logits)


def test_masked_siamese_networks(hf, tmp_path, images):
    """The backbone: transformers 5 writes its classifier with the prefix at some names alone."""
    theirs = randomise(hf.ViTMSNModel(config_of(hf, "ViTMSN")))
    theirs.save_pretrained(tmp_path)
    assert_same_function(
        lambda x: theirs(x).last_hidden_state[:, 0], weights.load(tmp_path), images
    )


@pytest.mark.parametrize(
    ("name", "kind"), [("CLIPVision", "clip"), ("SiglipVision", "siglip"), ("Beit", "beit")]
)
def test_defaults_of_configs(hf, name, kind):
    theirs, ours = getattr(hf, f"{name}Config")(), towers.defaults(kind)
    assert ours == {key: getattr(theirs, key) for key in ours}
