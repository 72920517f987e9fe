"""Full disks, two preparations at once, and kills at random moments."""

import contextlib
import dataclasses
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.messages import refused
from tests.processes import wait_for
from tests.tools.prepare.conftest import jpeg, tar
from tests.tools.prepare.pipeline_test import files, prepared
from vit_jax.core.errors import UserError
from vit_jax.data.sources import tfds_writer
from vit_jax.tools.prepare import collection as collection_module
from vit_jax.tools.prepare import image_folder, imagenet, report_files, tasks
from vit_jax.tools.prepare.collection import CollectionRequest, PrepareOptions
from vit_jax.tools.prepare.pipeline import JOIN, WHOLE, WORK_DIR, Share


@pytest.fixture
def photos(tmp_path):
    """Photos, some of them rotated, so that copies are written."""
    from tests.tools.prepare.bad_images import exif

    for i in range(12):
        path = tmp_path / "photos" / f"class{i % 2}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(i, exif=exif(6 if i % 3 else 1)))
    return tmp_path / "photos"


def leftovers(folder):
    return list(folder.rglob("*.part"))


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
WRITES = ["options", "catalogue", "copies", "records", "note", "metadata"]


@pytest.mark.parametrize("write", WRITES)
def test_a_full_disk(tmp_path, photos, monkeypatch, write):
    def full(*_, **__):
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
        with refused("No space left"):
            prepared(collection, tmp_path / "out", PrepareOptions(shard_mib=0.02))
    assert not leftovers(tmp_path / "out")
    again = prepared(collection, tmp_path / "out", PrepareOptions(shard_mib=0.02))
    assert files(again.folder) == files(whole.folder)


@pytest.fixture
def small_disk(tmp_path):
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


def test_a_disk_that_grows_until_it_suffices(tmp_path, photos, small_disk, monkeypatch):
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


def test_a_second_preparation_at_once_is_refused(tmp_path, imagenet21k):
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
        with refused("wait for it"):
            prepared(collection, tmp_path)
        other.kill()
    prepared(collection, tmp_path)


def test_files_of_images_that_were_there_before_are_deleted(tmp_path, photos, monkeypatch):
    """The number of shards is another one, and a split is gone."""
    (photos / "val").mkdir()
    (photos / "class0").rename(photos / "val" / "class0")
    (photos / "train").mkdir()
    (photos / "class1").rename(photos / "train" / "class1")
    request, options = CollectionRequest(str(photos)), PrepareOptions(shard_mib=0.001)

    def interrupt(*_):
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


def test_a_damaged_finished_set_is_not_ready(tmp_path, imagenet21k):
    collection = imagenet.imagenet21k(CollectionRequest(str(imagenet21k)))
    data_set = prepared(collection, tmp_path)
    before = files(data_set.folder)
    shard = next(data_set.folder.glob("*train*-00000-*"))
    for damage, output in (
        (lambda: shard.write_bytes(shard.read_bytes()[:1000]), "has 1,000 bytes, and had"),
        (shard.unlink, "has 0 bytes, and had"),
        ((data_set.folder / "features.json").unlink, "features.json has 0 bytes"),
    ):
        damage()
        with refused(output):
            prepared(collection, tmp_path)
        (data_set.folder / "prepared.json").unlink()
        (data_set.folder / ".x.part").write_bytes(b"of a killed process")
        prepared(collection, tmp_path)
        assert files(data_set.folder) == before
    (data_set.folder / WORK_DIR / "options.json").write_text("{")
    with refused("options.json"):
        prepared(collection, tmp_path)


@pytest.mark.parametrize("machines", [1, 3])
def test_machines_that_are_stopped(tmp_path, photos, monkeypatch, machines):
    """They start in any order; whatever is missing is named, and nothing is done twice."""
    monkeypatch.setattr(image_folder, "IMAGES_PER_PART", 2)
    collection = image_folder.collection(CollectionRequest(str(photos)))
    (tmp_path / "test_set").mkdir()
    (tmp_path / "test_set" / "0.jpg").write_bytes(jpeg(3))
    options = PrepareOptions(
        shard_mib=0.001, splits="test=4,train=rest", drop_duplicates_of=(f"{tmp_path}/test_set",)
    )
    whole = prepared(collection, tmp_path / "whole", options)
    numbers, done = random.Random(0), []

    def stopping(run):
        def wrapped(task):
            if numbers.random() < 0.4:
                raise KeyboardInterrupt
            done.append(task)
            return run(task)

        return wrapped

    for name in ("read_part", "write_shard"):
        monkeypatch.setattr(tasks, name, stopping(getattr(tasks, name)))
    lacking, made = [], None
    while made is None:
        with contextlib.suppress(KeyboardInterrupt):
            share = Share(numbers.randint(1, machines), machines)
            made = prepared(collection, tmp_path / "out", options, share=share)
        if machines > 1:
            assert made is None
            try:
                made = prepared(collection, tmp_path / "out", options, share=JOIN)
            except UserError as error:
                assert error.field == "--join"
                lacking.append(str(error))
    assert files(made.folder) == files(whole.folder) and not leftovers(made.folder)
    num_shards = sum(len(split.shard_lengths) for split in whole.splits.values())
    assert len(done) == len(collection.parts) + 1 + num_shards and num_shards > 6
    for problem in ("checked of --part=", "written of --part="):
        assert any(problem in text for text in lacking) == (machines > 1)
    assert prepared(collection, tmp_path / "out", options).digest == made.digest


