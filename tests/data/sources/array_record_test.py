import numpy as np
import pytest

from tests.messages import refused
from vit_jax.core.errors import UserError
from vit_jax.data.sources.records import ArrayRecords

module = pytest.importorskip("array_record.python.array_record_module")

# Random, so as not to compress; the format's blocks are of 64 KiB.
RECORDS = [np.random.default_rng(i).bytes(3000) for i in range(100)]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "x.array_record"
    writer = module.ArrayRecordWriter(str(path), "group_size:1")
    for record in RECORDS:
        writer.write(record)
    writer.close()
    return path


def test_reads_at_random(file):
    records = ArrayRecords([file, file], [100, 100])
    assert records.read(1, [99, 0, 57]) == [RECORDS[99], RECORDS[0], RECORDS[57]]


def test_more_files_than_may_be_open(file):
    records = ArrayRecords([file] * 400, [100] * 400)
    assert records.read(0, [3]) == records.read(399, [3]) == [RECORDS[3]]
    with refused("missing.array_record"):
        ArrayRecords([*[file] * 300, file.with_name("missing.array_record")], [100] * 301)


def test_a_number_of_records_that_was_not_published(file):
    with refused("x.array_record", 101):
        ArrayRecords([file], [101])


def test_damage_inside_names_the_record(file):
    data = bytearray(file.read_bytes())
    data[100_000] ^= 1
    file.write_bytes(data)
    records, damaged = ArrayRecords([file], [100]), []
    for k in range(100):
        try:
            assert records.read(0, [k]) == [RECORDS[k]]
        except UserError as error:
            assert f"{file}, records {k}," in str(error)
            damaged.append(k)
    assert len(damaged) == 1


def test_absurd_lengths(file):
    data = file.read_bytes()
    for block in range(2**16, len(data), 2**16):  # a block's header holds lengths
        file.write_bytes(data[:block] + b"\x7f" * 24 + data[block + 24 :])
        with refused("x.array_record"):
            records = ArrayRecords([file], [100])
            for k in range(100):
                records.read(0, [k])
