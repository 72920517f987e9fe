"""How long a save holds up the loop, and how much memory saving and restoring take.

    python -m benchmarks.checkpointing --model ViT-L/16

The state is that of AdamW: parameters and two moments, float32. A save is timed twice: until
`Checkpoints.save` returns, which is what the loop waits for, and until the files are complete,
which is what a synchronous save would take. Memory is the peak of resident memory beyond the state,
in multiples of the state. On a CPU "the devices" are host memory too: while a checkpoint is
written, the saved state coexists with the one that training has moved on to, and counts 1.0 x.
Other programs on the same cores and disk affect the times. Linux only; needs memory for
2.5 x the state and disk space for 2 x. Appends a row to benchmarks/results/checkpointing.csv.
"""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags

from benchmarks import rows
from benchmarks.costs import Memory
from vit_jax import config as configs
from vit_jax.core import command
from vit_jax.learning.state import TrainState
from vit_jax.run.parts import inputs, updates
from vit_jax.store.checkpoints import Checkpoints

_MODEL = flags.DEFINE_string("model", "ViT-L/16", "A name of models.available().")
_SAVES = flags.DEFINE_integer("saves", 3, "How many saves to time; the median counts.")
_FOLDER = flags.DEFINE_string("folder", None, "Where to write; default: the temporary folder.")


def main(_: list[str]) -> None:
    """Measures, prints and records the times and the memory."""
    layout = _layout()
    state_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(layout))
    step = jax.jit(lambda state: jax.tree.map(lambda x: x + 1, state), donate_argnums=0)
    state, blocked_secs, total_secs, saving_bytes = _filled(layout), [], [], []
    with tempfile.TemporaryDirectory(dir=_FOLDER.value) as folder:
        with _checkpoints(folder) as checkpoints:
            checkpoints.save(0, state, {}, None)  # compiles the checksums
            checkpoints.wait()
            for number in range(1, _SAVES.value + 1):
                memory, started = Memory(), time.perf_counter()
                checkpoints.save(number, state, {}, None)
                blocked_secs.append(time.perf_counter() - started)
                state = jax.block_until_ready(step(state))  # training goes on
                checkpoints.wait()
                total_secs.append(time.perf_counter() - started)
                saving_bytes.append(memory.risen_bytes())
        del state
        with _checkpoints(folder) as checkpoints:
            memory, started = Memory(), time.perf_counter()
            checkpoints.restore(layout)
            restore_secs = time.perf_counter() - started
            restoring_bytes = memory.risen_bytes() - state_bytes
    blocked, total = statistics.median(blocked_secs), statistics.median(total_secs)
    row = {
        "model": _MODEL.value,
        "state_gb": round(state_bytes / 1e9, 2),
        "saves": _SAVES.value,
        "blocked_secs": round(blocked, 2),
        "save_secs": round(total, 1),
        "blocked_share": round(blocked / total, 3),
        "restore_secs": round(restore_secs, 1),
        "saving_memory_beyond_state": round(max(saving_bytes) / state_bytes, 2),
        "restoring_memory_beyond_state": round(restoring_bytes / state_bytes, 2),
    }
    rows.record("checkpointing", "vit_jax", "jax orbax-checkpoint tensorstore", row)


def _layout() -> TrainState:
    """Shapes and shardings of the whole state."""
    config = configs.resolve(
        {
            "model": {"name": _MODEL.value},
            "input": {"source": "synthetic", "preprocess": "decode|resize(224)"},
            "optim": {"lr": 1e-3},
            "total": {"steps": 1},
        },
        [],
    )
    mesh = inputs.mesh(config.mesh)
    return updates.step_parts(config, mesh, num_examples=1, num_classes=1000).layout.state


def _filled(layout: TrainState) -> TrainState:
    """Random numbers, which compress as badly as trained parameters do."""
    leaves, tree = jax.tree.flatten(layout)
    draw = lambda key, x: jax.random.normal(key, x.shape).astype(x.dtype)
    make = lambda i, x: jax.jit(draw, static_argnums=1)(jax.random.key(i), _shape(x))
    return jax.tree.unflatten(tree, [make(i, x) for i, x in enumerate(leaves)])


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, jnp.dtype(x.dtype))


@contextlib.contextmanager
def _checkpoints(folder: str) -> Iterator[Checkpoints]:
    with contextlib.closing(
        Checkpoints(
            Path(folder) / "checkpoints",
            keep_last=1,
            keep_every_steps=None,
            best_metric=None,
            best_mode="max",
        )
    ) as checkpoints:
        yield checkpoints


if __name__ == "__main__":
    command.run(main)
