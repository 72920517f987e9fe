"""Full disks, two preparations at once, and kills at random moments."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.messages import refused
from tests.tools.prepare.conftest import jpeg, tar
from tests.tools.prepare.pipeline_test import files, prepared
from vit_jax.core.errors import UserError
from vit_jax.data.sources import tfds_writer
from vit_jax.tools.prepare import collection as collection_module
from vit_jax.tools.prepare import image_folder, imagenet, report_files, tasks
from vit_jax.tools.prepare.collection import CollectionRequest, PrepareOptions
from vit_jax.tools.prepare.pipeline import WORK_DIR


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Photos, some of them rotated, so that copies are written."""
    from tests.tools.prepare.bad_images import exif

    for i in range(12):
        path = tmp_path / "photos" / f"class{i % 2}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(i, exif=exif(6 if i % 3 else 1)))
    return tmp_path / "photos"


def leftovers(folder: Path) -> list[Path]:
    return list(folder.rglob("*.part"))


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
WRITES = ["options", "catalogue", "copies", "records", "note", "metadata"]


@pytest.mark.parametrize("write", WRITES)
def test_a_full_disk(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise FULL

    collection = image_folder.collection(CollectionRequest(str(photos)))
    whole = prepared(collection, tmp_path / "whole", PrepareOptions(shard_mib=0.02))
    with monkeypatch.context() as patch:
        if write == "catalogue":
            patch.setattr(collection_module.pq, "write_table", full)
        elif write == "copies":
            patch.setattr(tasks.ImageCopies, "keep", full)
        elif write == "records":
            patch.setattr(tfds_writer, "write_records", full)
        elif write == "metadata":
            patch.setattr(tfds_writer, "write_metadata", full)
        else:
            plain = Path.write_bytes
            of_it = "options.json" if write == "options" else ".json"
            patch.setattr(
                Path, "write_bytes",
                lambda path, *a: full() if of_it in path.name else plain(path, *a),
            )  # fmt: skip
        with refused():
            prepared(collection, tmp_path / "out", PrepareOptions(shard_mib=0.02))
    assert not leftovers(tmp_path / "out")
    again = prepared(collection, tmp_path / "out", PrepareOptions(shard_mib=0.02))
    assert files(again.folder) == files(whole.folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        pytest.skip("only root can make a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_grows_until_it_suffices(
    tmp_path: Path, photos: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = image_folder.collection(CollectionRequest(str(photos)))
    whole = prepared(collection, tmp_path / "whole", PrepareOptions(shard_mib=0.02))
    # Otherwise too little space would already be an error at the start.
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("", (), {"free": 2**40}))
    failed = 0
    for kib in range(16, 1024, 16):
        subprocess.run(["mount", "-o", f"remount,size={kib}k", str(small_disk)], check=True)
        try:
            data_set = prepared(collection, small_disk, PrepareOptions(shard_mib=0.02))
        except UserError as error:
            assert isinstance(error.__cause__, OSError) and not leftovers(small_disk)
            assert error.__cause__.errno == errno.ENOSPC
            failed += 1
        else:
            break
    assert failed > 2 and files(data_set.folder) == files(whole.folder)


def test_a_second_preparation_at_once_is_refused(tmp_path: Path, imagenet21k: Path) -> None:
    collection = imagenet.imagenet21k(CollectionRequest(str(imagenet21k)))
    work = tmp_path / "imagenet21k" / "1.0.0" / WORK_DIR
    work.mkdir(parents=True)
    held = (
        f"import filelock, sys; lock = filelock.FileLock({str(work / 'lock')!r}); lock.acquire(); "
    )
    with subprocess.Popen(
        [sys.executable, "-c", held + "print('held', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with refused():
            prepared(collection, tmp_path)
        other.kill()
    prepared(collection, tmp_path)


def test_a_truncated_file_is_written_again(tmp_path: Path, imagenet21k: Path) -> None:
    collection = imagenet.imagenet21k(CollectionRequest(str(imagenet21k)))
    data_set = prepared(collection, tmp_path)
    before = files(data_set.folder)
    shard = next(data_set.folder.glob("*train*-00000-*"))
    shard.write_bytes(shard.read_bytes()[:1000])
    (data_set.folder / "prepared.json").unlink(missing_ok=True)  # the set is not ready
    (data_set.folder / ".x.part").write_bytes(b"of a killed process")
    prepared(collection, tmp_path)
    assert files(data_set.folder) == before


def test_files_of_images_that_were_there_before_are_deleted(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of shards is another one, and a split is gone."""
    (photos / "val").mkdir()
    (photos / "class0").rename(photos / "val" / "class0")
    (photos / "train").mkdir()
    (photos / "class1").rename(photos / "train" / "class1")
    request, options = CollectionRequest(str(photos)), PrepareOptions(shard_mib=0.001)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(report_files, "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepared(image_folder.collection(request), tmp_path / "out", options)
    assert (tmp_path / "out" / "image_folder" / "1.0.0" / "labels-val.npz").exists()
    shutil.rmtree(photos / "val")
    (photos / "train" / "class1" / "1.jpg").unlink()
    again = prepared(image_folder.collection(request), tmp_path / "out", options)
    whole = prepared(image_folder.collection(request), tmp_path / "whole", options)
    assert files(again.folder) == files(whole.folder)


def test_a_damaged_finished_set_is_not_ready(tmp_path: Path, imagenet21k: Path) -> None:
    collection = imagenet.imagenet21k(CollectionRequest(str(imagenet21k)))
    data_set = prepared(collection, tmp_path)
    before = files(data_set.folder)
    shard = next(data_set.folder.glob("*train*-00000-*"))
    for damage, output in (
        (lambda: shard.write_bytes(shard.read_bytes()[:1000]), "is 1,000 bytes, and had"),
        (shard.unlink, "is missing, and had"),
        ((data_set.folder / "features.json").unlink, "features.json is missing"),
    ):
        damage()
        with refused(output):
            prepared(collection, tmp_path)
        (data_set.folder / "prepared.json").unlink()
        prepared(collection, tmp_path)
        assert files(data_set.folder) == before


def test_damaged_options(tmp_path: Path, imagenet21k: Path) -> None:
    collection = imagenet.imagenet21k(CollectionRequest(str(imagenet21k)))
    data_set = prepared(collection, tmp_path)
    (data_set.folder / WORK_DIR / "options.json").write_text("{")
    with refused("options.json"):
        prepared(collection, tmp_path)


WORKING = """
import sys, time
from pathlib import Path
from vit_jax.tools.prepare.tasks import process_runner

def task(path):
    import os
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)

if __name__ == "__main__":
    list(process_runner(2)(task, sys.argv[1:]))
"""


def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "working.py").write_text(WORKING)
    notes = [tmp_path / "1.pid", tmp_path / "2.pid"]
    with subprocess.Popen([sys.executable, tmp_path / "working.py", *notes]) as parent:
        _wait_for(lambda: all(note.exists() and note.read_text() for note in notes))
        parent.kill()
    workers = [int(note.read_text()) for note in notes]
    _wait_for(lambda: not any(_runs(pid) for pid in workers))


def _runs(pid: int) -> bool:
    """Whether a process is running; a zombie is not."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def _wait_for(condition: Callable[[], bool], timeout_secs: float = 60) -> None:
    end = time.monotonic() + timeout_secs
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Kills all processes of the command, or only the parent."""
    source = tmp_path / "tars"
    source.mkdir()
    for k, synset in enumerate(list(imagenet.synsets.names())[:30]):
        images = {f"{synset}_{i}.JPEG": jpeg(100 * k + i, (200, 150)) for i in range(40)}
        (source / f"{synset}.tar").write_bytes(tar(images))
    command = [
        sys.executable, "-m", "vit_jax", "prepare", "imagenet21k", f"--source={source}",
        "--splits=test=50,train=rest", "--shard_mib=0.2", "--workers=2",
    ]  # fmt: skip
    began = time.monotonic()
    subprocess.run([*command, f"--output={tmp_path / 'whole'}"], check=True, capture_output=True)
    secs = time.monotonic() - began
    numbers, kills = random.Random(0), 0
    for attempt in range(60):
        with subprocess.Popen(
            [*command, f"--output={tmp_path / 'killed'}"],
            start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            try:
                _, output = process.communicate(
                    timeout=secs * (0.3 + 0.03 * attempt * numbers.random())
                )
                assert process.returncode == 0, output.decode()
                break
            except subprocess.TimeoutExpired:
                kills += 1
                if attempt % 2:
                    os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.kill()
                    time.sleep(1)
    assert kills > 2
    killed, whole = (
        files(tmp_path / name / "imagenet21k" / "1.0.0") for name in ("killed", "whole")
    )
    assert killed == whole
