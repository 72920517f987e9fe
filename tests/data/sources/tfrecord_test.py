import struct
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from tests.messages import refused
from vit_jax.data.host_tf import tf
from vit_jax.data.sources import records
from vit_jax.data.sources.records import TFRecords, masked_crc32c, record_offsets

RECORDS = [b"first", b"", b"x" * 1000, b"trailing zeros\0\0"]


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file written by TensorFlow."""
    path = tmp_path / "data" / "x.tfrecord"
    path.parent.mkdir()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in RECORDS:
            writer.write(record)
    return path


def caches(file: Path) -> list[Path]:
    return list(file.parent.glob(".vit_jax/*"))


def test_reads_what_tensorflow_wrote(file: Path) -> None:
    records = TFRecords([file], [4])
    assert records.read(0, [3, 0, 2, 1, 0]) == [RECORDS[i] for i in (3, 0, 2, 1, 0)]


def test_checksum_is_the_published_one() -> None:
    # RFC 3720, B.4: the CRC-32C of 32 zero bytes is 8A9136AA.
    assert google_crc32c.value(bytes(32)) == 0x8A9136AA
    rotated = ((0x8A9136AA >> 15) | (0x8A9136AA << 17)) & 0xFFFFFFFF
    assert masked_crc32c(bytes(32)) == (rotated + 0xA282EAD8) % 2**32


def test_truncation_inside_a_record(file: Path) -> None:
    data = file.read_bytes()
    for num_bytes in (len(data) - 1, len(data) - 10, 5):
        file.write_bytes(data[:num_bytes])
        with refused("x.tfrecord"):
            TFRecords([file], [4])


def test_truncation_between_records(file: Path) -> None:
    end = int(record_offsets(file)[3])
    file.write_bytes(file.read_bytes()[:end])
    with refused("dataset_info.json"):
        TFRecords([file], [4])


def test_an_absurd_length_with_a_valid_checksum(file: Path) -> None:
    length = struct.pack("<Q", 2**60)
    data = length + struct.pack("<I", masked_crc32c(length)) + file.read_bytes()
    file.write_bytes(data)
    with refused():
        TFRecords([file], [4])


def test_a_flipped_bit_in_a_length(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)
    with refused():
        TFRecords([file], [4])


def test_a_flipped_bit_in_the_data_names_the_record(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[int(record_offsets(file)[2]) + 500] ^= 1
    file.write_bytes(data)
    records = TFRecords([file], [4])
    assert records.read(0, [0, 1, 3]) == [RECORDS[0], RECORDS[1], RECORDS[3]]
    with refused("x.tfrecord"):
        records.read(0, [2])


def test_a_file_that_shrinks_afterwards(file: Path) -> None:
    records = TFRecords([file], [4])
    file.write_bytes(file.read_bytes()[:-30])
    with refused():
        records.read(0, [3])


def test_offsets_are_cached_and_used(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TFRecords([file], [4])
    assert len(caches(file)) == 1
    monkeypatch.setattr(
        "vit_jax.data.sources.records.record_offsets", lambda _: pytest.fail("walked")
    )
    assert TFRecords([file], [4]).read(0, [2]) == [RECORDS[2]]


def test_a_changed_file_is_walked_again(file: Path) -> None:
    TFRecords([file], [4])
    file.write_bytes(file.read_bytes() * 2)
    assert TFRecords([file], [8]).read(0, [4, 7]) == [RECORDS[0], RECORDS[3]]


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "flipped"])
def test_a_damaged_cache_is_made_again(file: Path, damage: str) -> None:
    TFRecords([file], [4])
    (cache,) = caches(file)
    data = bytearray(cache.read_bytes())
    if damage == "flipped":
        for i in range(0, len(data), 7):
            data[i] ^= 0xFF
    content = {"truncated": data[:100], "empty": b"", "text": b"text", "flipped": data}[damage]
    cache.write_bytes(content)
    assert TFRecords([file], [4]).read(0, [2]) == [RECORDS[2]]
    assert records.load_offsets([file]) is not None


def test_beside_read_only_data_nothing_is_written(file: Path, cache_folder: Path) -> None:
    file.parent.chmod(0o555)
    TFRecords([file], [4])
    assert not caches(file)
    assert len(list(cache_folder.glob("vit_jax/*/*.npz"))) == 1
    assert records.load_offsets([file]) is not None


def test_nowhere_to_write(file: Path, cache_folder: Path) -> None:
    file.parent.chmod(0o555)
    cache_folder.write_text("a file, not a folder")
    assert TFRecords([file], [4]).read(0, [2]) == [RECORDS[2]]


def test_offsets_of_several_files(file: Path) -> None:
    other = file.with_name("y.tfrecord")
    other.write_bytes(file.read_bytes() * 2)
    for _ in range(2):  # the second time from the cache
        records = TFRecords([file, other], [4, 8])
        assert records.read(1, [7, 2]) == [RECORDS[3], RECORDS[2]]
        assert records.read(0, [3]) == [RECORDS[3]]
    np.testing.assert_array_equal(record_offsets(other)[:5], record_offsets(file))
