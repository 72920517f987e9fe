"""Training with its work directory in a bucket: killed, resumed, in spite of failures."""

import json

import pytest

from tests.cloud.conftest import TINY, said

pytestmark = pytest.mark.slow  # processes that train


def checksums(storage, run, step=12):
    metadata = f"{run}/checkpoints/{step}/description/metadata"
    return {n: a["checksum"] for n, a in json.loads(storage.read(metadata))["arrays"].items()}


def losses(storage, run):
    rows = [json.loads(line) for line in storage.read(f"{run}/metrics.jsonl").splitlines()]
    return [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]


@pytest.fixture(scope="module")
def straight(bucket, run_python):
    """The name of a run that nothing disturbed."""
    bucket.faults = []
    result = run_python(
        "-m", "vit_jax.train", *TINY, "--workdir=gs://bucket/straight", **bucket.env
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "saved    gs://bucket/straight/checkpoints/12" in result.stdout
    assert said(result) == ""
    return "straight"


def test_what_a_run_leaves(storage, straight):
    names = storage.names("straight/")
    for name in (
        "config.json",
        "metrics.jsonl",
        "parameters.txt",
        "checkpoints/12/commit_success.txt",
    ):
        assert f"straight/{name}" in names
    (events,) = [n for n in names if "tfevents" in n]
    assert len(storage.read(events)) > 500
    assert not [n for n in names if n.endswith((".part", ".lock", ".writable_0"))]
    assert [step for step, _ in losses(storage, straight)] == [2, 4, 6, 8, 10, 12]


def test_killed_twice_while_saving_then_the_same_bits(storage, straight, command, killed_at):
    run = "killed"
    training = ("train", *TINY, f"--workdir=gs://bucket/{run}")
    for moment in ("state/.+", "commit_success.txt"):
        request = f"upload {run}/checkpoints/8/{moment}"
        assert "step 8/12" in killed_at(request, *training)
    again = command(*training)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "resumed  from the checkpoint of step 4" in again.stdout
    assert checksums(storage, run) == checksums(storage, straight)
    assert losses(storage, run) == losses(storage, straight)
