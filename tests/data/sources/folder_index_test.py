"""The index of an image folder changes nothing but the cost of a start."""

import itertools
import multiprocessing
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from tests.data.sources.image_folder_test import fill
from vit_jax.core.class_names import normal
from vit_jax.data import files
from vit_jax.data.source import Request, digest
from vit_jax.data.sources import folder_index, image_folder
from vit_jax.data.sources.image_folder import ImageFolder

SETTLED_SECS = 0.05  # above the unit of files' times


@pytest.fixture(autouse=True)
def listings(monkeypatch, tmp_path_factory):
    """Indexes folders of a few images, soon, on any file system; has an item for each listing."""
    monkeypatch.setattr(folder_index, "MIN_FILES", 10)
    monkeypatch.setattr(folder_index, "SETTLED_SECS", SETTLED_SECS)
    monkeypatch.setattr(folder_index, "_file_systems", lambda folders: {"ext4"})
    monkeypatch.setenv("VIT_JAX_CACHE", str(tmp_path_factory.mktemp("cache")))
    listings = []

    class Lister(image_folder._Lister):
        def __init__(self):
            super().__init__()
            listings.append(self)

    monkeypatch.setattr(image_folder, "_Lister", Lister)
    return listings


@pytest.fixture
def folder(tmp_path):
    for split, name in itertools.product(("train", "val"), ("10", "cat", "Ka\u0308se", "ro ck")):
        fill(tmp_path / "data" / split / name, [f"{i}.jpg" for i in range(6)])
    fill(tmp_path / "data/train/cat", ["o\u0308.jpg", "a\nb.png", "no image.txt", "x y 12"])
    (tmp_path / "data/train/cat" / os.fsdecode(b"\xff\xfe.jpg")).write_bytes(b"cat/not UTF-8")
    fill(tmp_path / "data/train/cat/deeper/still", ["0.jpg"])
    fill(tmp_path / "data/.hidden/below", ["0.jpg"])
    return tmp_path / "data"


def create(folder, split="train", **options):
    return ImageFolder(Request(split, str(folder), **options))


def create_settled(folder, split="train", **options):
    time.sleep(2 * SETTLED_SECS)
    return create(folder, split, **options)


@pytest.fixture
def is_indexed(listings):
    """Whether opening the folder takes its index."""

    def opened(*arguments, **options):
        listings.clear()
        create(*arguments, **options)
        return not listings

    return opened


def indexes(folder):
    return sorted(folder.glob(".vit_jax-*"))


