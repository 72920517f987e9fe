"""timm's families of ViTs, in and out: random weights of its code at reduced depth and width."""

import jax
import numpy as np
import pytest
from flax import nnx

from tests.weights.agreement import (
    GRADIENTS,
    assert_same_function,
    in_torch,
    randomise,
    save_timm,
    some_images,
    torch,
)
from vit_jax import weights
from vit_jax.core.token_layout import TokenLayout
from vit_jax.models.layers.relative import num_offsets
from vit_jax.models.layers.resized_positions import resize_offsets
from vit_jax.weights.files import safetensors

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


# Arguments of a plain one, beside its architecture.
MEAN = {"class_token": False, "global_pool": "avg", "fc_norm": False}
ARGUMENTS = (
    {},
    {"init_values": 0.1, "act_layer": "gelu_tanh", "qkv_bias": False},
    MEAN,
    {"class_token": False, "global_pool": "map"},
    {"no_embed_class": True, "img_size": [12, 8]},
    {"no_embed_class": True, "reg_tokens": 2},
    {**MEAN, "reg_tokens": 2, "no_embed_class": True},
    {"reg_tokens": 2},
    {**MEAN, "reg_tokens": 2},
)
CASES = [(name, {}) for name in NAMES + EVAS] + [("vit_base_patch16_224", x) for x in ARGUMENTS]


@pytest.mark.parametrize(("name", "arguments"), CASES, ids=str)
def test_an_architecture_comes_in_and_goes_out_again(timm, tmp_path, name, arguments):
    """A toy of it is read and written again, and computes the same at both ends."""
    theirs, ours, images = read_toy(timm, tmp_path, name, **arguments)
    assert_same_function(theirs, ours.model, images, gradients=name == "vit_base_patch16_224")
    weights.save(ours, tmp_path / "out", "timm")
    again = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    with torch.no_grad():
        x = in_torch(images)
        torch.testing.assert_close(again(x), theirs(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        "vit_base_patch16_224", "vit_base_patch16_reg4_gap_256", "vit_giant_patch14_reg4_dinov2",
        "beit_base_patch16_224", "vit_relpos_base_patch16_clsgap_224",
        "vit_small_patch16_dinov3_qkvb", "eva02_tiny_patch14_224",
    ],
)  # fmt: skip
def test_activations_are_timms_intermediates(timm, tmp_path, name):
    theirs, ours, images = read_toy(timm, tmp_path, name)
    with torch.no_grad():
        last, each = theirs.forward_intermediates(
            in_torch(images), output_fmt="NLC", return_prefix_tokens=True
        )
        prefixed = isinstance(each[0], tuple)
        each = [torch.cat(parts[::-1], dim=1) for parts in each] if prefixed else each
    assert len(each) == SIZES["depth"]
    found = ours.model.activations(images, ["blocks/0", "blocks/1", "norm"])
    for value, x in zip(found.values(), (*each, last), strict=True):
        atol = ACTIVATIONS * float(x.abs().max())
        np.testing.assert_allclose(value, x.numpy(), atol=atol, rtol=0)


# One of each family, and arrays that others are added to when they are read.
TOKENS = ("cls_token", "reg_token", "pos_embed")
FAMILIES = {
    "vit_base_patch32_clip_quickgelu_224": (),
    "vit_so150m_patch16_reg4_map_256": TOKENS,
    "vit_giant_patch14_reg4_dinov2": TOKENS,
    "aimv2_large_patch14_224": (),
    "beit_base_patch16_224": (),
    "vit_relpos_base_patch16_clsgap_224": (),
    "vit_small_patch16_dinov3_qkvb": (),
    "eva02_tiny_patch14_224": (),
    "vit_base_patch16_rope_mixed_ape_224": TOKENS,
    "vit_pe_core_tiny_patch16_384": (),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_of_a_loss(timm, tmp_path, name):
    """Those of all parameters, which are written as the parameters are."""
    theirs, ours, images = read_toy(timm, tmp_path, name)
    torch.nn.functional.log_softmax(theirs(in_torch(images)), -1)[:, 0].mean().backward()
    graph, params = nnx.split(ours.model, nnx.Param)
    mean = lambda p: jax.nn.log_softmax(nnx.merge(graph, p)(images))[:, 0].mean()
    gradients = nnx.merge(graph, jax.jit(jax.grad(mean))(params))
    weights.save(ours._replace(model=gradients), tmp_path / "gradients", "timm")
    written = safetensors.read(tmp_path / "gradients" / "model.safetensors")
    expected = {n: p.grad.numpy() for n, p in theirs.named_parameters() if p.grad is not None}
    expected = {n: x for n, x in expected.items() if n not in FAMILIES[name]}
    largest = max(np.abs(x).max() for x in expected.values())
    assert len(expected) > 20
    for key, x in expected.items():
        limit = GRADIENTS * np.abs(x).max() + 1e-6 * largest  # of keys' biases: rounding alone
        assert np.abs(written[key].read().reshape(x.shape) - x).max() <= limit, key


@pytest.mark.parametrize(("old", "new"), [((3, 3), (5, 6)), ((7, 4), (4, 7)), ((2, 2), (9, 9))])
def test_biases_of_offsets_are_resized_as_in_timm(timm, old, new):
    layouts = [TokenLayout(grid, class_token=True) for grid in (old, new)]
    count, wanted = (num_offsets(grid) + 3 for grid in (old, new))
    table = np.random.default_rng(0).normal(size=(count, 2)).astype(np.float32)
    theirs = timm.layers.resize_rel_pos_bias_table(
        torch.tensor(table), new_window_size=new, new_bias_shape=(wanted, 2), old_window_size=old
    )
    np.testing.assert_allclose(resize_offsets(table, *layouts), theirs.numpy(), atol=1e-5)


def test_beit_takes_images_of_another_size(timm, tmp_path):
    theirs, _, _ = read_toy(timm, tmp_path, "beit_base_patch16_224")
    larger = timm.create_model("beit_base_patch16_224", num_classes=3, **SIZES | {"img_size": 20})
    filtered = timm.models.beit.checkpoint_filter_fn(theirs.state_dict(), larger)
    larger.load_state_dict(filtered, strict=False)  # without the numbers of the other offsets
    ours = weights.load(tmp_path / "in", image_size=20)
    assert_same_function(larger.eval(), ours, some_images(20))


def read_toy(timm, folder, name, **arguments):
    """(timm's toy of an architecture, what is read of its file, images for both)"""
    arguments = SIZES | ({"attn_pool_num_heads": 4} if "pe_core" in name else {}) | arguments
    theirs = randomise(timm.create_model(name, num_classes=3, **arguments))
    save_timm(folder / "in", theirs, architecture=name, model_args=arguments)
    ours = weights.load_with_info(folder / "in")
    return theirs, ours, some_images(*ours.model.preprocess.image_size)
