"""Distilled DeiTs against timm and Hugging Face, on random weights (docs/install.md)."""

import numpy as np
import pytest

from tests.weights.agreement import (
    TIMM_TOY,
    assert_same_function,
    loaded_in_full,
    randomise,
    save_timm,
)
from vit_jax import weights

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("quick_compilation")]

NAME = "deit_base_distilled_patch16_224"


@pytest.mark.parametrize("more", [{}, {"no_embed_class": True}, {"img_size": [12, 8]}], ids=str)
@pytest.mark.parametrize("num_classes", [3, 0])
def test_timm(timm, tmp_path, images, more, num_classes):
    arguments = TIMM_TOY | more
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
def test_written_models_load_there(timm, hf, tmp_path, toy, images, fields, to):
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
