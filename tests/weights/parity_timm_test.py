"""timm's families of ViTs, in and out: random weights of its code at reduced depth and width."""

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
)


@pytest.mark.parametrize("name", NAMES)
def test_an_architecture_comes_in_and_goes_out_again(timm, tmp_path, name):
    there_and_back(timm, tmp_path, name)


def there_and_back(timm, folder, name):
    """Reads a toy of an architecture, writes it again, and compares logits at both ends."""
    theirs = randomise(timm.create_model(name, num_classes=3, **SIZES))
    save_timm(folder / "in", theirs, architecture=name, model_args=SIZES)
    ours = weights.load_with_info(folder / "in")
    images = some_images(*ours.model.preprocess.image_size)
    assert_same_function(theirs, ours.model, images)
    weights.save(ours, folder / "out", "timm")
    again = timm.create_model(f"local-dir:{folder / 'out'}", pretrained=True).eval()
    with torch.no_grad():
        x = in_torch(images)
        torch.testing.assert_close(again(x), theirs(x), atol=1e-5, rtol=1e-5)
