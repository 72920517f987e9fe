"""Images per second of a training step: this project's, a plain flax.linen ViT's, torch's.

    python -m benchmarks.train_step --shape S/16 --batch 16 --dtype float32
    python -m benchmarks.train_step --work forward --shape B/16 --batch 8 --contenders own,timm_vit

Forward, backward and update on random data; with --work=forward logits alone, of parameters in
--dtype. Each contender is one process for the whole run; they take turns, a few steps each, and
medians over all turns are compared, so that other load on the machine affects all alike. A peer
runs by default, and with settings behind its name: NAME+options has the compiler options of this
project's step; NAME+compile is torch's by torch.compile; NAME+pages has huge pages, as `own` does
because `vit-jax train` does. The rate of matrix products is measured in the
same turns and processes. Appends a row for each contender to train_step.csv or forward.csv of
benchmarks/results. Needs no TensorFlow; torch, transformers and timm where installed, or from the
environment of --torch_python, so that each side has the newest release that it can.
"""

import dataclasses
import importlib.util
import statistics
import sys

from absl import flags

from benchmarks import rows
from benchmarks.contenders import SETTINGS, SHAPES, Shape, packages, split
from benchmarks.workers import Worker, flops
from vit_jax.core import command, errors

_SHAPE = flags.DEFINE_enum("shape", "S/16", list(SHAPES), "Which network.")
_BATCH = flags.DEFINE_integer("batch", None, "Images in a batch; default: the shape's.")
_DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "Of the computation.")
_WORK = flags.DEFINE_enum("work", "train", ["train", "forward"], "What a step is.")
_CONTENDERS = flags.DEFINE_list(
    "contenders", "own,linen,linen+options,torch_vit,torch_vit+compile", "Who takes part."
)
_TORCH_PYTHON = flags.DEFINE_string(
    "torch_python", None, "Python of an environment that has torch and timm; default: this one."
)
_TURNS = flags.DEFINE_integer("turns", 5, "How often each has its turn.")
_STEPS = flags.DEFINE_integer("steps", 5, "Steps of a turn.")
_RECORD = flags.DEFINE_bool("record", True, "Append the rows to the results.")

FILES = {"train": "train_step", "forward": "forward"}
FORWARD = ("own", "timm_vit")  # the contenders that have a forward pass alone


def main(_: list[str]) -> None:
    """Measures, prints and records."""
    shape = SHAPES[_SHAPE.value]
    shape = dataclasses.replace(shape, batch=_BATCH.value or shape.batch)
    for name in _CONTENDERS.value:
        check(name)
    workers = []
    for name in filter(there, _CONTENDERS.value):  # one after the other: each compiles alone
        workers.append(Worker(name, shape, _DTYPE.value, work=_WORK.value, python=python_of(name)))
        workers[-1].wait_until_ready()
    for turn in range(_TURNS.value):
        for worker in workers:
            worker.turn(_STEPS.value)
        now = ", ".join(f"{w.name} {rate(w, shape):.2f}" for w in workers)
        print(f"turn {turn + 1} of {_TURNS.value}: images/s {now}", flush=True)
    for worker in workers:
        row = describe(worker, shape, workers[0])
        rows.record(
            *(FILES[_WORK.value], "vit_jax benchmarks", "", row),
            device=rows.gpu() or rows.cpu(),
            versions=worker.ready["versions"],
            keep=_RECORD.value,
        )
    for worker in workers:
        worker.close()


def check(name: str) -> None:
    """Raises UserError for an unknown contender or setting."""
    module, settings = split(name)
    if module not in SETTINGS:
        nearest = errors.nearest(module, SETTINGS)
        raise errors.UserError(f"--contenders: there is no {name!r}. {nearest}")
    if _WORK.value == "forward" and module not in FORWARD:
        raise errors.UserError(
            f"--work=forward is for {' and '.join(FORWARD)}, not for {name}: leave that out of "
            "--contenders."
        )
    if set(settings) - set(SETTINGS[module]):
        allowed = ", ".join(f"+{setting}" for setting in SETTINGS[module])
        raise errors.UserError(f"--contenders: there is no {name!r}. {module} may have {allowed}.")


def python_of(name: str) -> str:
    """The interpreter of a contender."""
    from_torch = _TORCH_PYTHON.value and "jax" not in packages(name)
    return _TORCH_PYTHON.value if from_torch else sys.executable


def there(name: str) -> bool:
    """Whether a contender's packages are installed."""
    if _TORCH_PYTHON.value:
        return True
    if name.startswith("torch") and importlib.util.find_spec("transformers") is None:
        print(f"{name} is left out: torch and transformers are not installed.")
        return False
    if name.startswith("timm") and importlib.util.find_spec("torchvision") is None:
        print(f"{name} is left out: torch, torchvision and timm are not installed.")
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
        "share_of_matrix_rate": round(flops(shape, _WORK.value) / median["wall_secs"] / product, 3),
        "matrix_gflops": round(product / 1e9),
        "peak_mib": round(worker.peak_bytes / 2**20),
        "compile_secs": None if compile_secs is None else round(compile_secs, 1),
        "first_step_secs": round(worker.ready["ready_secs"], 1),
        "own_is_faster_by": round(median["wall_secs"] / own_secs, 3),
        "own_takes_less_cpu_by": round(median["cpu_secs"] / own_cpu_secs, 3),
    }


if __name__ == "__main__":
    command.run(main)
