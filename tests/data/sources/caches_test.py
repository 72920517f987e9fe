import concurrent.futures
import errno
import os
from pathlib import Path

import numpy as np
import pytest

from tests.messages import refused
from vit_jax.data import files
from vit_jax.data.in_memory import InMemory, check_fits_in_memory
from vit_jax.data.source import Example
from vit_jax.data.sources import records

SIZE_BYTES = 700 + 300  # bytes per example, overhead included


@pytest.fixture
def source(list_source):
    return list_source([Example(b"%4d" % i + bytes(696), (i % 10,)) for i in range(100)])


@pytest.fixture
def reads(source, monkeypatch):
    """Examples read from the source from now on."""
    seen = []
    read = source.read

    def remember(indices):
        seen.extend(indices.tolist())
        return read(indices)

    monkeypatch.setattr(source, "read", remember)
    return seen


def test_every_example_is_read_once(source, reads):
    cached = InMemory(source, limit_bytes=10**6)
    for indices in ([3, 1], [1, 2, 3], [2, 2, 50], list(range(100)), [99]):
        expected = [b"%4d" % i for i in indices]
        assert [e.image[:4] for e in cached.read(np.array(indices))] == expected
    assert reads[:4] == [3, 1, 2, 50]
    assert len(reads) == 100 and set(reads) == set(range(100))


def test_memory_stays_below_the_limit(source, reads):
    cached = InMemory(source, limit_bytes=10 * SIZE_BYTES + 999)
    everything = np.arange(100)
    assert cached.read(everything) == cached.read(everything)
    assert len(reads) == 100 + 90


def test_threads_do_not_disturb_each_other(source, reads):
    cached = InMemory(source, limit_bytes=10 * SIZE_BYTES)
    orders = [np.random.default_rng(i).permutation(100) for i in range(50)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for order, examples in zip(orders, pool.map(cached.read, orders), strict=True):
            assert [int(e.image[:4]) for e in examples] == order.tolist()
    assert len(reads) >= 100 + 49 * 90 - 8 * 100


def test_a_cache_that_does_not_fit_is_refused_with_numbers(source):
    check_fits_in_memory(source, limit_bytes=100 * SIZE_BYTES)
    with refused("100,000", "99,999", "input.cache_bytes"):
        check_fits_in_memory(source, limit_bytes=100 * SIZE_BYTES - 1)


CONTENT = {"x-00": b"one" * 1000, "x-01": b"two" * 500, "x-02": b""}
TOTAL_BYTES = 4500


@pytest.fixture
def originals(tmp_path):
    (tmp_path / "far").mkdir()
    for name, data in CONTENT.items():
        (tmp_path / "far" / name).write_bytes(data)
    return [str(tmp_path / "far" / name) for name in CONTENT]


@pytest.fixture
def copied(monkeypatch):
    """Names of the files copied from now on."""
    seen = []
    copy = files.copy
    monkeypatch.setattr(
        files, "copy", lambda path, *rest: (seen.append(Path(path).name), copy(path, *rest))
    )
    return seen


def cache(tmp_path, limit_bytes=None):
    return records.FileCache(tmp_path / "near", limit_bytes, lambda done, of: None)


def copies(file_cache, originals, content=""):
    sizes = [Path(path).stat().st_size for path in originals]
    return records.copies(file_cache, "x", content, originals, sizes)


def test_files_are_copied_once(tmp_path, originals, copied):
    seen = []
    file_cache = cache(tmp_path)._replace(progress=lambda done, of: seen.append((done, of)))
    for _ in range(2):
        paths = copies(file_cache, originals)
        assert [Path(path).read_bytes() for path in paths] == list(CONTENT.values())
    assert sorted(copied) == sorted(CONTENT)
    assert seen[-1] == (TOTAL_BYTES, TOTAL_BYTES)
    left = {path.name for path in Path(paths[0]).parent.iterdir()}
    assert left == {*CONTENT, ".lock"}


def test_a_copy_that_is_not_complete_is_made_again(tmp_path, originals, copied):
    paths = copies(cache(tmp_path), originals)
    Path(paths[1]).write_bytes(b"tw")
    left = Path(paths[0]).with_name(".x-00.0123.part")
    left.write_bytes(b"of a process that was killed")
    copied.clear()
    copies(cache(tmp_path), originals)
    assert copied == ["x-01"] and not left.exists()
    assert Path(paths[1]).read_bytes() == CONTENT["x-01"]


def test_a_file_that_is_written_again_is_copied_again(tmp_path, originals, copied):
    (path, *_) = copies(cache(tmp_path), originals)
    after = Path(path).stat().st_mtime + 1
    Path(originals[0]).write_bytes(b"two" * 1000)
    os.utime(originals[0], (after, after))
    copied.clear()
    (path, *_) = copies(cache(tmp_path), originals)
    assert copied == ["x-00"] and Path(path).read_bytes() == b"two" * 1000


def test_contents_of_one_size_have_copies_of_their_own(tmp_path, originals):
    """Even where times do not tell them apart, as those of a bucket."""
    one = copies(cache(tmp_path), originals, "one")
    Path(originals[0]).write_bytes(b"two" * 1000)
    os.utime(originals[0], (0, 0))
    other = copies(cache(tmp_path), originals, "two")
    assert [Path(paths[0]).read_bytes()[:3] for paths in (one, other)] == [b"one", b"two"]


def test_several_at_once_copy_once(tmp_path, originals, copied):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: copies(cache(tmp_path), originals), range(4)))
    assert results == [results[0]] * 4
    assert sorted(copied) == sorted(CONTENT)


def test_a_limit_of_all_that_lies_there(tmp_path, originals):
    copies(cache(tmp_path, TOTAL_BYTES), originals[1:])
    with refused("input.cache_bytes"):
        copies(cache(tmp_path, TOTAL_BYTES - 1), originals)
    copies(cache(tmp_path, TOTAL_BYTES), originals)


def test_copies_that_cannot_be_made(tmp_path, originals, monkeypatch):
    for size, names in ((10**15, ["input.cache"]), (3001, ["x-00"])):  # no room; it has changed
        with refused(*names):
            records.copies(cache(tmp_path), "x", "", originals, [size, 1500, 0])

    def copy(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, refused("input.cache"):
        patch.setattr(files, "copy", copy)
        copies(cache(tmp_path), originals)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "near").write_text("a file")
    with refused("input.cache"):
        copies(cache(tmp_path / "other"), originals)


def test_sets_of_one_name_in_two_places(tmp_path, originals):
    paths = copies(cache(tmp_path), originals)
    other = tmp_path / "other" / "x-00"
    other.parent.mkdir()
    other.write_bytes(b"1" * 3000)
    (path,) = copies(cache(tmp_path), [str(other)])
    assert path != paths[0] and Path(path).read_bytes() == b"1" * 3000
