"""EfficientNets against the real timm on random weights and statistics, both ways."""

import numpy as np
import pytest
from flax import nnx

from tests.weights.agreement import assert_same_function, save_timm, some_images, torch
from vit_jax import models, weights
from vit_jax.core import pytrees
from vit_jax.weights.formats.timm import FORMAT
from vit_jax.weights.tables import to_theirs

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("quick_compilation")]
NAMES = [name for name in models.available() if name.startswith("EfficientNet")]
STYLES = {  # of timm's architectures
    "tf_efficientnet_": {"padding": "same", "batch_norm_epsilon": 1e-3},
    "efficientnet_": {"padding": "symmetric", "batch_norm_epsilon": 1e-5},
}


def randomise(module):
    """All parameters and running statistics at random, such that logits have a size of about 1."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, torch.nn.BatchNorm2d):
                part.weight.uniform_(0.5, 1.5, generator=generator)
                part.bias.normal_(0, 0.3, generator=generator)
                part.running_mean.normal_(0, 0.3, generator=generator)
                part.running_var.uniform_(0.5, 1.5, generator=generator)
            elif isinstance(part, torch.nn.Conv2d | torch.nn.Linear):
                fan_in = part.weight[0].numel()
                part.weight.normal_(0, fan_in**-0.5, generator=generator)
                if part.bias is not None:
                    part.bias.normal_(0, 0.3, generator=generator)
    return module.eval()


def timms(timm, width, depth, style, **fields):
    """timm's EfficientNet with these coefficients."""
    from timm.models.efficientnet import _gen_efficientnet

    same = {"pad_type": "same", "bn_eps": 1e-3} if style == "tf_efficientnet_" else {}
    return _gen_efficientnet(
        "efficientnet_b0", channel_multiplier=width, depth_multiplier=depth, **same | fields
    )


def statistics_and_parameters(module):
    return {
        name: x.numpy().copy()
        for name, x in module.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_small_ones(timm, tmp_path, style):
    theirs = randomise(timms(timm, 0.25, 0.7, style, num_classes=3))
    save_timm(tmp_path / "in", theirs, architecture=f"{style}b0", num_classes=3)
    ours = weights.load_with_info(tmp_path / "in")
    assert ours.name == "EfficientNet-0.25x0.67"  # the smallest coefficients with these sizes
    spec = ours.model.spec
    assert {field: getattr(spec, field) for field in STYLES[style]} == STYLES[style]
    assert_same_function(theirs, ours.model, some_images(45, 76), gradients=True)


@pytest.mark.slow
def test_b0_there_and_back(timm, tmp_path):
    theirs = randomise(timm.create_model("tf_efficientnet_b0"))
    cfg = {"input_size": [3, 224, 224], "crop_pct": 0.875, "interpolation": "bicubic"}
    config = {"architecture": "tf_efficientnet_b0", "num_classes": 1000, "pretrained_cfg": cfg}
    save_timm(tmp_path / "in", theirs, **config)
    ours = weights.load_with_info(tmp_path / "in")
    assert ours.name == "EfficientNet-B0"
    assert ours.model.preprocess.resize == 256
    assert_same_function(theirs, ours.model, some_images(96, 128), jit=True)
    weights.save(ours, tmp_path / "out", "timm")
    again = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    written = statistics_and_parameters(again)
    for name, x in statistics_and_parameters(theirs).items():
        np.testing.assert_array_equal(written.pop(name), x, err_msg=name)
    assert not written
    loaded = weights.load_with_info(tmp_path / "out")
    assert (loaded.model.spec, loaded.model.preprocess) == (ours.model.spec, ours.model.preprocess)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_the_arrays_of_timms(timm, name):
    """Nothing is allocated: names, shapes, and the number of parameters."""
    spec = models.spec(name)
    size = name.removeprefix("EfficientNet-").lower()
    make = lambda: models.create(name, num_classes=1000, image_size=224, rngs=nnx.Rngs(0))
    state = nnx.to_pure_dict(nnx.state(nnx.eval_shape(make), nnx.Param))
    params = pytrees.flatten(state)
    ours = {n: x.shape for n, x in to_theirs(FORMAT.layout_for(spec), params).items()}
    with torch.device("meta"):
        theirs = timm.create_model(f"tf_efficientnet_{size}")
    there = {
        n: tuple(x.shape)
        for n, x in theirs.state_dict().items()
        if not n.endswith("num_batches_tracked")
    }
    assert ours == there
    trained = pytrees.num_elements(pytrees.without_statistics(state))
    assert trained == sum(p.numel() for p in theirs.parameters())
    assert theirs.classifier.in_features == spec.map_channels
