"""Damaged record files raise an error that names the file; none crashes."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.data.sources.tfds_test import create, record, write
from tests.messages import refused
from vit_jax.data.host_tf import tf
from vit_jax.data.sources.records import masked_crc32c

pytestmark = pytest.mark.usefixtures("bounded")
FILE = "pets-train.{}-00000-of-00003"


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def framed(data: bytes, *, length: int | None = None) -> bytes:
    """A TFRecord with correct checksums."""
    head = struct.pack("<Q", len(data) if length is None else length)
    checksums = (struct.pack("<I", masked_crc32c(part)) for part in (head, data))
    return head + next(checksums) + data + next(checksums)


def example(**features: object) -> bytes:
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def integers(*values: int) -> object:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def texts(*values: bytes) -> object:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def floats(*values: float) -> object:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


ONE = framed(record(0, [0]))
# Replacement for the first of a file's five records -> the error.
RECORDS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "0 values of `image`"),
    "text": (b"no protocol buffer", "not a tf.train.Example"),
    "an image": (b"\xff\xd8\xff\xe0" * 100, "not a tf.train.Example"),
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
def test_records(tmp_path: Path, file_format: str, data: bytes, message: str) -> None:
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


FOREIGN = b"<html><body>404 Not Found</body></html>"
# Replacement for a file -> the error.
TFRECORDS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "holds 0 records"),
    "a page of the web": (lambda data: FOREIGN * 100, "its length is corrupt"),
    "zeros": (lambda data: bytes(len(data)), "its length is corrupt"),
    "an exbibyte": (lambda data: framed(b"", length=2**60) + data, "the file ends at"),
    "the largest length": (lambda data: framed(b"", length=2**64 - 1) + data, "the file ends at"),
    "a wrong checksum of a length": (lambda data: data[:8] + b"xxxx" + data[12:], "is corrupt"),
    "a wrong checksum of data": (lambda data: data[:20] + b"x" + data[21:], "record 0: corrupt"),
    "cut in a header": (lambda data: data[: len(ONE) + 5], "the file ends inside it"),
    "cut in the data": (lambda data: data[:-20], "the file ends at"),
    "cut between records": (lambda data: data[: 2 * len(ONE)], "holds 2 records"),
    "too many records": (lambda data: data + ONE, "holds 6 records"),
    "garbage behind": (lambda data: data + b"garbage", "the file ends inside it"),
    "an ArrayRecord's first bytes": (lambda data: bytes.fromhex("83af70d10d884a3f") * 8192,
                                     "its length is corrupt"),
}  # fmt: skip


@pytest.mark.parametrize("change, message", TFRECORDS.values(), ids=list(TFRECORDS))
def test_tfrecords(tmp_path: Path, change: Callable[[bytes], bytes], message: str) -> None:
    folder = write(tmp_path / "1.0.0")
    path = folder / FILE.format("tfrecord")
    path.write_bytes(change(path.read_bytes()))
    with refused(path.name, message):
        create(folder).read(np.arange(12))


ARRAY_RECORDS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "a page of the web": lambda data: FOREIGN * 5000,
    "zeros": lambda data: bytes(len(data)),
    "ones": lambda data: b"\xff" * len(data),
    "one block": lambda data: data[: 2**16],
    "cut": lambda data: data[:-10],
    "garbage behind": lambda data: data + b"garbage" * 20000,
    "damaged data": lambda data: data[:100] + b"\xff" * 200 + data[300:],
    "TFRecords": lambda data: ONE * 5,
}


@pytest.mark.parametrize("change", ARRAY_RECORDS.values(), ids=list(ARRAY_RECORDS))
def test_array_records(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    folder = write(tmp_path / "1.0.0", file_format="array_record")
    path = folder / FILE.format("array_record")
    path.write_bytes(change(path.read_bytes()))
    with refused(path.name, "corrupt"):
        create(folder).read(np.arange(12))


@pytest.mark.parametrize(
    "lengths",
    [["-5", "0", "7"], ["5", "0", str(10**18)], ["5", "0", str(10**30)], ["many", "0", "7"], []],
    ids=["negative", "a trillion", "more than an integer", "no number", "none"],
)
def test_lengths_in_the_metadata(tmp_path: Path, lengths: list[str]) -> None:
    folder = write(tmp_path / "1.0.0")
    info = json.loads((folder / "dataset_info.json").read_text())
    info["splits"][0]["shardLengths"] = lengths
    (folder / "dataset_info.json").write_text(json.dumps(info))
    with refused():
        create(folder).read(np.arange(12))
