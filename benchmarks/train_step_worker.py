"""One contender of train_step.py in its own process: builds it, then takes orders.

Reads lines and answers each with a line of JSON; ends at the end of its input.

    steps N      N steps, each waited for: wall and CPU seconds of each
    run N        N steps, the last one waited for: a mean, N times
    products N   N calls of the contender's matrix_product
    profile DIR  a few steps under jax.profiler, whose files go to DIR

Peak memory, threads and the allocator belong to a process, hence its own.
"""

import importlib
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from absl import app, flags

from benchmarks import rows
from benchmarks.contenders import COMPILE, OPTIONS, Contender, Shape, packages

_CONTENDER = flags.DEFINE_string("contender", None, "A module of benchmarks/contenders.")
_SHAPE = flags.DEFINE_string("shape", None, "The fields of a Shape, as JSON.")
_DTYPE = flags.DEFINE_string("dtype", None, "Of the computation.")
_WORK = flags.DEFINE_enum("work", "train", ["train", "forward"], "What a step is.")
_FIELDS = flags.DEFINE_multi_string("field", [], "Fields of a config; for `own`.")
_SETTINGS = flags.DEFINE_multi_enum("setting", [], [COMPILE, OPTIONS], "Of a peer.")

PROFILED_STEPS = 5


def main(_: list[str]) -> None:
    """Builds, says "ready", then follows the orders."""
    start = time.perf_counter()
    contender = build()
    loss = float(contender.step())
    ready_secs = time.perf_counter() - start
    contender.step()  # with the memory of a step that is not the first
    answer(
        ready_secs=ready_secs,
        compile_secs=contender.compile_secs,
        planned_bytes=contender.planned_bytes,
        first_loss=loss,
        versions=rows.installed(*packages(_CONTENDER.value)),
        **_memory(contender),
    )
    contender.matrix_product()
    orders = {"steps": steps, "run": run, "products": products, "profile": profile}
    for line in sys.stdin:
        what, _, argument = line.strip().partition(" ")
        answer(**orders[what](contender, argument))


def build() -> Contender:
    """The contender that the flags name."""
    module = importlib.import_module(f"benchmarks.contenders.{_CONTENDER.value}")
    make = {"train": "make", "forward": "make_forward"}[_WORK.value]
    more = {"fields": _FIELDS.value, "settings": _SETTINGS.value}
    more = {name: values for name, values in more.items() if values}
    return getattr(module, make)(Shape(**json.loads(_SHAPE.value)), _DTYPE.value, **more)


def steps(contender: Contender, number: str) -> dict[str, Any]:
    """Steps, each waited for."""
    return timed(lambda: float(contender.step()), int(number)) | _memory(contender)


def run(contender: Contender, number: str) -> dict[str, Any]:
    """Steps as a training runs them: the host waits at the end."""

    def all_of_them() -> None:
        for _ in range(int(number) - 1):
            contender.step()
        float(contender.step())

    measured = timed(all_of_them, 1)
    means = {kind: [secs[0] / int(number)] * int(number) for kind, secs in measured.items()}
    return means | _memory(contender)


def products(contender: Contender, number: str) -> dict[str, Any]:
    """Large matrix products."""
    flops = contender.matrix_product_flops
    return timed(contender.matrix_product, int(number)) | {"flops": flops} | _memory(contender)


def profile(contender: Contender, folder: str) -> dict[str, Any]:
    """Steps under JAX's profiler, after two that warm up."""
    import jax

    run(contender, "2")
    with jax.profiler.trace(folder):
        run(contender, str(PROFILED_STEPS))
    return {"steps": PROFILED_STEPS}


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


def _memory(contender: Contender) -> dict[str, int]:
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"peak_bytes": contender.peak_bytes() or resident}


if __name__ == "__main__":
    app.run(main)
