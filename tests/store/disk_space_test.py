import collections

import pytest
from etils import epath

from vit_jax.core.errors import UserError
from vit_jax.store import disk_space

Usage = collections.namedtuple("Usage", ["total", "used", "free"])
GIB = 2**30


@pytest.fixture
def check(tmp_path, monkeypatch):
    """`check_disk_space` by free space, for checkpoints of 1 GiB at steps 10, 20 ... 95."""

    def check(free_bytes, keep_last=2, there=(), folder=None):
        monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(0, 0, free_bytes))
        workdir = epath.Path(tmp_path if folder is None else folder)
        for step in there:
            (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
        disk_space.check_disk_space(
            workdir, checkpoint_bytes=GIB, keep_last=keep_last, every_steps=10, total_steps=95
        )

    return check


def test_one_more_than_is_kept_must_fit(check):
    check(3 * GIB)
    with pytest.raises(
        UserError, match=r"2 GiB free; 3 more checkpoints of 1 GiB need 3 GiB.*_last=2"
    ):
        check(2 * GIB)
    check(2 * GIB, keep_last=1)


def test_checkpoints_on_disk_needs_no_space(check):
    check(GIB, there=(10, 20))
    with pytest.raises(UserError, match="1 more"):
        check(GIB - 1)


def test_past_saves_need_no_space(check):
    check(0, there=(90, 95))


def test_a_run_that_saves_once_needs_space_for_one(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(0, 0, GIB))
    disk_space.check_disk_space(
        epath.Path(tmp_path), checkpoint_bytes=GIB, keep_last=2, every_steps=10, total_steps=7
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


def test_a_folder_whose_name_is_not_utf_8(tmp_path):
    with pytest.raises(UserError, match=r"udcff' is not UTF-8"):
        disk_space.check_writable(epath.Path(tmp_path / "\udcff"))


def test_a_bucket_needs_what_orbax_asks_about_it(monkeypatch):
    monkeypatch.setattr(disk_space, "has_google_storage", lambda: False)
    with pytest.raises(UserError, match=r"gs://bucket/run needs google-cloud-storage.*\.\[gcs\]"):
        disk_space.check_writable(epath.Path("gs://bucket/run"))
    monkeypatch.setattr(disk_space, "has_google_storage", lambda: True)
    disk_space.check_writable(epath.Path("gs://bucket/run"))
