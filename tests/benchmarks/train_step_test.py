"""The contenders of benchmarks/train_step.py, their worker and its results, at toy size.

train_step and its worker define flags of the same names, so each is imported in its own process.
"""

import json
import math
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from benchmarks import compiled_for_tpu, workers
from benchmarks.contenders import OPTIONS, SETTINGS, Shape, jax_common, linen
from vit_jax import models

TOY = Shape("toy", 1, 16, 32, 2, patch_px=4, image_px=8, classes=10, batch=4)
LOSS_OF_CHANCE = math.log(TOY.classes)  # the head starts at zero
NEAR = 1e-3  # one step of the warmup, at a learning rate of at most 1e-5, moves it far less

FAKE_WORKER = """
import dataclasses, io, json, sys, types
from absl import flags
from benchmarks import train_step_worker as worker
from benchmarks.contenders import SHAPES, Contender

losses = []

def make(shape, dtype, fields):
    assert (shape, dtype, fields) == (SHAPES["cifar"], "float32", ["model.scan=true", "seed=1"])
    return Contender(lambda: losses.append(2.5) or 2.5, lambda: None, 8.0, lambda: 1024, 0.5, 2048)

sys.modules["benchmarks.contenders.fake"] = types.SimpleNamespace(make=make)
shape = json.dumps(dataclasses.asdict(SHAPES["cifar"]))
flags.FLAGS(["worker", "--contender=fake", f"--shape={shape}", "--dtype=float32",
             "--field=model.scan=true", "--field=seed=1"])
sys.stdin = io.StringIO("steps 2\\nproducts 1\\nrun 4\\n")
worker.main([])
assert len(losses) == 8  # two before it is ready
"""

OWN = """
import json, sys
from benchmarks.contenders import SHAPES, Shape, own
from benchmarks.workers import flops
contender = own.make(Shape("toy", 1, 16, 32, 2, 4, 8, 10, 4), "float32")
losses = [float(contender.step()), float(contender.step())]
try:
    spoiled = str(float(own.Loss({"first_bad_step": 3, "train/loss": 0.5})))
except FloatingPointError as error:
    spoiled = str(error)
packages = {module.split(".")[0] for module in sys.modules}
flops = {name: flops(shape) / shape.batch for name, shape in SHAPES.items()}
tensorflow = "tensorflow" in packages
print(json.dumps({"losses": losses, "spoiled": spoiled, "tensorflow": tensorflow, "flops": flops}))
"""


@pytest.fixture(scope="module")
def own(run_python):
    """Results of this project's contender, run in its own process."""
    done = run_python("-c", OWN, fresh=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def compiled_anew():
    """Takes no program from the cache, of which it would not be told how long it compiled."""
    keeps = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX asks once whether there is one
    yield
    jax.config.update("jax_enable_compilation_cache", keeps)
    compilation_cache.reset_cache()


@pytest.mark.usefixtures("quick_compilation", "compiled_anew")
def test_linen_begins_at_the_loss_of_chance():
    contender = linen.make(TOY, "float32")
    assert contender.compile_secs > 0
    losses = [float(contender.step()), float(contender.step())]
    assert losses == pytest.approx([LOSS_OF_CHANCE] * 2, abs=NEAR)
    assert contender.planned_bytes > 0


def test_own_begins_at_the_loss_of_chance_and_needs_no_tensorflow(own):
    assert own["losses"] == pytest.approx([LOSS_OF_CHANCE] * 2, abs=NEAR)
    assert not own["tensorflow"]


def test_a_step_that_is_not_finite_is_not_measured(own):
    assert "step 3 " in own["spoiled"]


def test_a_worker_builds_says_ready_and_obeys(run_python):
    done = run_python("-c", FAKE_WORKER)
    assert done.returncode == 0, done.stderr
    ready, steps, products, together = map(json.loads, done.stdout.splitlines())
    assert ready["ready_secs"] >= 0
    shown = {"compile_secs": 0.5, "planned_bytes": 2048, "first_loss": 2.5, "peak_bytes": 1024}
    assert {name: ready[name] for name in shown} == shown
    for figures, number in ((steps, 2), (products, 1), (together, 4)):
        assert len(figures["wall_secs"]) == len(figures["cpu_secs"]) == number
        assert figures["peak_bytes"] == 1024
    assert products["flops"] == 8.0
    assert len(set(together["wall_secs"])) == 1  # a mean


def test_flops_of_a_shape_are_those_of_the_model_it_is_named_after(own):
    for name in set(own["flops"]) - {"cifar"}:
        assert own["flops"][name] == 3 * models.info(f"ViT-{name}").forward_flops


def test_settings_reach_the_process_of_a_contender(monkeypatch):
    started = []
    monkeypatch.setattr(
        workers.LineProcess, "__init__", lambda self, *arguments: started.append(arguments)
    )
    monkeypatch.setattr(workers.tuned_cpu, "mkl_library", lambda: "as_on_intel.so")
    for name in ("linen+options+pages", "linen", "timm_vit+mkl"):
        workers.Worker(name, TOY, "float32", python="other")
    (tuned, arguments, environment, python), (_, by_default, plain, _), with_mkl = started
    assert python == "other"
    assert tuned == "linen+options+pages" and "hugetlb" in environment["GLIBC_TUNABLES"]
    assert {*arguments} - {*by_default} == {"--setting=options"}
    assert plain["GLIBC_TUNABLES"] == "" and "LD_PRELOAD" not in plain
    assert with_mkl[2]["LD_PRELOAD"] == "as_on_intel.so" and "--setting=mkl" not in with_mkl[1]


@pytest.mark.usefixtures("quick_compilation", "compiled_anew")
def test_a_peer_has_the_compiler_options_of_our_step_if_told(monkeypatch):
    own = {"xla_cpu_enable_fast_math": "False"}
    monkeypatch.setattr(jax_common, "compiler_options", lambda device_kind: own)
    used = []
    jit = jax.jit

    def watched(function, **settings):
        used.append(settings.get("compiler_options"))
        return jit(function, **settings)

    monkeypatch.setattr(linen.jax, "jit", watched)
    linen.make(TOY, "float32")
    assert own not in used
    linen.make(TOY, "float32", [OPTIONS])
    assert own in used
    cpu = jax.devices()[0]
    assert compiled_for_tpu.programs("linen", cpu) == {"linen": None, "linen+options": own}
    monkeypatch.setattr(jax_common, "compiler_options", lambda device_kind: None)
    assert compiled_for_tpu.programs("linen", cpu) == {"linen": None}


def test_contenders_are_the_existing_files():
    files = {file.stem for file in Path(linen.__file__).parent.glob("[!_]*.py")}
    assert set(SETTINGS) == files - {"jax_common", "torch_common"}
