"""Several real processes on this machine, started as a user starts them."""

import contextlib
import itertools
import json
import os
import re
import resource
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cluster.rendezvous_test import STRANGERS, do
from tests.gloo import without_gloo
from tests.processes import free_port
from vit_jax import config as configs
from vit_jax.data.sources import pseudo_labels
from vit_jax.store import checkpoint_dir
from vit_jax.train import train

TIMEOUT_SECS = 500  # for a whole run on a busy machine

FLAGS = (
    "--config.model.depth=1",
    "--config.model.dropout=0.1",
    "--config.checkpoint.every_steps=2",
    "--config.evals.test.preprocess=decode|resize(8)",
    "--config.evals.test.every_steps=3",
)
CONFIG = """
import ml_collections

def get_config(arg=None):
    return ml_collections.ConfigDict({config})
"""


class Processes:
    """The processes of one run, by number; their output goes to files."""

    def __init__(
        self, start, folder, number, command, *, devices=1, only=None, more=None, port=None
    ):
        self.port = port or free_port()
        self.outputs = {i: folder / f"output{i}" for i in range(number)}
        self.running = {}
        for i in only or range(number):
            arguments = [
                *command, "--coordinator", f"localhost:{self.port}", "--num_processes", str(number),
                "--process_id", str(i), *(more or {}).get(i, ()),
            ]  # fmt: skip
            self.running[i] = start(
                self.outputs[i], "-m", *arguments, devices=devices, PYTHONUNBUFFERED="1"
            )

    def output(self, i):
        return self.outputs[i].read_text()

    def wait_for(self, text, i=0):
        deadline = time.monotonic() + TIMEOUT_SECS
        while text not in self.output(i):
            assert time.monotonic() < deadline, self.output(i)
            assert self.running[i].poll() is None, self.output(i)
            time.sleep(0.1)

    def end(self, but=(), within_secs=TIMEOUT_SECS):
        """Exit statuses by number, for those expected to end by themselves."""
        deadline = time.monotonic() + within_secs
        waited = {i: p for i, p in self.running.items() if i not in but}
        return {i: p.wait(max(0, deadline - time.monotonic())) for i, p in waited.items()}


@pytest.fixture
def start(tmp_path, tiny_run, start_python):
    """Starts processes in this test's folder; none of them outlives the test."""
    config = tmp_path / "config.py"
    config.write_text(CONFIG.format(config=configs.to_dict(tiny_run())))

    def start(number, *flags, folder=tmp_path, command=None, **options):
        folder.mkdir(exist_ok=True)
        run = ["vit_jax.train", "--config", str(config), "--workdir", str(folder / "run"), *FLAGS]
        command = [*(command or run), *flags]
        return Processes(start_python, folder, number, command, **options)

    return start


def checksums(workdir):
    step = max(checkpoint_dir.steps(workdir / "checkpoints"))
    arrays = checkpoint_dir.read_description(workdir / "checkpoints" / str(step))["arrays"]
    return step, {name: array["checksum"] for name, array in arrays.items()}


@pytest.mark.slow
def test_two_processes_train_and_start_again(start, tmp_path):
    """Starting the same command again reports the run finished."""
    first = start(2, devices=2)
    assert first.end() == {0: 0, 1: 0}, first.output(0) + first.output(1)
    assert "4 x cpu: data 4" in first.output(0)
    assert "finished 6 steps" in first.output(0)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert {"train/loss", "test/accuracy"} <= set(rows[-1])
    document = json.loads((tmp_path / "run" / "config.json").read_text())
    assert [run["processes"] for run in document["runs"]] == [2]
    assert not without_gloo(first.output(1)), "only process 0 speaks while all is well"


@pytest.mark.slow
def test_a_missing_process_is_named(start):
    """The missing process is named, and the others exit with status 76."""
    alone = start(2, "--start_timeout_secs=1", only=[0])
    assert alone.end() == {0: 76}
    assert "process 1 of 2" in alone.output(0)


