import pytest

from tests.messages import refused
from vit_jax import models
from vit_jax.models.names import model_meant

NAMES = {
    "vit_tiny_patch16_224": "ViT-Ti/16",
    "vit_base_patch8_224.augreg_in21k": "ViT-B/8",
    "vit_base_patch14_dinov2": "ViT-B/14-dinov2",
    "vit_base_patch14_reg4_dinov2.lvd142m": "ViT-B/14-dinov2-reg",
    "vit_so400m_patch14_siglip_224": "ViT-So400m/14",
    "vit_base_r50_s16_224": "R50+ViT-B/16",
    "vit_tiny_r_s16_p8_224": "R+ViT-Ti/16",
    "resnetv2_101x3_bitm": "R101x3",
    "deit_small_patch16_224": "ViT-S/16",
    "google/vit-base-patch16-224-in21k": "ViT-B/16",
    "google/bit-50": "R50x1",
    "facebook/dinov2-base": "ViT-B/14-dinov2",
    "facebook/dinov2-with-registers-large": "ViT-L/14-dinov2-reg",
    "facebook/dinov3-vitb16-pretrain-lvd1689m": "ViT-B/16-dinov3",
    "facebook/dinov3-vits16plus-pretrain-lvd1689m": "ViT-S+/16-dinov3",
    "facebook/dinov3-vit7b16-pretrain-lvd1689m": "ViT-7B/16-dinov3",
    "vit_small_plus_patch16_dinov3.lvd1689m": "ViT-S+/16-dinov3",
    "vit_huge_plus_patch16_dinov3_qkvb": "ViT-H+/16-dinov3",
    "vit_base_patch16_dinov3_qkvb": "ViT-B/16-dinov3",
    "vit_7b_patch16_dinov3": "ViT-7B/16-dinov3",
    "deit_tiny_distilled_patch16_224": "ViT-Ti/16",
    "facebook/deit-base-distilled-patch16-224": "ViT-B/16",
    "dinov2_vitg14_reg": "ViT-g/14-dinov2-reg",
    "vit_h_14": "ViT-H/14",  # torchvision
    "B/16": "ViT-B/16",  # big_vision
    "R50+ViT-B_16": "R50+ViT-B/16",  # Google's files
    "BiT-M-R50x1": "R50x1",
    "tf_efficientnet_b7.ns_jft_in1k": "EfficientNet-B7",
    "efficientnet_l2": "EfficientNet-L2",
    "google/efficientnet-b0": "EfficientNet-B0",
    "vit-b/16": "ViT-B/16",
    "vit-g/14": "ViT-g/14",
    "ViT-G_14": "ViT-G/14",
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_others_get_the_one_here(name):
    assert model_meant(name) == NAMES[name]
    with refused(repr(NAMES[name])):
        models.info(name)


@pytest.mark.parametrize("name", models.available())
def test_names_from_here_in_any_case(name):
    assert model_meant(name.replace("/", "_")) in (None, name)
    if name.lower() != name and "+" not in name:
        with refused() as error:
            models.info(name.lower())
        assert name.lower() in str(error.value).split("?")[0].lower()


@pytest.mark.parametrize("name", ["", "resnet50", "swin_tiny_patch4_window7_224", "x" * 10_000])
def test_other_models_get_the_nearest_names(name):
    with refused():
        models.info(name)
