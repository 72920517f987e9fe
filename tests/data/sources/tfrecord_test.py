import google_crc32c
import numpy as np
import pytest

from tests.messages import refused
from vit_jax.data.host_tf import tf
from vit_jax.data.sources.records import TFRecords, masked_crc32c, record_offsets

RECORDS = [b"first", b"", b"x" * 1000, b"trailing zeros\0\0"]


pytestmark = pytest.mark.usefixtures("cache_folder")


@pytest.fixture
def file(tmp_path):
    """A file written by TensorFlow."""
    path = tmp_path / "data" / "x.tfrecord"
    path.parent.mkdir()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in RECORDS:
            writer.write(record)
    return path


def caches(file):
    return list(file.parent.glob(".vit_jax/*"))


def test_reads_what_tensorflow_wrote(file):
    records = TFRecords([file], [4])
    assert records.read(0, [3, 0, 2, 1, 0]) == [RECORDS[i] for i in (3, 0, 2, 1, 0)]


def test_checksum_is_the_published_one():
    # RFC 3720, B.4: the CRC-32C of 32 zero bytes is 8A9136AA.
    assert google_crc32c.value(bytes(32)) == 0x8A9136AA
    rotated = ((0x8A9136AA >> 15) | (0x8A9136AA << 17)) & 0xFFFFFFFF
    assert masked_crc32c(bytes(32)) == (rotated + 0xA282EAD8) % 2**32


def test_a_flipped_bit_in_the_data_names_the_record(file):
    data = bytearray(file.read_bytes())
    data[int(record_offsets(file)[2]) + 500] ^= 1
    file.write_bytes(data)
    records = TFRecords([file], [4])
    assert records.read(0, [0, 1, 3]) == [RECORDS[0], RECORDS[1], RECORDS[3]]
    with refused("x.tfrecord"):
        records.read(0, [2])


def test_a_file_that_shrinks_afterwards(file):
    records = TFRecords([file], [4])
    file.write_bytes(file.read_bytes()[:-30])
    with refused("record 3"):
        records.read(0, [3])


def test_offsets_are_cached_and_used(file, monkeypatch):
    TFRecords([file], [4])
    assert len(caches(file)) == 1
    monkeypatch.setattr(
        "vit_jax.data.sources.records.record_offsets", lambda _: pytest.fail("walked")
    )
    assert TFRecords([file], [4]).read(0, [2]) == [RECORDS[2]]


def test_a_changed_file_is_walked_again(file):
    TFRecords([file], [4])
    file.write_bytes(file.read_bytes() * 2)
    assert TFRecords([file], [8]).read(0, [4, 7]) == [RECORDS[0], RECORDS[3]]


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "flipped"])
def test_a_damaged_cache_is_made_again(file, damage):
    TFRecords([file], [4])
    (cache,) = caches(file)
    data = bytearray(cache.read_bytes())
    if damage == "flipped":
        for i in range(0, len(data), 7):
            data[i] ^= 0xFF
    content = {"truncated": data[:100], "empty": b"", "text": b"text", "flipped": data}[damage]
    cache.write_bytes(content)
    assert TFRecords([file], [4]).read(0, [2]) == [RECORDS[2]]
    assert len(np.load(cache)["offsets"]) == len(RECORDS) + 1


def test_beside_read_only_data_nothing_is_written(file, cache_folder):
    file.parent.chmod(0o555)
    TFRecords([file], [4])
    assert not caches(file)
    assert len(list(cache_folder.glob("vit_jax/*/*.npz"))) == 1
