"""The command for a lent accelerator: its rows, its time, its failures; by toys and stand-ins."""

import csv
import gzip
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from benchmarks import rows
from benchmarks.on_accelerator import contests, decode, journal, published, trace_summary
from benchmarks.on_accelerator.journal import FAILED, MEASURED, Journal
from benchmarks.on_accelerator.session import Part, Session
from benchmarks.workers import ROOT, LineProcess, WorkerEnded, reason
from tests.messages import refused
from vit_jax import config as configs
from vit_jax.run.parts import device_cache

DRY = ("-m", "benchmarks.on_accelerator", "--dry_run")


class FakeWorker:
    """Steps of one second, of two for linen; timm is not installed, torch's dies in its turn."""

    started: ClassVar[list] = []

    def __init__(self, module, shape, dtype, *, fields, work, environment):
        self.module, self.fields, self.shape, self.work = module, fields, shape, work
        self.steps = {"wall_secs": []}
        self.product_rates = [1e12]
        self.ready = {
            "planned_bytes": 2**30, "compile_secs": 5.0, "ready_secs": 6.0, "peak_bytes": 2**31,
            "first_loss": 6.9,
        }  # fmt: skip
        self.is_open = True
        self.started.append(self)

    def wait_until_ready(self, timeout_secs):
        if self.module == "timm_vit+compile":
            raise WorkerEnded(
                "timm_vit+compile: ModuleNotFoundError: No module named 'timm'", status=1
            )

    def turn(self, steps, *, at_once, timeout_secs):
        assert at_once
        self.with_others = sum(worker.is_open for worker in self.started) > 1
        if self.module == "torch_vit+compile":
            raise WorkerEnded("torch_vit+compile: ended by signal 9", status=-9)
        self.steps["wall_secs"] += [2.0 if self.module == "linen" else 1.0] * steps

    def forget(self):
        self.steps["wall_secs"].clear()

    def alive(self):
        return True

    def close(self):
        self.is_open = False


@pytest.fixture
def workers(monkeypatch):
    monkeypatch.setattr(FakeWorker, "started", [])
    monkeypatch.setattr(contests, "Worker", FakeWorker)
    return FakeWorker.started


@pytest.fixture
def session(tmp_path):
    def make(**settings):
        settings = {"minutes": 10, "dry": True} | settings
        return Session(Journal(tmp_path / "out", []), scratch=tmp_path / "scratch", **settings)

    return make


def written(folder):
    with (folder / "on_accelerator.csv").open() as file:
        return list(csv.DictReader(file))


def test_each_contender_gets_a_row_and_a_failure_leaves_the_rest_alone(workers, session, tmp_path):
    session().run(Part("training", 5, contests.training))
    found = {row["entrant"]: row for row in written(tmp_path / "out")}
    assert {name: row["status"] for name, row in found.items()} == {
        "own": MEASURED, "timm_vit+compile": FAILED, "torch_vit+compile": FAILED,
        "linen+options": MEASURED, "linen": MEASURED,
    }  # fmt: skip
    assert (
        found["timm_vit+compile"]["note"]
        == "timm_vit+compile: ModuleNotFoundError: No module named 'timm'"
    )
    assert found["own"]["own_is_faster_by"] == ""
    assert (found["linen"]["own_is_faster_by"], found["linen"]["step_ms"]) == ("2.0", "2000.0")
    assert (found["own"]["peak_gib"], found["own"]["compiled_gib"]) == ("2.0", "1.0")
    assert not any(worker.is_open for worker in workers)


def test_a_second_start_goes_on_where_the_first_was_cut_off(workers, session, tmp_path):
    session(only=("own", "linen")).run(Part("training", 5, contests.training))
    workers.clear()
    session(only=("own", "linen")).run(Part("training", 5, contests.training))
    assert not workers and len(written(tmp_path / "out")) == 2
    session(only=("own", "linen", "torch_vit+compile")).run(Part("training", 5, contests.training))
    assert [worker.module for worker in workers] == ["own", "torch_vit+compile"]
    assert len(written(tmp_path / "out")) == 3


def test_rows_are_taken_into_the_results_once(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "RESULTS", tmp_path / "results")
    with monkeypatch.context() as outside:
        outside.setattr(journal, "commit", lambda: "")
        Journal(tmp_path / "out", []).write("matrix", "", "own", MEASURED, value=1)
    assert [journal.take(tmp_path / "out") for _ in range(2)] == [1, 0]
    (taken,), (original,) = written(tmp_path / "results"), written(tmp_path / "out")
    assert taken == original | {"commit": journal.commit()}
    with refused("on_accelerator.csv", "--output"):
        journal.take(tmp_path / "nothing")


def test_a_process_that_hangs_or_dies_gives_a_line(capfd):
    sleeping = LineProcess("sleeping", ["-c", "import time; print('{}'); time.sleep(60)"], {})
    assert sleeping.read(30) == {}
    started = time.monotonic()
    with pytest.raises(WorkerEnded) as caught:
        sleeping.read(0.1)
    assert "sleeping" in str(caught.value) and caught.value.late
    assert time.monotonic() - started < 20
    broken = LineProcess("broken", ["-c", "raise MemoryError('too\\nmuch')"], {})
    with refused("broken", "MemoryError", error=WorkerEnded):
        broken.read(30)
    broken.close()
    assert reason("", -9) == "ended by signal 9"
    assert reason("I am\nerror: no such flag", 1) == "exit status 1; error: no such flag"


