"""big_vision's training step, from its own code in a checkout: model, loss, optimizer and update.

github.com/google-research/big_vision. Its train.py has the update inside `main`; this makes the
same calls, norms for its log included.

Computed differently from this project's step: attention's softmax is in the dtype of the products
(ours: float32); norms give float32 (ours: the dtype of the computation), by float32 statistics and
with epsilon 1e-6 as ours; positions and class token are parameters in the dtype of the products
(ours: float32); all tokens go through the last block (ours: the class token alone, behind
its keys and values, where blocks are unrolled); an update that is not finite is applied (ours:
skipped); three norms are computed for the log (ours: that of the gradients). Dropout is 0 in both.
"""

import importlib
import importlib.machinery
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_collections
import optax

from benchmarks import contenders
from benchmarks.contenders import Shape

# Imported there, but not used by a step.
NOT_NEEDED = ("tensorflow", "tensorflow.io", "tensorflow.io.gfile")


def program(checkout: Path, shape: Shape, dtype: str) -> tuple[Any, Any]:
    """update(params, opt_state, images, labels), and shapes of the four, jax.ShapeDtypeStructs.

    Images are float32, normalised; labels are float32 [B, C]. The values of its config are those of
    the other contenders.
    """
    vit, bv_optax, utils = _modules(checkout)
    model = vit.Model(
        num_classes=shape.classes,
        patch_size=(shape.patch_px, shape.patch_px),
        width=shape.width,
        depth=shape.depth,
        mlp_dim=shape.mlp_dim,
        num_heads=shape.num_heads,
        pool_type="tok",
        dtype_mm=dtype,
    )
    size = (shape.batch, shape.image_px, shape.image_px, 3)
    images = jax.ShapeDtypeStruct(size, jnp.float32)
    labels = jax.ShapeDtypeStruct((shape.batch, shape.classes), jnp.float32)
    params = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), images)["params"])
    tx, _ = bv_optax.make(
        _config(),
        params,
        sched_kw={
            "total_steps": contenders.TOTAL_STEPS,
            "batch_size": shape.batch,
            "data_size": shape.batch,
        },
    )

    def update(params: Any, opt_state: Any, images: jax.Array, labels: jax.Array) -> Any:
        def loss_fn(params: Any) -> jax.Array:
            logits, _ = model.apply({"params": params}, images, train=True)
            return utils.softmax_xent(logits=logits, labels=labels)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        logged = {"grads": grads, "params": params, "updates": updates}
        norms = {name: optax.tree.norm(tree) for name, tree in logged.items()}
        return params, opt_state, loss, norms

    return update, (params, jax.eval_shape(tx.init, params), images, labels)


def _config() -> ml_collections.ConfigDict:
    return ml_collections.ConfigDict(
        {
            "optax_name": "scale_by_adam",
            "optax": {},
            "grad_clip_norm": contenders.CLIP_NORM,
            "lr": contenders.LEARNING_RATE,
            "wd": contenders.LEARNING_RATE * contenders.WEIGHT_DECAY,
            "schedule": {"warmup_steps": contenders.WARMUP_STEPS, "decay_type": "cosine"},
        }
    )


def _modules(checkout: Path) -> list[Any]:
    """The checkout's model, optimizer and loss."""
    stubs = [name for name in NOT_NEEDED if name not in sys.modules]
    for name in stubs:
        stub: Any = mock.MagicMock()
        stub.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules[name] = stub
    sys.path.insert(0, str(checkout))
    try:
        names = ("models.vit", "optax", "utils")
        return [importlib.import_module(f"big_vision.{name}") for name in names]
    finally:
        sys.path.remove(str(checkout))
        for name in stubs:
            del sys.modules[name]
