"""The contenders in PyTorch compute what this project's does: their losses with equal weights."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks.contenders import COMPILE, Shape
from tests.weights.agreement import in_torch, randomise, save_timm, torch
from tests.weights.conftest import timm  # noqa: F401, a fixture: timm without torchvision
from vit_jax import weights

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("quick_compilation")]

TOY = Shape("toy", 2, 16, 32, 2, patch_px=4, image_px=8, classes=3, batch=4)
FLOAT32 = 1e-5  # through two layers, sums in another order
BFLOAT16 = 0.03  # relative; it has 8 bits, and each library rounds where its own kernels end


@pytest.fixture
def labelled():
    rng = np.random.default_rng(0)
    images = rng.normal(size=(TOY.batch, TOY.image_px, TOY.image_px, 3)).astype(np.float32)
    return images, rng.integers(0, TOY.classes, TOY.batch)


def our_loss(folder, dtype, images, labels):
    logits = weights.load(folder, dtype=dtype)(jnp.asarray(images)).astype(jnp.float32)
    return float(optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean())


def assert_same_loss(logits, folder, labelled):
    from benchmarks.contenders import torch_common

    images, labels = labelled
    for dtype, tolerance in (("float32", FLOAT32), ("bfloat16", BFLOAT16)):
        mean_loss = torch_common.loss_of(logits, dtype)
        theirs = float(mean_loss(in_torch(images), torch.tensor(labels)))
        assert theirs == pytest.approx(our_loss(folder, dtype, images, labels), rel=tolerance)


@pytest.mark.slow
def test_timm(timm, tmp_path, labelled):  # noqa: F811, the fixture
    from benchmarks.contenders import timm_vit

    model = randomise(timm_vit.network(TOY))
    save_timm(
        tmp_path / "saved",
        model,
        architecture="vit_tiny_patch16_224",
        num_classes=TOY.classes,
        model_args={"img_size": TOY.image_px, "num_heads": 2, "act_layer": "gelu_tanh"},
    )
    assert_same_loss(model, tmp_path / "saved", labelled)


def test_hugging_face(tmp_path, labelled):
    pytest.importorskip("transformers")
    from benchmarks.contenders import torch_vit

    model = randomise(torch_vit.network(TOY))
    model.save_pretrained(tmp_path)
    assert_same_loss(lambda x: model(pixel_values=x).logits, tmp_path, labelled)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [(), (COMPILE,)], ids=["eager", "compiled"])
def test_they_learn(timm, settings):  # noqa: F811, the fixture
    from benchmarks.contenders import timm_vit, torch_vit

    for module in (timm_vit, torch_vit):
        contender = module.make(TOY, "bfloat16", settings)
        assert (contender.compile_secs is None) == (not settings)
        losses = [float(contender.step()) for _ in range(20)]
        assert losses[-1] < losses[0]
    assert np.isfinite(float(timm_vit.make_forward(TOY, "bfloat16", settings).step()))
