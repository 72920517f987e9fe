"""timm's families of ViTs, in and out: random weights of its code at reduced depth and width."""

import numpy as np
import pytest

from tests.weights.agreement import (
    assert_same_function,
    in_torch,
    randomise,
    save_timm,
    some_images,
    torch,
)
from vit_jax import weights

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("quick_compilation")]

ACTIVATIONS = 1e-5  # of the largest; float32, sums in another order
SIZES = {"img_size": 8, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2}
# One of each kind of architecture.
NAMES = (
    "vit_base_patch16_clip_224",
    "vit_base_patch32_clip_quickgelu_224",
    "vit_base_patch16_reg4_gap_256",
    "vit_so150m_patch16_reg4_map_256",
    "vit_base_patch16_rpn_224",
    "vit_base_patch16_xp_224",
    "vit_giant_patch14_reg4_dinov2",
    "aimv2_large_patch14_224",
    "eva_large_patch14_196",
    "vit_intern300m_patch14_448",
    "test_vit3",
    "test_vit4",
    "beit_base_patch16_224",
    "beit3_base_patch16_224",
    "vit_relpos_base_patch16_clsgap_224",
    "vit_relpos_base_patch16_cls_224",
    "vit_relpos_small_patch16_rpn_224",
    "vit_srelpos_small_patch16_224",
)

# Of timm's eva.py, one of each kind.
EVAS = (
    "vit_small_patch16_dinov3_qkvb",
    "vit_7b_patch16_dinov3",
    "vit_small_patch16_lingbot",
    "eva_giant_patch14_224",
    "eva02_tiny_patch14_224",
    "eva02_base_patch16_clip_224",
    "eva02_enormous_patch14_clip_224",
    "vit_medium_patch16_rope_reg1_gap_256",
    "vit_small_patch16_rope_224",
    "vit_base_patch16_rope_mixed_ape_224",
    "vit_pe_core_tiny_patch16_384",
    "vit_pe_core_gigantic_patch14_448",
    "vit_pe_spatial_gigantic_patch14_448",
)


@pytest.mark.parametrize("name", EVAS)
def test_an_eva_comes_in_and_goes_out_again(timm, tmp_path, name):
    there_and_back(timm, tmp_path, name, attn_pool_num_heads=4 if "core" in name else None)


@pytest.mark.parametrize("name", NAMES)
def test_an_architecture_comes_in_and_goes_out_again(timm, tmp_path, name):
    there_and_back(timm, tmp_path, name)


@pytest.mark.parametrize(
    "name",
    [
        "vit_base_patch16_224", "vit_base_patch16_reg4_gap_256", "vit_giant_patch14_reg4_dinov2",
        "beit_base_patch16_224", "vit_relpos_base_patch16_clsgap_224",
        "vit_small_patch16_dinov3_qkvb", "eva02_tiny_patch14_224",
    ],
)  # fmt: skip
def test_activations_are_timms_intermediates(timm, tmp_path, name):
    theirs = randomise(timm.create_model(name, num_classes=3, **SIZES))
    save_timm(tmp_path / "in", theirs, architecture=name, model_args=SIZES)
    model = weights.load(tmp_path / "in")
    images = some_images(*model.preprocess.image_size)
    with torch.no_grad():
        last, each = theirs.forward_intermediates(
            in_torch(images), output_fmt="NLC", return_prefix_tokens=True
        )
        prefixed = isinstance(each[0], tuple)
        each = [torch.cat(parts[::-1], dim=1) for parts in each] if prefixed else each
    assert len(each) == SIZES["depth"]
    found = model.activations(images, ["blocks/0", "blocks/1", "norm"])
    for ours, x in zip(found.values(), (*each, last), strict=True):
        atol = ACTIVATIONS * float(x.abs().max())
        np.testing.assert_allclose(ours, x.numpy(), atol=atol, rtol=0)


def there_and_back(timm, folder, name, **others):
    """Reads a toy of an architecture, writes it again, and compares logits at both ends."""
    arguments = SIZES | {key: x for key, x in others.items() if x is not None}
    theirs = randomise(timm.create_model(name, num_classes=3, **arguments))
    save_timm(folder / "in", theirs, architecture=name, model_args=arguments)
    ours = weights.load_with_info(folder / "in")
    images = some_images(*ours.model.preprocess.image_size)
    assert_same_function(theirs, ours.model, images)
    weights.save(ours, folder / "out", "timm")
    again = timm.create_model(f"local-dir:{folder / 'out'}", pretrained=True).eval()
    with torch.no_grad():
        x = in_torch(images)
        torch.testing.assert_close(again(x), theirs(x), atol=1e-5, rtol=1e-5)
