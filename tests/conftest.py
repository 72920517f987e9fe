"""Fixtures for all tests: a tiny run, and Python in its own process."""

import gc
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from pathlib import Path

from vit_jax.core.files import cache_dir
from vit_jax.core.signals import DEFAULTS, SIGNALS

# Most of the tests' time is compilation: many compile the same toy, and most programs are those of
# the last session. Processes of tests inherit the cache; with a limit of its size JAX locks it. It
# reads the variables when it is imported. program_cache.py is about workers and their forks.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ |= {
        "JAX_COMPILATION_CACHE_DIR": str(cache_dir() / "tests"),
        "JAX_COMPILATION_CACHE_MAX_SIZE": str(2**30),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    }

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests import messages, preloaded, program_cache
from tests.xla_flags import QUICKLY_COMPILED, xla_flags
from vit_jax import config as configs
from vit_jax import models, weights
from vit_jax.core import machine

program_cache.use()
# Read when jax first looks for devices; processes that tests start inherit it.
os.environ.setdefault("XLA_FLAGS", QUICKLY_COMPILED)

# Limits of a `bounded` test; 100 Mpx, the largest image decoded, takes 0.4 GiB.
MORE_MEMORY_BYTES = 2**30
MORE_SECS = 60
REPOSITORY = Path(__file__).parents[1]
# Slow tests that are in every share: what nothing quick stands for.
ALWAYS = ("tests/cloud/", "tests/wheel_test.py")
# Beside the parity tests, what .ci/run tries on Python 3.11, whose JAX, Flax, NumPy and SciPy are
# older than those of the other tests: numbers, checkpoints, weights, and that every command starts.
ON_OLDEST = (
    "tests/api_test.py",
    "tests/commands_test.py",
    "tests/data/balance_test.py",
    "tests/data/label_index_test.py",
    "tests/data/order_test.py",
    "tests/data/subset_test.py",
    "tests/tools/export/",
    "tests/install_test.py",
    "tests/models/golden_test.py",
    "tests/models/layers/stack_test.py",
    "tests/learning/optim/",
    "tests/parallel/",
    "tests/probes/",
    "tests/store/",
    "tests/train_test.py",
    "tests/learning/step_test.py",
    "tests/weights/",
    "tests/wheel_test.py",
)

# A ViT that compiles in a second or two, on images that need no files.
TINY_RUN = {
    "model": {"name": "ViT-Ti/4", "depth": 2, "width": 16, "mlp_dim": 32, "num_heads": 2},
    "input": {
        "source": "synthetic",
        "num_examples": 64,
        "num_classes": 4,
        "preprocess": "decode|resize(8)",
        "batch_size": 16,
    },
    "optim": {"lr": 1e-3, "warmup_steps": 2},
    "total": {"steps": 6},
    "log": {"every_steps": 1, "tensorboard": False, "first_batch": 0},
}


@pytest.fixture(scope="session", autouse=True)
def interruptible():
    """Makes signals interrupt even where they are ignored, as under nohup or in a background job.

    Processes inherit that, and bash cannot trap a signal that was ignored when it started.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler == signal.SIG_IGN:
            signal.signal(number, DEFAULTS[number])
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def tiny_run():
    """`tiny_run("optim.lr=1", ...)`: the RunConfig of a run that takes seconds."""
    return lambda *overrides: configs.resolve(TINY_RUN, overrides)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The work directory of the tiny run, and its state; not to be changed."""
    from vit_jax.train import train

    workdir = tmp_path_factory.mktemp("trained")
    return workdir, train(configs.resolve(TINY_RUN), workdir)


# Six steps of a ViT on the digits, with three checkpoints and a moving average.
DIGITS_RUN = (
    "total.epochs=none", "total.steps=6", "optim.warmup_epochs=none", "model.depth=1",
    "model.width=16", "model.mlp_dim=32", "model.num_heads=2", "log.tensorboard=false",
    "optim.ema_decay=0.5", "checkpoint.every_steps=2", "checkpoint.keep_last=3",
)  # fmt: skip


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory):
    """The work directory of a finished run, which many tests read and none changes."""
    from vit_jax.train import train

    workdir = tmp_path_factory.mktemp("digits") / "run"
    train(configs.load("configs/vit_digits.py", DIGITS_RUN), workdir)
    return workdir


def save_toy(file, seed=0, *, num_classes=3, **fields):
    """Saves weights of a ViT of one block, for images of eight pixels, in Google's format."""
    small = {"depth": 1, "width": 8, "mlp_dim": 8, "num_heads": 2, "image_size": 8}
    rngs = nnx.Rngs(seed)
    model = models.create("ViT-Ti/4", num_classes=num_classes, rngs=rngs, **small | fields)
    weights.save(weights.Loaded(model, "ViT-Ti/4", None, 0), file, "google_npz")
    return str(file)


