"""Images per second of a training step: this project's, a plain flax.linen ViT's, torch's.

    python -m benchmarks.train_step --shape S/16 --batch 16 --dtype float32

Forward, backward and update on random data. Each contender is one process for the whole run; they
take turns, a few steps each, and medians over all turns are compared, so that other load on the
machine affects all alike. A contender named `own` runs with the memory settings of `vit_jax.train`;
NAME+pages is NAME with these settings. The rate of matrix products is measured in the same turns
and processes. Appends a row for each contender to benchmarks/results/train_step.csv. Needs no
TensorFlow; torch and transformers where installed.
"""

import dataclasses
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
from typing import Any

from absl import flags

from benchmarks import rows
from benchmarks.contenders import SHAPES, Shape
from vit_jax import models
from vit_jax.core import command, errors

_SHAPE = flags.DEFINE_enum("shape", "S/16", list(SHAPES), "Which network.")
_BATCH = flags.DEFINE_integer("batch", None, "Images in a batch; default: the shape's.")
_DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "Of the computation.")
_CONTENDERS = flags.DEFINE_list("contenders", "own,linen,torch_vit", "Who takes part.")
_TURNS = flags.DEFINE_integer("turns", 5, "How often each has its turn.")
_STEPS = flags.DEFINE_integer("steps", 5, "Steps of a turn.")
_RECORD = flags.DEFINE_bool("record", True, "Append the rows to the results.")

_PAGES = "+pages"
_KNOWN = ("own", "linen", "torch_vit")  # files in contenders/


class Worker:
    """A contender in its process."""

    def __init__(self, name: str, shape: Shape, dtype: str):
        module = name.removesuffix(_PAGES)
        self.name = name
        self.steps: dict[str, list[float]] = {"wall_secs": [], "cpu_secs": []}
        self.product_rates: list[float] = []
        self.peak_bytes = 0
        environment = dict(os.environ, XLA_PYTHON_CLIENT_PREALLOCATE="false")
        if module == "own" or name.endswith(_PAGES):
            environment["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"  # docs/install.md
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "benchmarks.train_step_worker", f"--contender={module}",
                f"--shape={shape.name}", f"--batch={shape.batch}", f"--dtype={dtype}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )  # fmt: skip
        self.ready = self._read()

    def turn(self, steps: int) -> None:
        """Runs some steps and a few matrix products."""
        answer = self._ask(f"steps {steps}")
        for kind, secs in self.steps.items():
            secs.extend(answer[kind])
        self.peak_bytes = answer["peak_bytes"]
        answer = self._ask("products 3")
        self.product_rates += [answer["flops"] / secs for secs in answer["wall_secs"]]

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate(timeout=60)

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin
        print(line, file=self._process.stdin, flush=True)
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} has ended; its error is above.")
        return json.loads(line)


def main(arguments: list[str]) -> None:
    """Measures, prints and records."""
    command.no_more(arguments)
    shape = SHAPES[_SHAPE.value]
    shape = dataclasses.replace(shape, batch=_BATCH.value or shape.batch)
    for name in _CONTENDERS.value:
        check(name)
    workers = [Worker(name, shape, _DTYPE.value) for name in _CONTENDERS.value if there(name)]
    for turn in range(_TURNS.value):
        for worker in workers:
            worker.turn(_STEPS.value)
        now = ", ".join(f"{w.name} {rate(w, shape):.2f}" for w in workers)
        print(f"turn {turn + 1} of {_TURNS.value}: images/s {now}", flush=True)
    for worker in workers:
        packages = "torch transformers" if worker.name.startswith("torch") else "jax flax optax"
        row = describe(worker, shape, workers[0])
        rows.record(
            *("train_step", "vit_jax benchmarks", packages, row),
            device=device(),
            keep=_RECORD.value,
        )
    for worker in workers:
        worker.close()


def check(name: str) -> None:
    """Raises UserError for an unknown contender."""
    module = name.removesuffix(_PAGES)
    if module not in _KNOWN:
        raise errors.UserError(
            f"--contenders: there is no {name!r}. {errors.nearest(module, _KNOWN)} "
            f"Each may be followed by {_PAGES}."
        )


def there(name: str) -> bool:
    """Whether a contender's packages are installed."""
    if name.startswith("torch") and importlib.util.find_spec("transformers") is None:
        print(f"{name} is left out: torch and transformers are not installed.")
        return False
    return True


def rate(worker: Worker, shape: Shape) -> float:
    """Images per second, from the median step."""
    return shape.batch / statistics.median(worker.steps["wall_secs"])


def describe(worker: Worker, shape: Shape, own: Worker) -> dict[str, object]:
    """A row of the results."""
    median = {kind: statistics.median(values) for kind, values in worker.steps.items()}
    product = statistics.median(worker.product_rates)
    compile_secs = worker.ready["compile_secs"]
    own_secs, own_cpu_secs = (statistics.median(values) for values in own.steps.values())
    return {
        "contender": worker.name,
        "shape": shape.name,
        "batch": shape.batch,
        "dtype": _DTYPE.value,
        "steps": len(worker.steps["wall_secs"]),
        "images_per_second": round(rate(worker, shape), 2),
        "images_per_cpu_second": round(shape.batch / median["cpu_secs"], 2),
        "share_of_matrix_rate": round(flops(shape) / median["wall_secs"] / product, 3),
        "matrix_gflops": round(product / 1e9),
        "peak_mib": round(worker.peak_bytes / 2**20),
        "compile_secs": None if compile_secs is None else round(compile_secs, 1),
        "first_step_secs": round(worker.ready["ready_secs"], 1),
        "own_is_faster_by": round(median["wall_secs"] / own_secs, 3),
        "own_takes_less_cpu_by": round(median["cpu_secs"] / own_cpu_secs, 3),
    }


def flops(shape: Shape) -> float:
    """FLOPs of the matrix products of a step: forward, and twice that backward."""
    return 3.0 * models.info(**shape.of_models()).forward_flops * shape.batch


def device() -> str:
    """The GPU's name if there is one, else the processor's."""
    if shutil.which("nvidia-smi") is None:
        return rows.cpu()
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    command.run(main)
