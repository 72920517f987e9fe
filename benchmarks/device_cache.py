"""Training steps fed from images on the devices (input.cache=device), and from the host.

    python -m benchmarks.device_cache --config configs/vit_cifar10.py:cpu --data_dir DIR

Both feed one compiled step in turns, `--steps` steps each time. Of each turn it takes CPU time of
the whole process (the host's decoding included), wall time, and the time that the loop waited for
batches. Appends a row to benchmarks/results/device_cache.csv.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import tempfile
import time
from typing import Any

import jax
from absl import flags
from etils import epath

from benchmarks import rows
from vit_jax import config as configs
from vit_jax.core import command, compilation_cache
from vit_jax.learning.step import lower_update
from vit_jax.run.build import Run
from vit_jax.run.parts import updates

_CONFIG = flags.DEFINE_string("config", "configs/vit_digits.py", "Config file.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Its data, where it needs some.")
_STEPS = flags.DEFINE_integer("steps", 10, "Steps of a turn.")
_TURNS = flags.DEFINE_integer("turns", 6, "Turns of each contender.")

# The host goes on until its buffers are full again; the work belongs to the turn that emptied them.
SETTLING_SECS = 2
CONTENDERS = {"device": "device", "host": None}


def main(_: list[str]) -> None:
    """Measures, prints and records."""
    compilation_cache.use()
    more = [] if _DATA_DIR.value is None else [f"input.data_dir={_DATA_DIR.value}"]
    config = configs.load(_CONFIG.value, more)
    taken: dict[str, list[tuple[float, float, float]]] = {name: [] for name in CONTENDERS}
    with tempfile.TemporaryDirectory() as workdir, contextlib.ExitStack() as until_the_end:
        feeds: dict[str, Any] = {}
        for name, cache in CONTENDERS.items():
            own = dataclasses.replace(config, input=dataclasses.replace(config.input, cache=cache))
            run = Run.build(own, epath.Path(workdir))
            feeds[name] = until_the_end.enter_context(run.feed(start_step=0))
        step = updates.update(config, run.parts)
        layout = run.parts.layout.in_steps
        update = lower_update(step, layout, run.batch_layout).compile()
        state = layout.init(0)
        for _turn in range(_TURNS.value + 1):  # the first one is not counted
            for name, feed in feeds.items():
                jax.block_until_ready(state)
                began, waited = (time.perf_counter(), time.process_time()), feed.wait_secs
                for _step in range(_STEPS.value):
                    state, _scalars = update(state, next(feed))
                jax.block_until_ready(state)
                wall = time.perf_counter() - began[0]
                time.sleep(SETTLING_SECS)
                cpu = time.process_time() - began[1]
                taken[name].append((wall, cpu, feed.wait_secs - waited))
    milliseconds = {}
    for name, turns in taken.items():
        columns = zip(*turns[1:], strict=True)
        milliseconds[name] = [1e3 * statistics.median(c) / _STEPS.value for c in columns]
    row: dict[str, object] = {"config": _CONFIG.value, "batch_size": config.input.batch_size}
    for name, (wall, cpu, waited) in milliseconds.items():
        row |= {
            f"{name}_step_ms": round(wall, 2),
            f"{name}_step_cpu_ms": round(cpu, 2),
            f"{name}_wait_ms": round(waited, 3),
        }
    row["cpu_ratio"] = round(milliseconds["device"][1] / milliseconds["host"][1], 3)
    rows.record("device_cache", "vit_jax", "jax tensorflow tensorflow-cpu", row)


if __name__ == "__main__":
    command.run(main)