def shown(source):
    """All that a source tells."""
    labels = source.stored_labels()
    return [
        source.class_names, source.num_classes, source.num_examples, source.fingerprint,
        source.part, source.notes, source.file_names(), source.stamp(), source.location,
        [source.describe(i) for i in range(source.num_examples)], labels.labels.tolist(),
        labels.offsets.tolist(), source.read(np.arange(source.num_examples)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("below", "split", "labelled"),
    [
        ("", "train", True), ("", "train[3:-2]", True), ("", "val[:50%]", True),
        ("train", "train", True), ("train", "val", True), ("val", "all", True),
        ("", "train", False), ("", "train[2:]", False), ("train/..", "val", False),
        ("train", "all", False),
    ],
)  # fmt: skip
def test_nothing_differs_with_the_index(folder, below, split, labelled, listings):
    folder_index.MIN_FILES = 1
    before, after = (create_settled(folder / below, split, labelled=labelled) for _ in range(2))
    assert len(listings) == 1
    assert shown(before) == shown(after)


def test_the_fingerprint_is_that_of_classes_names_and_sizes(folder):
    for _ in range(2):
        source = create_settled(folder, "train[1:9]")
        paths = map(source.describe, range(8))
        lines = [
            f"{normal(Path(path).parent.name)}/{Path(path).name} {os.path.getsize(path)}"
            for path in paths
        ]
        expected = digest(normal("\n".join([*source.class_names, *lines])))
        assert source.fingerprint == expected


def exchange(folder):
    (folder / "train/cat/0.jpg").rename(folder / "x")
    (folder / "train/10/0.jpg").rename(folder / "train/cat/0.jpg")
    (folder / "x").rename(folder / "train/10/0.jpg")


def set_back(folder):
    """As rsync and tar do."""
    before = folder.stat()
    fill(folder, ["new.jpg"])
    os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace_by(folder, create):
    (folder / "0.jpg").unlink()
    create(folder / "0.jpg")


CHANGES = {
    "added": lambda f: fill(f / "train/cat", ["new.jpg"]),
    "removed": lambda f: (f / "train/cat/0.jpg").unlink(),
    "renamed": lambda f: (f / "train/cat/0.jpg").rename(f / "train/cat/new.jpg"),
    "moved": lambda f: (f / "train/cat/0.jpg").rename(f / "train/10/new.jpg"),
    "exchanged": exchange,
    "a folder for a file": lambda f: replace_by(f / "train/cat", Path.mkdir),
    "a link for a file": lambda f: replace_by(
        f / "train/cat", lambda path: path.symlink_to(f / "train/10/0.jpg")
    ),
    "a class": lambda f: fill(f / "train/new", ["0.jpg"]),
    "a class renamed": lambda f: (f / "train/cat").rename(f / "train/dog"),
    "a class removed": lambda f: shutil.rmtree(f / "train/ro ck"),
    "a split": lambda f: fill(f / "test/cat", ["0.jpg"]),
    "beside": lambda f: fill(f, ["0.jpg"]),
    "deeper": lambda f: fill(f / "train/cat/deeper/still", ["1.jpg"]),
    "hidden": lambda f: fill(f / ".hidden/below", ["1.jpg"]),
    "times set back": lambda f: set_back(f / "train/cat"),
    "grown in place": lambda f: (f / "train/cat/0.jpg").write_bytes(b"longer than before"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(folder, change, listings):
    create_settled(folder)
    create(folder)
    assert len(listings) == 1
    CHANGES[change](folder)
    source = create(folder)
    assert len(listings) == 2
    for index in indexes(folder):
        index.unlink()
    assert shown(source) == shown(create(folder))
    assert len(listings) == 3


def test_links_to_classes_are_followed(folder, is_indexed):
    elsewhere, other = folder.with_name("elsewhere"), folder.with_name("other")
    (folder / "train/cat").rename(elsewhere)
    (folder / "train/cat").symlink_to(elsewhere)
    create_settled(folder)
    assert is_indexed(folder)
    fill(elsewhere, ["new.jpg"])
    assert "new.jpg" in create_settled(folder).file_names()
    assert is_indexed(folder)
    shutil.copytree(elsewhere, other)
    (folder / "train/cat").unlink()
    (folder / "train/cat").symlink_to(other)
    assert not is_indexed(folder)


@pytest.mark.parametrize("place", ["train/cat", ""])
def test_a_folder_that_changes_while_it_is_listed(folder, monkeypatch, place):
    """What is added behind the listing is seen by the next start."""
    time.sleep(2 * SETTLED_SECS)
    list_folder = files.list_folder

    def then_add(listed):
        entries = list_folder(listed)
        if Path(listed) == folder / "train/ro ck":
            fill(folder / place / "new" if not place else folder / place, ["new.jpg"])
        return entries

    with monkeypatch.context() as patch:
        patch.setattr(files, "list_folder", then_add)
        create(folder)
    assert not indexes(folder)


def test_what_cannot_show_a_change_is_not_indexed(folder, monkeypatch):
    """Folders that have just changed, FUSE, few files, links to files."""
    time.sleep(2 * SETTLED_SECS)
    fill(folder / "train/cat", ["new.jpg"])
    create(folder)
    assert not indexes(folder)
    for name, value in (("_file_systems", lambda folders: {"fuse.s3fs"}), ("MIN_FILES", 1000)):
        with monkeypatch.context() as patch:
            patch.setattr(folder_index, name, value)
            create_settled(folder)
        assert not indexes(folder)
    (folder / "train/cat/link.jpg").symlink_to(folder / "train/cat/0.jpg")
    create_settled(folder)
    assert not indexes(folder)
    (folder / "train/cat/link.jpg").unlink()
    create_settled(folder)
    assert indexes(folder)


def test_a_damaged_index_counts_as_none(tmp_path):
    """It is written anew."""
    for name in "ab":
        fill(tmp_path / name, [f"{i}.jpg" for i in range(6)])
    expected = shown(create_settled(tmp_path))
    (path,) = indexes(tmp_path)
    whole = path.read_bytes()
    index = folder_index.FolderIndex(str(tmp_path), "train", code=image_folder.__file__)
    assert index.read() is not None
    used = 0
    for place in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        listing = index.read()
        if listing is not None:  # a byte that means nothing, such as a time in the archive
            used += 1
            assert listing.fingerprint() == expected[3]
            paths = [listing.image(i)[0] for i in range(len(listing.places))]
            assert paths == expected[9]
            assert listing.image_labels().tolist() == expected[10]
    assert used < len(whole) / 12
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert index.read() is None
    for arrays in ({}, {"about": np.frombuffer(b"{}", np.uint8)}, {"about": np.arange(3)}):
        np.savez(path.open("wb"), **arrays)
        assert index.read() is None
    path.write_bytes(whole[:100])
    assert shown(create_settled(tmp_path)) == expected
    assert index.read() is not None
    path.unlink()
    path.mkdir()
    assert shown(create_settled(tmp_path)) == expected


def test_an_index_of_another_folder_does_not_count(folder, is_indexed):
    """A copy has other inodes and times."""
    create_settled(folder)
    shutil.copytree(folder, folder.with_name("copy"))
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)
    assert indexes(folder) and not is_indexed(folder)


def test_a_folder_that_cannot_be_written(folder, monkeypatch, is_indexed):
    """The user's cache is taken; without that one there is no index."""
    folder.chmod(0o555)
    listed = create_settled(folder)
    assert is_indexed(folder) and shown(create(folder)) == shown(listed)
    assert not indexes(folder)
    folder.chmod(0o755)
    fill(folder / "train/cat", ["new.jpg"])
    assert not is_indexed(folder)

    def refuse(path, **arrays):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(files, "write_npz", refuse)
    shutil.rmtree(os.environ["VIT_JAX_CACHE"])
    create_settled(folder)
    assert not is_indexed(folder)


def _open(folder, barrier, results):
    folder_index.MIN_FILES, folder_index.SETTLED_SECS = 10, SETTLED_SECS
    folder_index._file_systems = lambda folders: {"ext4"}
    barrier.wait()
    for _ in range(5):
        results.put(create(Path(folder)).fingerprint)


def test_processes_that_write_at_once_do_not_disturb_each_other(folder, is_indexed):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    workers = [
        context.Process(target=_open, args=(str(folder), barrier, results)) for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    fingerprints = {results.get(timeout=300) for _ in range(10)}
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert is_indexed(folder) and len(indexes(folder)) == 1
    assert fingerprints == {create(folder).fingerprint}