def test_the_table_of_a_trace_counts_kernels_alone(tmp_path):
    meta = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/device:GPU:0"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "Stream #13"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 3, "args": {"name": "XLA Ops"}},
    ]
    kernel = {"ph": "X", "name": "gemm", "pid": 1, "tid": 2, "dur": 30.0}
    events = [kernel, kernel | {"name": "softmax", "dur": 20.0}, kernel, kernel | {"tid": 3}]
    folder = tmp_path / "plugins" / "profile"
    folder.mkdir(parents=True)
    with gzip.open(folder / "host.trace.json.gz", "wt") as file:
        json.dump({"traceEvents": meta + events}, file)
    said = trace_summary.write(tmp_path, tmp_path / "table.csv", 2)
    assert said == "2 operations and 0.04 ms of them in a step"
    with (tmp_path / "table.csv").open() as file:
        first, second = csv.DictReader(file)
    assert list(first.values()) == ["gemm", "30.0", "1.0", "0.75"]
    assert second["operation"] == "softmax"


@pytest.mark.slow
def test_pillow_decodes_digits_as_tensorflow_does():
    config = configs.load("configs/vit_digits.py", ["input.cache=device"])
    for split in decode.splits(config):
        one = decode.decode(split, (8, 8))
        other = device_cache.DeviceCache(config.input, split).decode(lambda done, total: None)
        assert one.arrays.keys() == other.arrays.keys() and not one.faults
        for name, array in one.arrays.items():
            np.testing.assert_array_equal(array, other.arrays[name])
            assert array.dtype == other.arrays[name].dtype


# Imports modules as on a machine with some packages, what they need, and others without that.
LEAN_MACHINE = """
import importlib, importlib.metadata as metadata, re, sys
from packaging.requirements import Requirement
packages, carried, modules = (text.split() for text in sys.argv[1:])
normal = lambda name: re.sub("[-_.]+", "-", name).lower()
there, new = {normal(name) for name in carried}, {*packages}
while new:
    there |= new
    needed = [Requirement(text) for name in new for text in metadata.requires(name) or []]
    needed = [r for r in needed if not r.marker or r.marker.evaluate({"extra": ""})]
    new = {normal(r.name) for r in needed} - there
absent = {module for module, names in metadata.packages_distributions().items()
          if not {normal(name) for name in names} & there} - {"vit_jax", "benchmarks", "packaging"}
assert {"tensorflow", "tensorflow_datasets", "pyarrow", "matplotlib"} <= absent
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Finder())
for module in modules:
    importlib.import_module(module)
"""


@pytest.mark.slow
def test_every_program_loads_with_the_packages_of_the_page():
    carried = re.search(r"--dest wheels (.*)", (ROOT / "docs/benchmarks.md").read_text())[1]
    names = [path.stem for path in Path(decode.__file__).parent.glob("*.py")]
    modules = [f"benchmarks.on_accelerator.{name}" for name in names if name[0] != "_"]
    modules += ["benchmarks.contenders.own", "vit_jax.train", "vit_jax.tools.plan.__main__"]
    packages = "jax jaxlib flax optax orbax-checkpoint pillow"
    program = [sys.executable, "-c", LEAN_MACHINE, packages, carried, " ".join(modules)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_dry_run_measures_every_part(run_python, tmp_path):
    # The others have tests of their own, and would take most of the time.
    measured = f"--entrants=own,xla,{contests.DETERMINISTIC}"
    arguments = (*DRY, f"--output={tmp_path}", f"--scratch={tmp_path / 'scratch'}")
    for some in (measured, "--parts=memory"):  # which the plan is an entrant of
        done = run_python(*arguments, some, timeout_secs=3000)
        assert done.returncode == 0, done.stderr
    found = written(tmp_path)
    # Not here: torchvision, which timm imports; kernels for TPUs and GPUs; CIFAR-10.
    absent = ("timm_vit+compile", "torch_vit+compile", "cudnn", "splash", "fused")
    unmeasured = [
        row for row in found if row["status"] != MEASURED and row["entrant"] not in absent
    ]
    assert [row["case"] for row in unmeasured if row["part"] != "attention"] == [
        "cifar10", *published.CONFIGS
    ]  # fmt: skip
    assert {row["part"] for row in found} == {
        "matrix", "training", "attention", "memory", "resume", "deterministic", "inference",
        "profile", "small_data", "published",
    }  # fmt: skip
    same = [row for row in found if row["unit"] == "same bits"]
    assert [row["value"] for row in same] == ["1"] * 3
    (planned,) = [row for row in found if row["unit"] == "peak / planned"]
    assert float(planned["compiled_gib"]) > 0
    assert (tmp_path / "profile_L16.tar.gz").stat().st_size > 0
