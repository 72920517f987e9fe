"""Distilled DeiTs against timm and Hugging Face, on random weights (docs/install.md)."""

import numpy as np
import pytest

from tests.weights.agreement import (
    CLASSES,
    assert_same_function,
    loaded_in_full,
    randomise,
    save_timm,
)
from tests.weights.conftest import named_error
from vit_jax import weights

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("quick_compilation")]

TOY = {
    "img_size": 12, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "mlp_ratio": 1.5,
}  # fmt: skip
NAME = "deit_base_distilled_patch16_224"


@pytest.fixture(scope="module")
def hf():
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    return transformers


def deit(hf, model, **fields):
    config = hf.DeiTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        image_size=12, patch_size=4, **CLASSES,
    )  # fmt: skip
    return randomise(getattr(hf, model)(config, **fields))


@pytest.mark.parametrize("more", [{}, {"no_embed_class": True}, {"img_size": [12, 8]}], ids=str)
@pytest.mark.parametrize("num_classes", [3, 0])
def test_timm(timm, tmp_path, images, more, num_classes):
    arguments = TOY | more
    theirs = timm.create_model(NAME, num_classes=num_classes, **arguments)
    if more.get("no_embed_class"):  # it makes too long a table for this
        del theirs.pos_embed
        import torch

        theirs.pos_embed = torch.nn.Parameter(torch.zeros(1, 9, 16))
    randomise(theirs)
    save_timm(
        tmp_path / "in", theirs, architecture=NAME, model_args=arguments, num_classes=num_classes
    )
    ours = weights.load(tmp_path / "in")
    assert ours.spec.distillation_token and ours.num_classes == num_classes
    images = images[:, :, : ours.preprocess.image_size[1]]
    if num_classes:
        assert_same_function(theirs, ours, images, gradients=not more)
    else:
        mean = lambda x: np.asarray(ours.features(x)).reshape(2, 2, 16).mean(1)
        assert_same_function(theirs, mean, images)


@pytest.mark.parametrize(
    "fields",
    [{}, {"position_embedding": "sincos_2d"}, {"class_position": False}, {"num_classes": 0}],
    ids=str,
)
@pytest.mark.parametrize("to", ["timm", "huggingface"])
def test_written_models_load_there(timm, hf, tmp_path, toy, images, same, fields, to):
    ours = toy(distillation_token=True, gelu="exact", **fields)
    weights.save(ours, tmp_path / "out", to)
    if to == "timm":
        theirs = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
        function = theirs
    elif ours.model.num_classes:
        theirs = loaded_in_full(hf.DeiTForImageClassificationWithTeacher, tmp_path / "out")
        function = lambda x: theirs(x).logits
    else:
        theirs = hf.DeiTModel.from_pretrained(tmp_path / "out", add_pooling_layer=False).eval()
        function = lambda x: theirs(x).last_hidden_state[:, :2].mean(1)
    model = ours.model
    if not model.num_classes:
        model = lambda x: np.asarray(ours.model.features(x)).reshape(2, 2, 16).mean(1)
    assert_same_function(function, model, images)
    again = weights.load_with_info(tmp_path / "out")
    assert again.class_names == ours.class_names
    if "position_embedding" not in fields and "class_position" not in fields:
        same(again.model, ours.model)


def test_huggingface(hf, tmp_path, images):
    theirs = deit(hf, "DeiTForImageClassificationWithTeacher")
    theirs.save_pretrained(tmp_path)
    ours = weights.load_with_info(tmp_path)
    assert ours.class_names == ("ant", "bee", "cat")
    assert_same_function(lambda x: theirs(x).logits, ours.model, images, gradients=True)


def test_a_head_over_the_class_token_alone_is_refused(hf, tmp_path):
    deit(hf, "DeiTForImageClassification").save_pretrained(tmp_path)
    with named_error("classifier.weight"):
        weights.load(tmp_path)


def test_googles_format_has_no_place_for_it(tmp_path, toy):
    with named_error("distillation_token=True"):
        weights.save(toy(distillation_token=True), tmp_path / "x.npz", "google_npz")
