"""Writes data sets as TFDS does: records of tf.train.Example, and the metadata beside them.

https://www.tensorflow.org/datasets/external_tfrecord
"""

import contextlib
import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

FORMAT = "array_record"
# Each record by itself, since examples are read at random, and as it is: images are compressed.
OPTIONS = "group_size:1,uncompressed"
WEIGHTS = "label_weights"  # the feature, one number for each label or none at all
NOTE = "prepared.json"  # beside the metadata: a hash of the content, and how it was made
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class SplitSize(NamedTuple):
    """The size of a split, for the metadata."""

    shard_lengths: Sequence[int]  # examples in each file
    nbytes: int  # of all records


def file_name(name: str, split: str, shard: int, shards: int) -> str:
    """Name of the file of a shard."""
    return f"{name}-{split}.{FORMAT}-{shard:05}-of-{shards:05}"


def example(
    image: bytes,
    labels: Sequence[int],
    name: str,
    *,
    weights: Sequence[float] = (),
    multi_label: bool,
    weighted: bool,
) -> bytes:
    """A serialized tf.train.Example, always the same bytes.

    Its features: `image`, `label` or, where `multi_label`, the list `labels`, `label_weights` where
    `weighted`, and `file_name`.
    """
    # TFDS's copy of the format: to import TensorFlow's takes each worker three seconds.
    from tensorflow_datasets.proto import tf_example_pb2
    from tensorflow_datasets.proto import tf_feature_pb2 as proto

    file_name = name.encode(errors="surrogateescape")
    feature = {
        "image": proto.Feature(bytes_list=proto.BytesList(value=[image])),
        "labels" if multi_label else "label": proto.Feature(
            int64_list=proto.Int64List(value=labels)
        ),
        "file_name": proto.Feature(bytes_list=proto.BytesList(value=[file_name])),
    }
    if weighted:
        feature[WEIGHTS] = proto.Feature(float_list=proto.FloatList(value=weights))
    serialized = tf_example_pb2.Example(features=proto.Features(feature=feature))
    return serialized.SerializeToString(deterministic=True)


def write_records(path: Path, records: Iterable[bytes]) -> None:
    """Writes an ArrayRecord file, replacing any other. OSError, also for ArrayRecord's errors."""
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), OPTIONS)
    try:
        for record in records:
            writer.write(record)
        writer.close()
    except RuntimeError as error:
        with contextlib.suppress(RuntimeError):
            writer.close()  # otherwise it tries again when it is garbage-collected
        number = next((n for n in _FULL if os.strerror(n) in str(error)), errno.EIO)
        raise OSError(number, str(error), str(path)) from error


def write_metadata(
    folder: Path,
    *,
    name: str,
    version: str,
    description: str,
    class_names: Sequence[str],
    splits: Mapping[str, SplitSize],
    multi_label: bool,
    weighted: bool,
) -> None:
    """Writes dataset_info.json, features.json and the class list; `class_names` are unique."""
    import tensorflow_datasets as tfds

    label = tfds.features.ClassLabel(names=list(class_names))
    features = {
        "image": tfds.features.Image(shape=(None, None, 3)),
        "file_name": tfds.features.Text(),
    }
    if multi_label:
        features["labels"] = tfds.features.Sequence(label)
    else:
        features["label"] = label
    if weighted:
        features[WEIGHTS] = tfds.features.Sequence(tfds.features.Scalar(np.float32))
    template = tfds.core.ShardedFileTemplate(
        data_dir=folder, dataset_name=name, filetype_suffix=FORMAT
    )
    tfds.folder_dataset.write_metadata(
        data_dir=folder,
        features=tfds.features.FeaturesDict(features),
        split_infos=[
            tfds.core.SplitInfo(
                name=split,
                shard_lengths=list(size.shard_lengths),
                num_bytes=size.nbytes,
                filename_template=template.replace(split=split),
            )
            for split, size in splits.items()
        ],
        version=version,
        filename_template=template,
        check_data=False,
        description=description,
    )
