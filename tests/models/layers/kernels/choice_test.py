import types

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from tests.messages import refused
from vit_jax import models, weights
from vit_jax.core import axes
from vit_jax.core.axes import Target
from vit_jax.models.layers.kernels import choice, xla
from vit_jax.models.layers.stack import REMAT_POLICIES
from vit_jax.run.environment import DETERMINISTIC_FLAGS
from vit_jax.weights import Loaded

TPU, CPU = Target("tpu", "TPU v5 lite"), Target("cpu", "cpu")
GPU = Target("gpu", "NVIDIA H100 80GB HBM3")


def choose(asked, target, monkeypatch, softmax="float32", transforms=(), **shape):
    monkeypatch.setattr(axes, "target", lambda: target)
    shape = {"tokens": 197, "head_size": 64, "dtype": "bfloat16", **shape}
    query = jax.ShapeDtypeStruct((2, shape["tokens"], 3, shape["head_size"]), shape["dtype"])
    return choice.choose(asked, query, jnp.dtype(softmax), frozenset(transforms))


@pytest.mark.parametrize(
    ("target", "attention", "chosen"),
    [
        (TPU, {}, "xla"),  # its kernels have run on none
        (GPU, {}, "cudnn"),
        (GPU, {"dtype": "float32"}, "xla"),
        (GPU, {"head_size": 192}, "xla"),
        (GPU, {"softmax": "bfloat16"}, "xla"),
        (GPU, {"transforms": ["position_embedding=relative..."]}, "xla"),
        (GPU, {"transforms": ["logit_cap"]}, "xla"),
        (CPU, {}, "xla"),
    ],
)
def test_auto_takes_a_kernel_where_it_serves(target, attention, chosen, monkeypatch):
    assert choose("auto", target, monkeypatch, **attention) == chosen
    assert choose("xla", target, monkeypatch, **attention) == "xla"


def test_no_cudnn_beside_deterministic_kernels(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", " ".join(DETERMINISTIC_FLAGS))
    assert choose("auto", GPU, monkeypatch) == "xla"
    with refused("model.attention=cudnn", "deterministic=true"):
        choose("cudnn", GPU, monkeypatch)


def test_a_kernel_for_other_devices_is_an_error_before_compiling(monkeypatch):
    assert choose("fused", TPU, monkeypatch) == "fused"
    monkeypatch.undo()
    fields = {"num_classes": 2, "image_size": 32, "rngs": nnx.Rngs(0), "depth": 1}
    model = models.create("ViT-Ti/16", attention="fused", **fields)
    with refused("model.attention=fused", "cpu"):
        jax.eval_shape(model, jnp.zeros((1, 32, 32, 3)))
    with choice.portable():
        jax.eval_shape(model, jnp.zeros((1, 32, 32, 3)))


@pytest.mark.parametrize(
    ("capability", "chosen"),
    [("8.0", "cudnn"), ("10.3", "cudnn"), ("7.5", "xla"), ("gfx90a", "xla")],
)
def test_auto_takes_cudnn_on_nvidia_gpus_from_ampere_on(capability, chosen, monkeypatch):
    local = types.SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [local])
    assert choose("auto", GPU, monkeypatch) == chosen
    if chosen == "xla":
        with refused("attention=cudnn"):
            choose("cudnn", GPU, monkeypatch)


@pytest.mark.parametrize(
    "fields", [{"position_embedding": "relative"}, {"softmax_dtype": "bfloat16"}], ids=str
)
def test_what_no_kernel_serves_is_an_error_of_the_config(fields):
    ((name, value),) = fields.items()
    fields = {"dtype": "bfloat16", **fields}
    for kernel in choice.KERNELS:
        with refused(f"model.attention={kernel}", f"model.{name}={value}"):
            models.spec("ViT-Ti/16", attention=kernel, **fields)
    assert models.spec("ViT-Ti/16", attention="auto", **fields)


@pytest.mark.parametrize(
    ("fields", "name"),
    [({"dtype": "float32"}, "model.dtype=float32"), ({"dtype": "bfloat16", "num_heads": 1}, 192)],
)
def test_cudnn_wants_bfloat16_and_heads_that_are_not_too_large(fields, name):
    with refused("model.attention=cudnn", name):
        models.spec("ViT-Ti/16", attention="cudnn", **fields)


def test_a_model_of_other_devices_is_loaded_with_auto(monkeypatch):
    spec = models.spec("ViT-Ti/16", attention="fused")
    assert choice.elsewhere(spec) == {"attention": "auto"}
    assert not choice.elsewhere(models.spec("ViT-Ti/16", attention="xla"))
    assert not choice.elsewhere(models.spec("R50x1"))
    assert not choice.elsewhere(models.spec("R50x1"), dtype="bfloat16")
    monkeypatch.setattr(axes, "target", lambda: TPU)
    assert not choice.elsewhere(spec)
    # cuDNN computes in bfloat16 alone: a model loaded in float32 takes another program.
    spec = models.spec("ViT-Ti/16", attention="cudnn", dtype="bfloat16")
    monkeypatch.setattr(axes, "target", lambda: GPU)
    assert not choice.elsewhere(spec, dtype="bfloat16")
    assert choice.elsewhere(spec, dtype="float32") == {"attention": "auto"}


@pytest.mark.slow
def test_a_checkpoint_trained_on_a_gpu_is_used_on_a_cpu(tmp_path):
    sizes = {"depth": 1, "width": 16, "mlp_dim": 16, "num_heads": 2, "dtype": "bfloat16"}
    model = models.create(
        "ViT-Ti/4", num_classes=3, image_size=8, rngs=nnx.Rngs(0), attention="cudnn", **sizes
    )
    weights.save(Loaded(model, "ViT-Ti/4", None, 5), tmp_path / "run", "checkpoint")
    loaded = weights.load(tmp_path / "run")
    assert loaded.spec.attention == "auto"
    assert loaded(jnp.zeros((1, 8, 8, 3))).shape == (1, 3)


def test_a_policy_that_keeps_products_computes_no_block_twice():
    """One loop forward, one back."""
    softmax = jnp.dtype("float32")
    f = lambda *arrays: jnp.sum(xla.attend_in_blocks(*arrays, softmax).astype(jnp.float32))
    again = jax.checkpoint(f, policy=REMAT_POLICIES["dots"])
    x = jnp.zeros((2, 300, 2, 8))
    assert str(jax.make_jaxpr(jax.grad(again))(x, x, x)).count("scan[") == 2


def test_long_sequences_keep_no_weights_in_memory():
    bytes_at = lambda side, **fields: models.spec("ViT-S/16", **fields).activation_bytes(
        (side, side)
    )
    n, depth, heads, width = 1025, 12, 6, 384
    assert bytes_at(512) == 2 * depth * n * (10 * width + 2 * heads)
    assert bytes_at(512, position_embedding="relative") == 2 * depth * n * (10 * width + heads * n)
    assert bytes_at(224) == 2 * depth * 197 * (10 * width + heads * 197)
    assert bytes_at(224, attention="fused") == 2 * depth * 197 * (10 * width + 2 * heads)
