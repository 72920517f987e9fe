"""A storage that fails for a moment, which a run survives; one that fails for good."""

import pytest

from tests.cloud.conftest import TINY, said
from tests.cloud.storage import Fault

pytestmark = pytest.mark.slow  # processes that train

BRIEF = {"GCS_REQUEST_IDLE_TIMEOUT_SECS": "2", "TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS": "2"}


def test_what_passes_is_survived(storage, command):
    """Throttled, unavailable, hanging, torn; each at the libraries that write and read there."""
    run, state = "gs://bucket/stormy", "stormy/checkpoints/.*/state/.+"
    storage.faults = [
        Fault("upload stormy/metrics.jsonl", status=429, times=2),
        Fault("upload stormy/metrics.jsonl", status=503, skip=3),
        Fault("upload stormy/.*config.*", cut=True),
        Fault("list stormy/.*", status=503, times=2, skip=1),
        Fault("stat stormy/.*", status=429, times=2, skip=2),
        Fault(f"upload {state}", status=429),
        Fault(f"upload {state}", status=503),
        Fault(f"upload {state}", cut=True),
        Fault(f"upload {state}", wait_secs=6),
        Fault("upload stormy/checkpoints/.*/commit_success.txt", status=503),
        Fault("bucket .*", status=503),
    ]
    result = command("train", *TINY, f"--workdir={run}", **BRIEF)
    assert result.returncode == 0, result.stdout + result.stderr
    assert said(result) == ""
    assert not storage.unmet()
    storage.faults = [
        Fault(f"read {state}", status=503, times=2),
        Fault(f"read {state}", cut=True, times=2, skip=1),
        Fault("list stormy/.*", status=429),
        Fault("read stormy/.*description.*", cut=True),
    ]
    result = command("evaluate", f"--checkpoint={run}", **BRIEF)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "test" in result.stdout
    assert not storage.unmet()


@pytest.mark.parametrize(
    ("asked", "status", "message"),
    [
        ("list forbidden/.*", 403, "403"),
        ("upload forbidden/metrics.jsonl", 403, "403"),
        ("upload forbidden/checkpoints/.*/state/.+", 403, "A checkpoint could not be saved"),
        ("upload forbidden/checkpoints/.*/commit_success.txt", 403, "A checkpoint could not be"),
        ("bucket .*", 403, "403"),
    ],
)
def test_what_does_not_pass_is_one_message(storage, command, asked, status, message):
    storage.faults = [Fault(asked, status=status, times=10**6)]
    result = command("train", *TINY, "--workdir=gs://bucket/forbidden")
    assert result.returncode == 1, result.stdout + result.stderr
    assert said(result).startswith("error: ")
    assert message in said(result)
    assert "Traceback" not in said(result)
    assert said(result).count("\n") == 1


def test_checkpoints_that_cannot_be_listed_are_not_taken_for_none(storage, command):
    training = ("train", *TINY, "--workdir=gs://bucket/listed")
    first = command(*training, "--config.checkpoint.every_steps=12")
    assert first.returncode == 0, first.stderr
    storage.faults = [Fault("(stat|list) listed/checkpoints/?", status=403, times=10**6)]
    result = command(*training, "--config.checkpoint.every_steps=12")
    assert result.returncode == 1
    assert "403" in said(result)
    assert "listed/checkpoints/12/commit_success.txt" in storage.names()


def test_an_unknown_bucket_is_one_message(command):
    result = command("train", *TINY, "--workdir=gs://no-such-bucket/run")
    assert result.returncode == 1
    assert "no-such-bucket" in said(result)
    assert said(result).count("\n") == 1
