import collections

import pytest
from etils import epath

from vit_jax.core.errors import UserError
from vit_jax.store import disk_space

Usage = collections.namedtuple("Usage", ["total", "used", "free"])
GB = 10**9


@pytest.fixture
def check(tmp_path, monkeypatch):
    """`check_room` for checkpoints of 1 GB at steps 10, 20 ... 95 on a disk with so much free."""

    def check(free_bytes, keep_last=2, there=(), folder=None):
        monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(0, 0, free_bytes))
        workdir = epath.Path(tmp_path if folder is None else folder)
        for step in there:
            (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
        disk_space.check_room(
            workdir, checkpoint_bytes=GB, keep_last=keep_last, every_steps=10, total_steps=95
        )

    return check


def test_one_more_than_are_kept_must_fit(check):
    check(3 * GB)
    with pytest.raises(
        UserError, match=r"2 GB free; 3 more checkpoints of 1 GB need 3 GB.*_last=2"
    ):
        check(2 * GB)
    check(2 * GB, keep_last=1)


def test_what_lies_there_needs_no_room(check):
    check(GB, there=(10, 20))
    with pytest.raises(UserError, match="1 more"):
        check(GB - 1)


def test_what_is_no_longer_saved_needs_none(check):
    check(0, there=(90, 95))


def test_a_run_that_saves_once_needs_room_for_one(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(0, 0, GB))
    disk_space.check_room(
        epath.Path(tmp_path), checkpoint_bytes=GB, keep_last=2, every_steps=10, total_steps=7
    )


def test_remote_folders_are_not_measured(check):
    check(0, folder="gs://bucket/run")


def test_writable_without_a_trace(tmp_path):
    disk_space.check_writable(epath.Path(tmp_path / "a" / "b"))
    assert not list(tmp_path.iterdir())


def test_not_writable(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "run", "/proc/run"):
        with pytest.raises(UserError, match=r"cannot be written: .*--workdir"):
            disk_space.check_writable(epath.Path(folder))


@pytest.mark.parametrize(("number", "text"), [(2e3, "2 kB"), (1.54e9, "1.54 GB"), (3e12, "3 TB")])
def test_size(number, text):
    assert disk_space.size(int(number)) == text
