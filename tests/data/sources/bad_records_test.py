"""Damaged record files raise an error that names the file; none crashes."""

import json
import struct

import numpy as np
import pytest

from tests.data.sources.tfds_test import create, record, write
from tests.messages import refused
from vit_jax.data.host_tf import tf
from vit_jax.data.sources.records import masked_crc32c

pytestmark = pytest.mark.usefixtures("bounded")
FILE = "pets-train.{}-00000-of-00003"


pytestmark = pytest.mark.usefixtures("cache_folder")


def framed(data, *, length=None):
    """A TFRecord with correct checksums."""
    head = struct.pack("<Q", len(data) if length is None else length)
    checksums = (struct.pack("<I", masked_crc32c(part)) for part in (head, data))
    return head + next(checksums) + data + next(checksums)


def example(**features):
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def integers(*values):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def texts(*values):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def floats(*values):
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


ONE = framed(record(0, [0]))
# Replacement for the first of a file's five records -> the error.
RECORDS = {
    "empty": (b"", "0 values of `image`"),
    "text": (b"no protocol buffer", "DecodeError"),
    "an image": (b"\xff\xd8\xff\xe0" * 100, "DecodeError"),
    "no image": (example(label=integers(1)), "0 values of `image`"),
    "no label": (example(image=texts(b"x")), "0 values of `label`"),
    "two images": (example(image=texts(b"x", b"y"), label=integers(1)), "2 values of `image`"),
    "two labels": (example(image=texts(b"x"), label=integers(1, 2)), "2 values of `label`"),
    "a number as the image": (example(image=integers(3), label=integers(1)), "0 values of `im"),
    "a text as the label": (example(image=texts(b"x"), label=texts(b"cat")), "0 values of `label`"),
    "a fraction as the label": (
        example(image=texts(b"x"), label=floats(1.5)),
        "0 values of `label`",
    ),
}


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
@pytest.mark.parametrize("data, message", RECORDS.values(), ids=list(RECORDS))
def test_records(tmp_path, file_format, data, message):
    folder = write(tmp_path / "1.0.0", file_format=file_format)
    records = [data, *(record(i, [i % 3]) for i in range(1, 5))]
    path = folder / FILE.format(file_format)
    if file_format == "tfrecord":
        path.write_bytes(b"".join(map(framed, records)))
    else:
        module = pytest.importorskip("array_record.python.array_record_module")
        writer = module.ArrayRecordWriter(str(path), "group_size:1")
        for one in records:
            writer.write(one)
        writer.close()
    source = create(folder)
    with refused(path.name, message):
        source.read(np.arange(5))
    assert len(source.read(np.arange(1, 12))) == 11  # the others are readable


BROKEN = "corrupt or cut off"
FOREIGN = b"<html><body>404 Not Found</body></html>"
# Replacement for a file -> the error.
TFRECORDS = {
    "empty": (lambda data: b"", "0 records"),
    "a page of the web": (lambda data: FOREIGN * 100, BROKEN),
    "zeros": (lambda data: bytes(len(data)), BROKEN),
    "an exbibyte": (lambda data: framed(b"", length=2**60) + data, BROKEN),
    "the largest length": (lambda data: framed(b"", length=2**64 - 1) + data, BROKEN),
    "a wrong checksum of a length": (lambda data: data[:8] + b"xxxx" + data[12:], BROKEN),
    "a wrong checksum of data": (lambda data: data[:20] + b"x" + data[21:], "record 0"),
    "cut in a header": (lambda data: data[: len(ONE) + 5], BROKEN),
    "cut in the data": (lambda data: data[:-20], BROKEN),
    "cut between records": (lambda data: data[: 2 * len(ONE)], "2 records"),
    "too many records": (lambda data: data + ONE, "6 records"),
    "garbage behind": (lambda data: data + b"garbage", BROKEN),
    "an ArrayRecord's first bytes": (lambda data: bytes.fromhex("83af70d10d884a3f") * 8192, BROKEN),
}


@pytest.mark.parametrize("change, message", TFRECORDS.values(), ids=list(TFRECORDS))
def test_tfrecords(tmp_path, change, message):
    folder = write(tmp_path / "1.0.0")
    path = folder / FILE.format("tfrecord")
    path.write_bytes(change(path.read_bytes()))
    with refused(path.name, message):
        create(folder).read(np.arange(12))


ARRAY_RECORDS = {
    "empty": lambda data: b"",
    "a page of the web": lambda data: FOREIGN * 5000,
    "zeros": lambda data: bytes(len(data)),
    "ones": lambda data: b"\xff" * len(data),
    "one block": lambda data: data[: 2**16],  # would be read as one without records
    "the first bytes": lambda data: data[:1000],
    "cut": lambda data: data[:-10],
    "garbage behind": lambda data: data + b"garbage" * 20000,
    "damaged data": lambda data: data[:100] + b"\xff" * 200 + data[300:],
    "TFRecords": lambda data: ONE * 5,
}


@pytest.mark.parametrize("change", ARRAY_RECORDS.values(), ids=list(ARRAY_RECORDS))
def test_array_records(tmp_path, change):
    folder = write(tmp_path / "1.0.0", file_format="array_record")
    path = folder / FILE.format("array_record")
    path.write_bytes(change(path.read_bytes()))
    with refused(path.name, "corrupt"):
        create(folder).read(np.arange(12))


@pytest.mark.parametrize(
    ("lengths", "name"),
    [
        (["-5", "0", "7"], "dataset_info.json"),
        (["5", "0", str(10**18)], "dataset_info.json"),
        (["5", "0", str(10**30)], "dataset_info.json"),  # more than an integer
        (["many", "0", "7"], "dataset_info.json"),
        ([], "0 in"),
    ],
)
def test_lengths_in_the_metadata(tmp_path, lengths, name):
    folder = write(tmp_path / "1.0.0")
    info = json.loads((folder / "dataset_info.json").read_text())
    info["splits"][0]["shardLengths"] = lengths
    (folder / "dataset_info.json").write_text(json.dumps(info))
    with refused(name):
        create(folder).read(np.arange(12))
