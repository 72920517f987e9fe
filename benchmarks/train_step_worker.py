"""One contender of train_step.py in its own process: builds it, then takes orders.

Reads lines "steps N" and "products N" and answers each with a line of JSON; ends at the end of its
input. Peak memory, threads and the allocator belong to a process, hence its own.
"""

import dataclasses
import importlib
import json
import resource
import sys
import time
from collections.abc import Callable

from absl import app, flags

from benchmarks.contenders import SHAPES

_CONTENDER = flags.DEFINE_string("contender", None, "A module of benchmarks/contenders.")
_SHAPE = flags.DEFINE_string("shape", None, "A key of SHAPES.")
_BATCH = flags.DEFINE_integer("batch", None, "Images in a batch.")
_DTYPE = flags.DEFINE_string("dtype", None, "Of the computation.")


def main(_: list[str]) -> None:
    """Builds, says "ready", then follows the orders."""
    shape = dataclasses.replace(SHAPES[_SHAPE.value], batch=_BATCH.value)
    start = time.perf_counter()
    contender = importlib.import_module(f"benchmarks.contenders.{_CONTENDER.value}").make(
        shape, _DTYPE.value
    )
    contender.step()
    answer(ready_secs=time.perf_counter() - start, compile_secs=contender.compile_secs)
    contender.matrix_product()
    work = {"steps": contender.step, "products": contender.matrix_product}
    for line in sys.stdin:
        what, number = line.split()
        answer(
            **timed(work[what], int(number)),
            flops=contender.matrix_product_flops,
            peak_bytes=contender.peak_bytes() or _largest_resident_bytes(),
        )


def timed(work: Callable[[], object], number: int) -> dict[str, list[float]]:
    """Wall and CPU seconds of each call."""
    wall, cpu = [], []
    for _ in range(number):
        wall_start, cpu_start = time.perf_counter(), time.process_time()
        work()
        wall.append(time.perf_counter() - wall_start)
        cpu.append(time.process_time() - cpu_start)
    return {"wall_secs": wall, "cpu_secs": cpu}


def answer(**values: object) -> None:
    """Writes a line of JSON."""
    print(json.dumps(values), flush=True)


def _largest_resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    app.run(main)
