import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from vit_jax import models
from vit_jax.core import axes
from vit_jax.core.axes import Target
from vit_jax.core.errors import UserError
from vit_jax.nn.kernels import choice

TPU, CPU = Target("tpu", "TPU v5 lite"), Target("cpu", "cpu")


def choose(asked, target, monkeypatch, *, tokens=197, dtype="bfloat16", softmax="float32", **more):
    monkeypatch.setattr(axes, "target", lambda: target)
    monkeypatch.setattr(axes, "can_divide", lambda: True)
    query = jax.ShapeDtypeStruct((2, tokens, 3, 64), dtype)
    return choice.choose(asked, query, jnp.dtype(softmax), **{"biased": False, **more})


@pytest.mark.parametrize(
    ("target", "attention", "chosen"),
    [
        (TPU, {}, "fused"),
        (TPU, {"tokens": 1370}, "fused"),
        (TPU, {"dtype": "float32"}, "xla"),
        (TPU, {"softmax": "bfloat16"}, "xla"),
        (TPU, {"biased": True}, "xla"),
        (CPU, {}, "xla"),
    ],
)
def test_auto_takes_a_kernel_where_it_serves(target, attention, chosen, monkeypatch):
    assert choose("auto", target, monkeypatch, **attention) == chosen
    assert choose("xla", target, monkeypatch, **attention) == "xla"


def test_auto_takes_no_kernel_for_arrays_that_it_cannot_divide(monkeypatch):
    monkeypatch.setattr(axes, "target", lambda: TPU)
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    query = jax.ShapeDtypeStruct((2, 197, 3, 64), jnp.bfloat16)
    assert choice.choose("auto", query, jnp.dtype("float32"), biased=False) == "xla"


def test_a_kernel_for_other_devices_is_an_error_before_compiling(monkeypatch):
    assert choose("fused", TPU, monkeypatch) == "fused"
    monkeypatch.undo()
    fields = {"num_classes": 2, "image_size": 32, "rngs": nnx.Rngs(0), "depth": 1}
    model = models.create("ViT-Ti/16", attention="fused", **fields)
    message = "model.attention=fused runs on a TPU, not on cpu: set model.attention=auto"
    with pytest.raises(UserError, match=message):
        jax.eval_shape(model, jnp.zeros((1, 32, 32, 3)))
    with choice.portable():
        jax.eval_shape(model, jnp.zeros((1, 32, 32, 3)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"position_embedding": "relative"}, "relative adds a matrix of N x N to the logits"),
        ({"softmax_dtype": "bfloat16"}, "not in model.softmax_dtype=bfloat16"),
    ],
)
def test_what_a_kernel_does_not_serve_is_an_error_of_the_config(fields, message):
    with pytest.raises(
        UserError, match=f"model.attention=fused is not for this model: .*{message}"
    ):
        models.spec("ViT-Ti/16", attention="fused", **fields)
    assert models.spec("ViT-Ti/16", attention="auto", **fields)


def test_a_model_of_other_devices_is_loaded_with_auto(monkeypatch):
    spec = models.spec("ViT-Ti/16", attention="fused")
    assert choice.elsewhere(spec) == {"attention": "auto"}
    assert not choice.elsewhere(models.spec("ViT-Ti/16", attention="xla"))
    assert not choice.elsewhere(models.spec("R50x1"))
    monkeypatch.setattr(axes, "target", lambda: TPU)
    assert not choice.elsewhere(spec)
