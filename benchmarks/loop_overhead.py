"""Microseconds of Python per step of the training loop.

    python -m benchmarks.loop_overhead

Runs train.py with two changes: the compiled step returns the state it was given, and the feed
always has a batch ready. What remains between two steps is the loop: asking for the batch, calling
a compiled program with the whole state, cadences, the signal flag, and every `log.every_steps`
steps the fetch, the row of metrics.jsonl, TensorBoard and the line on the screen. Appends a row to
benchmarks/results/loop_overhead.csv.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import types
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from absl import flags

from benchmarks import rows
from vit_jax import config as configs
from vit_jax import train
from vit_jax.core import command
from vit_jax.learning.feed import BadImages
from vit_jax.run import build
from vit_jax.run.build import Run

_STEPS = flags.DEFINE_integer("steps", 5_000, "Steps to run.")
_LOG_EVERY_STEPS = flags.DEFINE_integer("log_every_steps", 50, "log.every_steps of the run.")


class ReadyFeed:
    """A feed whose next batch is always ready."""

    wait_secs = 0.0
    bad_images = BadImages()

    unread = None

    def batch_of(self, step: int, *, tell: Callable[[str], object]) -> dict[str, jax.Array]:
        """The next one."""
        del step, tell
        return {}

    def __enter__(self) -> ReadyFeed:
        return self

    def __exit__(self, *_: object) -> None: ...


def main(_: list[str]) -> None:
    """Measures, prints and records."""
    moments: list[float] = []

    def lower_nothing(update: Any, layout: Any, batch: Any) -> Any:
        _, shapes = jax.eval_shape(update, layout.state, batch)
        scalars = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        keep = jax.jit(lambda state: state, donate_argnums=0).lower(layout.state).compile()

        def step(state: Any, batch: Any) -> Any:
            moments.append(time.perf_counter())
            return keep(state), scalars

        return types.SimpleNamespace(compile=lambda: step)

    config = configs.load(
        "configs/vit_digits.py",
        [
            "total.epochs=none",
            f"total.steps={_STEPS.value}",
            f"log.every_steps={_LOG_EVERY_STEPS.value}",
            # After the last step, when nothing is measured any more:
            f"checkpoint.every_steps={_STEPS.value}",
            "evals.test.every_steps=none",
            "log.first_batch=0",  # of a feed that has none
        ],
    )
    with (
        tempfile.TemporaryDirectory() as workdir,
        mock.patch.object(build, "lower_update", lower_nothing),
        mock.patch.object(Run, "feed", lambda *_, **__: ReadyFeed()),
    ):
        train.train(config, Path(workdir))
    micros = [1e6 * (after - before) for before, after in pairwise(moments)]
    row = {
        "steps": _STEPS.value,
        "log_every_steps": _LOG_EVERY_STEPS.value,
        "median_microseconds": round(statistics.median(micros), 1),
        "mean_microseconds": round(statistics.mean(micros), 1),  # logged steps included
        "largest_microseconds": round(max(micros)),
    }
    rows.record("loop_overhead", "vit_jax", "jax clu", row)


if __name__ == "__main__":
    command.run(main)
