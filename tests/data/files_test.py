"""File systems in memory: TensorFlow's, ram://, stands for gs://, and fsspec's for s3://."""

import errno
import uuid
from pathlib import Path

import fsspec
import numpy as np
import pytest

from tests.messages import refused
from vit_jax.core.errors import UserError
from vit_jax.data import files
from vit_jax.data.host_tf import tf
from vit_jax.data.source import Request
from vit_jax.data.sources.image_folder import ImageFolder


@pytest.fixture
def remote():
    folder = f"ram://{uuid.uuid4().hex}"
    for name in ("b/2.png", "b/1.png", "a/0.png", "x.txt"):
        tf.io.gfile.makedirs(files.join(folder, name).rpartition("/")[0])
        with tf.io.gfile.GFile(files.join(folder, name), "wb") as file:
            file.write(name.encode())
    return folder


@pytest.fixture
def elsewhere():
    folder = f"memory://{uuid.uuid4().hex}"
    for name in ("b/2.png", "b/1.png", "a/0.png", "x.txt"):
        with fsspec.open(files.join(folder, name), "wb") as file:
            file.write(name.encode())
    return folder


@pytest.fixture
def local(tmp_path):
    for name in ("b/2.png", "b/1.png", "a/0.png", "x.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return str(tmp_path)


@pytest.fixture(params=["remote", "elsewhere", "local"])
def folder(request):
    return request.getfixturevalue(request.param)


def test_folders_and_files(folder):
    assert [entry.name for entry in files.list_folder(folder)] == ["a", "b", "x.txt"]
    assert [entry.is_folder for entry in files.list_folder(folder)] == [True, True, False]
    assert files.list_folder(folder)[2].size_bytes == 5
    assert files.subfolders(folder) == ["a", "b"]
    assert files.is_folder(folder) and not files.is_folder(files.join(folder, "nothing"))
    assert files.glob(folder, "*/1.png") == [files.join(folder, "b/1.png")]
    paths = [files.join(folder, name) for name in ("x.txt", "nothing", "b/2.png")]
    assert files.sizes(paths) == [5, None, 7]
    assert files.read(paths[2]) == b"b/2.png"


def test_missing_files_are_refused(folder):
    with pytest.raises(FileNotFoundError):
        files.read(files.join(folder, "nothing"))
    with pytest.raises(FileNotFoundError):
        files.list_folder(files.join(folder, "nothing"))


def test_image_folders_may_be_remote(remote, local):
    (Path(local) / "x.txt").unlink()
    actual, expected = (ImageFolder(Request("train", root)) for root in (remote, local))
    assert actual.fingerprint == expected.fingerprint
    everything = np.arange(actual.num_examples)
    assert actual.read(everything) == expected.read(everything)
    assert actual.describe(0).startswith("ram://")


def failing(times, error):
    """A function that fails `times` times, then works."""
    errors = [error] * times

    def action():
        if errors:
            raise errors.pop()
        return "read"

    return action


PASSING = [
    OSError(errno.EIO, "Input/output error"),
    TimeoutError("timed out"),
    ConnectionResetError("reset"),
    tf.errors.UnavailableError(None, None, "try later"),
    tf.errors.DeadlineExceededError(None, None, "too slow"),
    RuntimeError("UNAVAILABLE: try later"),
]


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_transient_errors_are_retried(error):
    assert files.retried("gs://x/y", failing(2, error)) == "read"
    with refused():
        files.retried("gs://x/y", failing(3, error))


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "no such file"),
        PermissionError(errno.EACCES, "denied"),
        RuntimeError("corrupt chunk"),
        tf.errors.PermissionDeniedError(None, None, "denied"),
        UserError("x is corrupt"),
    ],
    ids=repr,
)
def test_permanent_errors_are_raised_at_once(error):
    with pytest.raises(type(error)):
        files.retried("gs://x/y", failing(1, error))
