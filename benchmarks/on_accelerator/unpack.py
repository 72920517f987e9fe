"""Unpacks a data set of TFDS into an image folder, which needs neither tfds nor TensorFlow.

    python -m benchmarks.on_accelerator.unpack FROM TO

FROM has dataset_info.json, <feature>.labels.txt and TFRecord files; TO gets <split>/<class>/ with
the images as they are stored. Does nothing if TO is there.
"""

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from vit_jax.core.files import atomic_folder
from vit_jax.data.sources.records import TFRecords

BATCH = 500


def main(source: str, destination: str) -> None:
    """Writes all splits."""
    if Path(destination).exists():
        return
    Path(destination).parent.mkdir(parents=True, exist_ok=True)
    names = Path(source, "label.labels.txt").read_text().split()
    with atomic_folder(Path(destination)) as folder:
        for split in json.loads(Path(source, "dataset_info.json").read_text())["splits"]:
            counts = [int(count) for count in split["shardLengths"]]
            paths = sorted(Path(source).glob(f"*-{split['name']}.tfrecord-*"))
            for name in names:
                (folder / split["name"] / name).mkdir(parents=True)
            write(TFRecords(paths, counts), counts, folder / split["name"], names)


def write(records: TFRecords, counts: list[int], folder: Path, names: list[str]) -> None:
    """Writes the images of a split."""
    parse = example_parser()
    for shard, count in enumerate(counts):
        for first in range(0, count, BATCH):
            places = range(first, min(first + BATCH, count))
            for place, data in zip(places, records.read(shard, places), strict=True):
                feature = parse(data).features.feature
                name = names[feature["label"].int64_list.value[0]]
                image = feature["image"].bytes_list.value[0]
                (folder / name / f"{shard}_{place:06d}.jpg").write_bytes(image)


_PACKAGE = "vit_jax"  # any: names are not stored
_Field = descriptor_pb2.FieldDescriptorProto
_LISTS = {"bytes_list": _Field.TYPE_BYTES, "float_list": _Field.TYPE_FLOAT}
_LISTS["int64_list"] = _Field.TYPE_INT64


@functools.cache
def example_parser() -> Callable[[bytes], Any]:
    """Parses tf.train.Example, the message in which TFDS stores an example, without TensorFlow.

    `example_parser()(data).features.feature["image"].bytes_list.value`. The message is declared as
    in https://github.com/tensorflow/tensorflow/tree/master/tensorflow/core/example. The function
    raises google.protobuf.message.DecodeError for anything else.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{_PACKAGE}/example.proto", package=_PACKAGE, syntax="proto3"
    )
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, kind) in enumerate(_LISTS.items(), start=1):
        values = file.message_type.add(name=f"{name}_message")
        values.field.add(name="value", number=1, type=kind, label=_Field.LABEL_REPEATED)
        _add(feature, name, number, values.name).oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")  # what a map is stored as
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_Field.TYPE_STRING, label=_Field.LABEL_OPTIONAL)
    _add(entry, "value", 2, "Feature")
    _add(features, "feature", 1, "Features.FeatureEntry").label = _Field.LABEL_REPEATED
    _add(file.message_type.add(name="Example"), "features", 1, "Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    message = pool.FindMessageTypeByName(f"{_PACKAGE}.Example")
    return message_factory.GetMessageClass(message).FromString


def _add(message: Any, name: str, number: int, of: str) -> Any:
    """Adds an optional field that is a message."""
    return message.field.add(
        name=name,
        number=number,
        type=_Field.TYPE_MESSAGE,
        type_name=f".{_PACKAGE}.{of}",
        label=_Field.LABEL_OPTIONAL,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