@pytest.fixture
def quick_compilation():
    """Compiles quickly, for programs that run once or twice and need no fast code."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="session")
def drawn():
    """`drawn(make)`: the module from make() with all parameters random; compiles nothing."""

    def draw(make):
        graph, params = nnx.split(nnx.eval_shape(make), nnx.Param)
        rng = np.random.default_rng(3)
        normal = lambda p: jnp.asarray(0.1 + rng.normal(size=p.shape), jnp.float32)
        return nnx.merge(graph, jax.tree.map(normal, params))

    return draw


@pytest.fixture
def xla_flops():
    """`xla_flops(f, shape)`: FLOPs of all products and convolutions of f(x), each counted by XLA.

    Nothing is compiled or computed. A scan's body counts once per iteration.
    """

    known = {}  # equal products are lowered once

    def of_equation(eqn):
        key = (eqn.primitive.name, *(v.aval.str_short() for v in eqn.invars), str(eqn.params))
        if key not in known:
            run = jax.jit(lambda *arguments: eqn.primitive.bind(*arguments, **eqn.params))
            known[key] = run.lower(*(v.aval for v in eqn.invars)).cost_analysis()["flops"]
        return known[key]

    def of_jaxpr(jaxpr):
        total = 0
        for eqn in jaxpr.eqns:
            if eqn.primitive.name in ("dot_general", "conv_general_dilated"):
                total += of_equation(eqn)
            inner = sum(map(of_jaxpr, jax.extend.core.jaxprs_in_params(eqn.params)))
            total += inner * (eqn.params["length"] if eqn.primitive.name == "scan" else 1)
        return total

    return lambda f, shape: of_jaxpr(
        jax.make_jaxpr(f)(jax.ShapeDtypeStruct(shape, "float32")).jaxpr
    )


def python_environment(devices=1, **env):
    """Environment of a process that imports this package and sees `devices` devices."""
    return os.environ | {
        "PYTHONPATH": str(REPOSITORY),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": xla_flags(devices),
        machine.TUNABLES: machine.HUGE_PAGES,  # else trainings start a second time
        **env,
    }


PRELOADED = python_environment()  # before tests and imported packages change variables


@pytest.fixture(scope="session")
def preloaded_server(tmp_path_factory):
    """`preloaded_server()`: the process whose forks run programs, started on first use."""
    servers, starting = [], threading.Lock()

    def server():
        with starting:
            if not servers:
                servers.append(preloaded.Server(tmp_path_factory.mktemp("server"), PRELOADED))
        return servers[0]

    yield server
    for made in servers:
        made.close()


@pytest.fixture(scope="session")
def run_python(preloaded_server):
    """`run_python("-c", code, devices=8)`: runs a process that imports this package to its end.

    fresh: use an interpreter that has imported nothing, for tests of imports.
    """

    def run(*arguments, devices=1, timeout_secs=300, fresh=False, **env):
        environment = python_environment(devices, **env)
        if not fresh and preloaded.can_fork(arguments, environment, python_environment()):
            return preloaded_server().run(arguments, environment, REPOSITORY, timeout_secs)
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=REPOSITORY,
            timeout=timeout_secs,
            check=False,
        )

    return run


@pytest.fixture
def start_python(preloaded_server):
    """`start_python(output, "-c", code)`: a Popen-like process whose output goes to a file.

    It does not outlive the test.
    """
    started = []

    def start(output, *arguments, devices=1, **env):
        environment = python_environment(devices, **env)
        with output.open("wb") as file:
            if preloaded.can_fork(arguments, environment, python_environment()):
                server = preloaded_server()
                process = server.start(arguments, environment, REPOSITORY, file, file)
            else:
                process = subprocess.Popen(
                    [sys.executable, *arguments],
                    cwd=REPOSITORY,
                    env=environment,
                    stdout=file,
                    stderr=file,
                )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def bounded():
    """Fails a test that takes much memory, and ends one that hangs.

    Limiting the address space would catch more, but makes ArrayRecord's reader wait forever.
    """

    def used_bytes(field):
        (line,) = re.findall(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
        return 1024 * int(line)

    def stop(*_):
        raise TimeoutError

    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    before = used_bytes("VmRSS")
    handler = signal.signal(signal.SIGALRM, stop)
    signal.alarm(MORE_SECS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, handler)
    assert used_bytes("VmHWM") - before < MORE_MEMORY_BYTES


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config, items):
    """Files with slow tests come first, so that short ones fill the time of the last worker."""
    for item in items:
        if item.nodeid.startswith(ON_OLDEST):
            item.add_marker("oldest")
    is_slow = lambda item: item.get_closest_marker("slow")
    if given := config.getoption("--share"):
        number, shares = given
        # By a hash of the name: a new test moves no other one.
        in_share = lambda item: zlib.crc32(item.nodeid.encode()) % shares == number
        always = lambda item: not is_slow(item) or item.nodeid.startswith(ALWAYS)
        kept = [item for item in items if always(item) or in_share(item)]
        config.hook.pytest_deselected(items=list(set(items).difference(kept)))
        items[:] = kept
    slow = Counter(item.path for item in items if is_slow(item))
    items.sort(key=lambda item: -slow[item.path])


def pytest_runtest_setup(item):
    late = time.time() > item.config.getoption("--slow_until")
    if late and item.get_closest_marker("slow") and not item.nodeid.startswith(ALWAYS):
        pytest.skip("slow, and the time for these is over (--slow_until)")


def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        program_cache.limit()
    messages.regenerating = config.getoption("regenerate_goldens")


def pytest_sessionfinish():
    if messages.regenerating:
        messages.write()


def pytest_collection_finish():
    """Lets the garbage collector look seldom, and never at the modules that tests have imported."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def share(text):
    """Parses "K/N"."""
    number, shares = map(int, text.split("/"))
    if not 0 <= number < shares:
        raise ValueError
    return number, shares


def pytest_addoption(parser):
    parser.addoption(
        "--regenerate_goldens", action="store_true", help="Write the golden files anew."
    )
    parser.addoption(
        "--share",
        type=share,
        metavar="K/N",
        help="Of the slow tests ALWAYS, and of the others one of N shares, from 0/N on.",
    )
    parser.addoption(
        "--slow_until",
        type=float,
        default=math.inf,
        metavar="TIME",
        help="Seconds since 1970; slow tests that would begin later are skipped, but for ALWAYS.",
    )
    parser.addoption(
        "--references",
        metavar="DIR",
        default=os.environ.get("VIT_JAX_REFERENCES"),
        help="Folder of checkouts for -m outside; see docs/outside.md.",
    )
