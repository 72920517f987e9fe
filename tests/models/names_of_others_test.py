import pytest

from tests.messages import refused
from vit_jax import models

NAMES = {
    "vit_tiny_patch16_224": "ViT-Ti/16",
    "vit_base_patch8_224.augreg_in21k": "ViT-B/8",
    "vit_base_patch14_dinov2": "ViT-B/14-dinov2",
    "vit_base_patch14_reg4_dinov2.lvd142m": "ViT-B/14-dinov2-reg",
    "deit_small_patch16_224": "ViT-S/16",
    "deit_tiny_distilled_patch16_224": "ViT-Ti/16",
    "google/vit-base-patch16-224-in21k": "ViT-B/16",
    "resnet50": "R50x1",
    "resnetv2_101x3_bit.goog_in21k": "R101x3",
    "microsoft/resnet-152": "R152x1",
    "vit-b/16": "ViT-B/16",
    "vit-g/14": "ViT-g/14",
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_others_get_the_one_here(name):
    with refused(repr(NAMES[name])):
        models.info(name)


@pytest.mark.parametrize("name", models.available())
def test_names_from_here_in_any_case(name):
    if name.lower() != name and "+" not in name:
        with refused(name.lower()) as error:
            models.info(name.lower())
        assert name.lower() in str(error.value).split("?")[0].lower()
