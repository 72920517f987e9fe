"""BiT and hybrids against the real timm and transformers on random weights, both ways."""

import functools
import json

import jax
import numpy as np
import pytest
from flax import nnx

from tests.weights.agreement import (
    CLASSES,
    assert_same_function,
    in_torch,
    loaded_in_full,
    randomise,
    save_timm,
    some_images,
    torch,
)
from tests.weights.conftest import PORTED
from vit_jax import weights

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("quick_compilation")]

# Relative to the largest logit, with Google's epsilons here and timm's there: a kernel of deviation
# 0.003 changes by 1e-5 / 0.003, most of which the following norm undoes.
APPROXIMATE = 2e-4


def randomised(module):
    """Standardised kernels are small enough that their variance's epsilon, 1e-8, matters."""
    return randomise(module, lambda name: 1e-4 if "conv" in name else 0.3)


def assert_epsilons_of_norms(module, ours):
    """Compares epsilons, which are too small to show in results."""
    norms = [m.eps for m in module.modules() if isinstance(m, torch.nn.GroupNorm)]
    assert set(norms) == {ours.spec.group_norm_epsilon}


# --- timm


def timm_resnet(timm, **fields):
    """A toy of timm's ResNetV2, the base of its BiTs and hybrids."""
    from timm.models.resnetv2 import ResNetV2

    return ResNetV2(layers=(1, 2), channels=(128, 256), stem_chs=32, **fields)


def timm_bit(timm, num_classes=3):
    from timm.layers import StdConv2d

    conv = functools.partial(StdConv2d, eps=1e-8)
    return timm_resnet(timm, num_classes=num_classes, stem_type="fixed", conv_layer=conv)


def timm_hybrid(timm, size):
    from timm.layers import HybridEmbed, StdConv2dSame
    from timm.models.vision_transformer import VisionTransformer

    conv = functools.partial(StdConv2dSame, eps=1e-8)
    backbone = timm_resnet(
        timm, num_classes=0, global_pool="", preact=False, stem_type="same", conv_layer=conv
    )
    return VisionTransformer(
        img_size=size, patch_size=1, embed_dim=16, depth=1, num_heads=2, mlp_ratio=1.5,
        num_classes=3, embed_layer=functools.partial(HybridEmbed, backbone=backbone),
    )  # fmt: skip


def test_timms_bit(timm, tmp_path):
    theirs = randomised(timm_bit(timm))
    save_timm(tmp_path / "in", theirs, architecture="resnetv2_50x1_bit")
    ours = weights.load(tmp_path / "in")
    assert_epsilons_of_norms(theirs, ours)
    assert_same_function(theirs, ours, some_images(21, 34), gradients=True)


def test_timms_hybrid(timm, tmp_path):
    theirs = randomised(timm_hybrid(timm, (24, 40)))
    arguments = {"img_size": [24, 40], "num_heads": 2}
    save_timm(tmp_path / "in", theirs, architecture="vit_base_r50_s16_224", model_args=arguments)
    ours = weights.load(tmp_path / "in")
    assert (ours.spec.units, ours.spec.patch_size) == ((1, 2), 8)
    assert_epsilons_of_norms(theirs, ours)
    assert_same_function(theirs, ours, some_images(24, 40), jit=True)


def test_timm_reads_googles_bit_as_here(timm, tmp_path, bit):
    """Writes Google's file and reads it with timm's own reader."""
    ours = bit()
    weights.save(ours, tmp_path / "x.npz", "google_npz")
    theirs = timm_bit(timm).eval()
    with torch.no_grad():
        theirs.load_pretrained(str(tmp_path / "x.npz"))
    for module in theirs.modules():
        if hasattr(module, "eps") and isinstance(module, torch.nn.Conv2d):
            module.eps = 1e-10  # from the released code, where timm has 1e-8
    assert_same_function(theirs, ours.model, some_images(24), jit=True)


OF_GOOGLE = {"weight_epsilon": 1e-5, "weight_epsilon_of": "deviation", "group_norm_epsilon": 1e-6}
SMALL = {"root_width": 64, "patch_size": 32, "depth": 1, "image_size": 64, "gelu": "exact"}


def from_timm(timm, folder):
    return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()


