"""The training step of a config, compiled, and what its rows have in common."""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from jax.sharding import Mesh

from vit_jax.config import RunConfig
from vit_jax.learning.losses import Batch
from vit_jax.learning.state import StateLayout
from vit_jax.tools.plan.compiled import compile_, planned_step
from vit_jax.tools.plan.hlo import KINDS, sent_bytes

GIB, GB = 2**30, 1e9


def base(*, batch_size: int, attention: str = "auto") -> dict[str, Any]:
    """The values that a command's fields are laid over: ViT-L/16 with AdamW, as the rows have."""
    return {
        "model": {"name": "ViT-L/16", "dtype": "bfloat16", "attention": attention},
        "input": {
            "preprocess": "decode|resize(224)",
            "batch_size": batch_size,
            "num_classes": 1000,
        },
        "optim": {"weight_decay": 0.1},
        "total": {"steps": 1000},
    }


class CompiledStep(NamedTuple):
    """A compiled step and what it was compiled from."""

    compiled: Any
    layout: StateLayout
    batch: Batch
    forward_flops: int  # per image
    compile_secs: float
    spec: Mapping[str, Any]  # the model's fields


def compile_step(config: RunConfig, mesh: Mesh) -> CompiledStep:
    """Compiles the step of a run that declares its number of classes (input.num_classes)."""
    planned = planned_step(config, mesh)
    started = time.perf_counter()
    compiled = compile_(planned)
    secs = time.perf_counter() - started
    model = planned.model
    return CompiledStep(
        compiled, planned.layout, planned.batch, model.forward_flops, secs, model.spec
    )


def sent_gb(hlo: str, mesh_shape: Mapping[str, int]) -> dict[str, object]:
    """Columns of a row: what a device sends in a step, by kind of collective."""
    sent = sent_bytes(hlo, mesh_shape)
    return {f"{kind.replace('-', '_')}_gb": round(sent[kind] / GB, 3) for kind in KINDS}