def listening_at(pid):
    """(host, port) of each socket on which a process listens."""
    links = {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in links:
                address, port = local.split(":")
                host = socket.inet_ntoa(bytes.fromhex(address)[-4:][::-1])
                yield host.replace("0.0.0.0", "127.0.0.1"), int(port, 16)


def disturb(address):
    """Connects as strangers of all kinds do; returns their connections."""
    ends = []
    for stranger in (*STRANGERS.values(), *200 * [b""]):
        with contextlib.suppress(OSError):
            ends.append(socket.create_connection(address, timeout=0.2))
            do(ends[-1], stranger)
    for end in ends[::2]:
        end.close()
    return ends


@pytest.mark.slow
def test_strangers_end_no_run(start):
    """At the rendezvous, and at every port on which a process listens while it trains."""
    first = start(2, "--config.total.steps=60", only=[0])
    while ("127.0.0.1", first.port) not in listening_at(first.running[0].pid):
        assert first.running[0].poll() is None
    strangers = disturb(("127.0.0.1", first.port))
    second = start(2, "--config.total.steps=60", only=[1], port=first.port)
    first.wait_for("step 3/")
    running = (first.running[0], second.running[1])
    addresses = [address for process in running for address in listening_at(process.pid)]
    assert ("127.0.0.1", first.port) in addresses
    for address in addresses:
        strangers += disturb(address)
    assert (first.end(), second.end()) == ({0: 0}, {1: 0}), first.output(0) + second.output(1)
    assert "ignored  a connection from 127.0.0.1" in first.output(0)
    assert "finished 60 steps" in first.output(0)


@pytest.mark.slow
def test_two_processes_end_early_together(start, tmp_path):
    """Both when it is measured, and when the first alone knows what had been measured."""
    early = (
        "--config.total.steps=30", "--config.early_stopping.metric=test/accuracy",
        "--config.early_stopping.min_delta=1", "--config.early_stopping.patience=2",
    )  # fmt: skip
    for _ in range(2):
        run = start(2, *early)
        assert run.end() == {0: 0, 1: 0}, run.output(0) + run.output(1)
        assert "stopped  after 9 of 30 steps: test/accuracy" in run.output(0)
        assert max(checkpoint_dir.steps(tmp_path / "run" / "checkpoints")) == 9


@pytest.mark.slow
def test_two_processes_evaluate_as_one_does(start, tmp_path, tiny_run):
    overrides = [flag.removeprefix("--config.") for flag in FLAGS]
    train(tiny_run(*overrides), tmp_path / "run")
    command = ["vit_jax.evaluate", "--checkpoint", str(tmp_path / "run"), "--json"]
    run = start(2, command=command, devices=2)
    assert run.end() == {0: 0, 1: 0}, run.output(0) + run.output(1)
    numbers = json.loads(run.output(0).splitlines()[-1])
    *_, last = (json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open())
    both = {name: numbers[name] for name in numbers.keys() & last.keys()}  # not those by class
    assert "test/accuracy" in both
    assert both == pytest.approx({name: last[name] for name in both}, rel=1e-5)
    assert "accuracy" not in run.output(1)
    newest = {0: command[1:3], 1: ["--checkpoint", str(tmp_path / "run" / "checkpoints" / "4")]}
    mixed = start(2, command=["vit_jax.evaluate", "--json"], more=newest)
    assert mixed.end() == {0: 76, 1: 1}, mixed.output(0) + mixed.output(1)
    assert "finds other images, names, labels or weights" in mixed.output(0)


@pytest.mark.slow
def test_two_processes_write_the_pseudo_labels_of_one(start, tmp_path, tiny_run):
    """The first writes them; the shares of a batch are put together."""
    train(tiny_run("model.depth=1"), tmp_path / "run")
    found = []
    for number in (1, 2):
        file = tmp_path / f"{number}.npz"
        command = [
            "vit_jax.evaluate", "--checkpoint", str(tmp_path / "run"), f"--pseudo_labels={file}",
            "--config.evals.unlabelled.preprocess=weights", "--confidence=0", "--per_class=5",
            "--top_k=2",
        ]  # fmt: skip
        run = start(number, command=command, folder=tmp_path / str(number), devices=2)
        assert set(run.end().values()) == {0}, run.output(number - 1)
        assert "of 16 images are kept" in run.output(0)
        assert "5 of each class" in run.output(0)
        found.append(pseudo_labels.read(str(file), where="input"))
    assert not without_gloo(run.output(1)), "only process 0 speaks while all is well"
    for one, other in zip(found[0][:4], found[1][:4], strict=True):
        np.testing.assert_array_equal(one, other)
    assert found[0].about.fingerprint == found[1].about.fingerprint


@pytest.mark.slow
def test_four_processes_train(start):
    run = start(4, "--config.total.steps=2")
    assert run.end() == dict.fromkeys(range(4), 0), run.output(0)
    assert "4 x cpu: data 4" in run.output(0)


@pytest.mark.slow
def test_sigterm_to_one_process_resumes_to_the_same_bits(start, tmp_path):
    """All save the same step; the resumed run equals an uninterrupted one."""
    steps = (
        "--config.total.steps=200", "--config.checkpoint.every_steps=100",
        "--config.evals.test.every_steps=100",
    )  # fmt: skip
    straight = start(2, *steps, folder=tmp_path / "straight")
    assert straight.end() == {0: 0, 1: 0}
    stopped = start(2, *steps, folder=tmp_path / "stopped")
    stopped.wait_for("step 5/")
    stopped.running[1].send_signal(signal.SIGTERM)
    assert stopped.end() == {0: 75, 1: 75}, stopped.output(0)
    last_words = rf"Stopped by SIGTERM to process 1 \({socket.gethostname()}, pid \d+\); step (\d+)"
    steps_said = {re.search(last_words, stopped.output(i))[1] for i in (0, 1)}
    step, _ = checksums(tmp_path / "stopped" / "run")
    assert steps_said == {str(step)}
    assert step < 200
    again = start(2, *steps, folder=tmp_path / "stopped")
    assert again.end() == {0: 0, 1: 0}
    assert f"resumed  from the checkpoint of step {step}" in again.output(0)
    assert checksums(tmp_path / "stopped" / "run") == checksums(tmp_path / "straight" / "run")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a/0.png", "b/30.png"])
def test_an_image_that_one_process_cannot_read_loses_no_training(start, tmp_path, name):
    """All save the step before it, once; with the image mended they end with the same bits."""
    images = tmp_path / "images"
    for i, label in itertools.product(range(48), "ab"):  # the images of six steps
        file = images / "train" / label / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), 2 * i + (label == "b"), np.uint8)).save(file)
    data = (
        "--config.input.source=image_folder", f"--config.input.data_dir={images}",
        "--config.input.num_examples=none", "--config.input.num_classes=none",
        "--config.evals.test=none", "--config.checkpoint.every_steps=100",
        "--config.log.every_steps=100",
    )  # fmt: skip
    straight = start(2, *data, folder=tmp_path / "straight")
    assert straight.end() == {0: 0, 1: 0}, straight.output(0)
    content = (images / "train" / name).read_bytes()
    (images / "train" / name).write_bytes(bytes(len(content)))
    stopped, run = start(2, *data, folder=tmp_path / "stopped"), tmp_path / "stopped" / "run"
    assert sorted(stopped.end().values()) == [1, 76], stopped.output(0) + stopped.output(1)
    assert all(name in stopped.output(i) for i in (0, 1))
    (step,) = checkpoint_dir.steps(run / "checkpoints")
    assert 0 < step < 6
    (images / "train" / name).write_bytes(content)
    again = start(2, *data, folder=tmp_path / "stopped")
    assert again.end() == {0: 0, 1: 0}, again.output(0)
    assert checksums(run) == checksums(tmp_path / "straight" / "run")


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_kill_9_then_restart(start, killed):
    """The victim is named and the others end; then the run continues with fewer processes."""
    forever = ("--config.total.steps=1_000_000", "--config.input.batch_size=12")
    run = start(3, *forever, "--peer_timeout_secs=20")
    run.wait_for("step 6/")
    run.running[killed].kill()
    others = [i for i in range(3) if i != killed]
    assert run.end(but=[killed], within_secs=120) == dict.fromkeys(others, 76)
    gone = f"process {killed} ({socket.gethostname()}, pid {run.running[killed].pid})"
    for i in others:
        assert gone in run.output(i)
        assert "Traceback" not in run.output(i)
    again = start(2, *forever)
    again.wait_for("resumed  from the checkpoint of step")
    again.wait_for("| loss")


@pytest.mark.slow
def test_a_disk_that_is_full_for_one_process_ends_all_soon(start):
    """Orbax would let all of them wait for ten minutes."""
    sharded = ("--config.mesh.fsdp=2", "--config.model.width=64", "--config.total.steps=1_000_000")
    run = start(2, *sharded)
    run.wait_for("compiling")
    resource.prlimit(run.running[1].pid, resource.RLIMIT_FSIZE, (4096, 4096))
    assert run.end(within_secs=200) == {0: 76, 1: 1}, run.output(0) + run.output(1)
    assert all("File too large. No earlier one exists." in run.output(i) for i in (0, 1))


@pytest.mark.slow
def test_the_error_of_one_process_reaches_all(start):
    run = start(2, more={1: ["--allow_config_change"]})
    assert run.end() == {0: 76, 1: 1}, run.output(0) + run.output(1)
    assert f"process 1 ({socket.gethostname()}, pid " in run.output(0)
    for i in (0, 1):
        assert "--allow_config_change: " in run.output(i)