def test_a_hybrid_that_is_written_loads_in_timm(timm, tmp_path, hybrid):
    ours = hybrid(**PORTED | SMALL | {"units": ()})
    weights.save(ours, tmp_path / "out", "timm")
    assert_same_function(from_timm(timm, tmp_path / "out"), ours.model, some_images(64), jit=True)


def assert_nearly_the_same_function(theirs, ours, images):
    """`theirs` has timm's epsilons, `ours` Google's: different, but near enough for most uses."""
    logits = jax.jit(ours)(images)
    with torch.no_grad():
        reference = theirs(in_torch(images)).numpy()
    difference = np.abs(logits - reference).max() / np.abs(reference).max()
    print(f"largest difference {difference:.1e} of the largest logit")
    assert difference <= APPROXIMATE


def with_uneven_kernels(loaded):
    """Standardised kernels with deviations of 0.3, 0.03 and 0.003, output by output."""
    graph, params = nnx.split(loaded.model)

    def uneven(path, x):
        is_kernel = "conv" in jax.tree_util.keystr(path)
        return x * np.resize(np.float32([1, 0.1, 0.01]), x.shape[-1]) if is_kernel else x

    return loaded._replace(model=nnx.merge(graph, jax.tree.map_with_path(uneven, params)))


def test_googles_epsilons_are_nearly_those_of_timm(timm, tmp_path, hybrid):
    """--approximate writes what timm makes of Google's file, which computes nearly the same."""
    ours = hybrid(**OF_GOOGLE | SMALL | {"units": (), "gelu": "tanh"})
    ours = with_uneven_kernels(ours)
    weights.save(ours, tmp_path / "out", "timm", approximate=True)
    theirs = from_timm(timm, tmp_path / "out")
    written = {name: x.numpy().copy() for name, x in theirs.state_dict().items()}
    weights.save(ours, tmp_path / "x.npz", "google_npz")
    with torch.no_grad():
        theirs.load_pretrained(str(tmp_path / "x.npz"))
    for name, x in theirs.state_dict().items():
        np.testing.assert_array_equal(x.numpy(), written.pop(name), err_msg=name)
    assert not written
    assert_nearly_the_same_function(theirs, ours.model, some_images(64) / 10)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("hybrid", SMALL | {"units": (2, 2, 2, 2)}),
        ("bit", {"units": (3, 4, 6, 3), "root_width": 64}),
    ],
    ids=["R26", "R50x1"],
)
def test_models_loaded_by_timm_are_the_same(request, timm, tmp_path, same, kind, fields):
    """timm has no small ones of these: not computed, but read, written by it and read again."""
    ours = request.getfixturevalue(kind)(**PORTED | fields)
    weights.save(ours, tmp_path / "out", "timm")
    theirs = from_timm(timm, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    save_timm(tmp_path / "again", theirs, **config)
    same(weights.load(tmp_path / "again"), ours.model)


# --- Hugging Face


def test_hugging_faces_bit(hf, tmp_path, same):
    sizes = {"embedding_size": 32, "hidden_sizes": [128, 256], "depths": [1, 2]}
    theirs = randomised(hf.BitForImageClassification(hf.BitConfig(**sizes, **CLASSES)))
    theirs.save_pretrained(tmp_path / "classifier")
    ours = weights.load_with_info(tmp_path / "classifier")
    assert ours.class_names == ("ant", "bee", "cat")
    assert_epsilons_of_norms(theirs, ours.model)
    assert_same_function(lambda x: theirs(x).logits, ours.model, some_images(21, 34), jit=True)
    theirs.bit.save_pretrained(tmp_path / "backbone")
    backbone = weights.load(tmp_path / "backbone")
    same(backbone, weights.load(tmp_path / "classifier", head="drop"))


@pytest.mark.parametrize(
    ("num_classes", "weight_epsilon"), [(3, 0.05), (0, 1e-8)], ids=["another_epsilon", "backbone"]
)
def test_written_models_load_in_transformers(hf, tmp_path, bit, num_classes, weight_epsilon):
    ours = bit(num_classes=num_classes, weight_epsilon=weight_epsilon)
    weights.save(ours, tmp_path / "out", "huggingface")
    auto = hf.AutoModelForImageClassification if num_classes else hf.AutoModel
    theirs = loaded_in_full(auto, tmp_path / "out")
    result = lambda x: theirs(x).logits if num_classes else theirs(x).pooler_output[:, :, 0, 0]
    assert_same_function(result, ours.model, some_images(24), jit=True)