def test_other_shares_of_the_same_work_are_refused(tmp_path, photos):
    options = PrepareOptions(stratify=True, splits="test=4,train=rest")
    collection = image_folder.collection(CollectionRequest(str(photos)))
    with refused("--part"):
        prepared(collection, tmp_path / "out", options, share=JOIN)
    prepared(collection, tmp_path / "out", options, share=Share(1, 2))
    with refused("--part=2/2."):
        prepared(collection, tmp_path / "out", options, share=JOIN)
    others = dataclasses.replace(options, stratify=False)
    for given, share, named in (
        (options, Share(1, 3), "parts was 2"),
        (others, Share(2, 2), "stratify was True"),
        (others, JOIN, "stratify was True"),
        (options, WHOLE, "parts was 2"),
    ):
        with pytest.raises(UserError, match=named):
            prepared(collection, tmp_path / "out", given, share=share)
    (photos / "class0" / "0.jpg").write_bytes(jpeg(99))
    with pytest.raises(UserError, match="source was "):
        prepared(collection, tmp_path / "out", options, share=Share(2, 2))


@pytest.mark.parametrize("text", ["3", "0/3", "4/3", "1/0", "-1/3", "1/3/3", "1.0/3"])
def test_impossible_shares(text):
    with pytest.raises(UserError) as raised:
        Share.parse(text)
    assert (raised.value.field, raised.value.value) == ("--part", text)


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


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    (tmp_path / "working.py").write_text(WORKING)
    notes = [tmp_path / "1.pid", tmp_path / "2.pid"]
    with subprocess.Popen([sys.executable, tmp_path / "working.py", *notes]) as parent:
        wait_for(lambda: all(note.exists() and note.read_text() for note in notes))
        parent.kill()
    workers = [int(note.read_text()) for note in notes]
    wait_for(lambda: not any(_runs(pid) for pid in workers))


def _runs(pid):
    """Whether a process is running; a zombie is not."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def command(tmp_path):
    """The command for 1,200 images in 30 tars; without --output."""
    source = tmp_path / "tars"
    source.mkdir()
    for k, synset in enumerate(list(imagenet.synsets.names())[:30]):
        images = {f"{synset}_{i}.JPEG": jpeg(100 * k + i, (200, 150)) for i in range(40)}
        (source / f"{synset}.tar").write_bytes(tar(images))
    return [
        sys.executable, "-m", "vit_jax", "prepare", "imagenet21k", f"--source={source}",
        "--splits=test=50,train=rest", "--shard_mib=0.2", "--workers=2",
    ]  # fmt: skip


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path, command):
    """Kills all processes of the command, or only the parent."""
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
                    timeout=secs * (0.2 + 0.05 * attempt * numbers.random())
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


@pytest.mark.slow
def test_three_machines_killed_at_random_moments(tmp_path, command):
    """All three at once; each is killed in its first starts."""
    began = time.monotonic()
    subprocess.run([*command, f"--output={tmp_path / 'whole'}"], check=True, capture_output=True)
    secs = time.monotonic() - began
    command += [f"--output={tmp_path / 'shared'}"]
    numbers, kills = random.Random(1), 0

    def start(*flags):
        return subprocess.Popen(
            [*command, *flags], start_new_session=True, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    for attempt in range(6):
        machines = [start(f"--part={k}/3") for k in (1, 2, 3)]
        for machine in machines:
            # The last two starts are not disturbed: one checks, the other writes.
            limit = secs * numbers.uniform(0.2, 1.5) if attempt < 4 else None
            try:
                _, output = machine.communicate(timeout=limit)
                assert machine.returncode == 0, output
            except subprocess.TimeoutExpired:
                os.killpg(machine.pid, signal.SIGKILL)
                machine.communicate()
                kills += 1
        if not attempt:
            _, output = (join := start("--join")).communicate()
            assert join.returncode == 1 and "--part=" in output, output
    _, output = (join := start("--join")).communicate()
    assert join.returncode == 0 and kills > 2, output
    shared, whole = (tmp_path / name / "imagenet21k" / "1.0.0" for name in ("shared", "whole"))
    assert files(shared) == files(whole) and not leftovers(shared)
