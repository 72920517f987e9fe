"""tf.train.Example, the message in which TFDS stores an example, without TensorFlow.

The message is declared here as in TensorFlow's feature.proto and example.proto:
https://github.com/tensorflow/tensorflow/tree/master/tensorflow/core/example
"""

import functools
from collections.abc import Callable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "vit_jax"  # any: names are not stored
_Field = descriptor_pb2.FieldDescriptorProto
_LISTS = {"bytes_list": _Field.TYPE_BYTES, "float_list": _Field.TYPE_FLOAT}
_LISTS["int64_list"] = _Field.TYPE_INT64


@functools.cache
def parser() -> Callable[[bytes], Any]:
    """Parses an example: `parser()(data).features.feature["image"].bytes_list.value`.

    The function raises google.protobuf.message.DecodeError for anything else.
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
    found = pool.FindMessageTypeByName(f"{_PACKAGE}.Example")
    return message_factory.GetMessageClass(found).FromString


def _add(message: Any, name: str, number: int, of: str) -> Any:
    """Adds an optional field that is a message."""
    return message.field.add(
        name=name,
        number=number,
        type=_Field.TYPE_MESSAGE,
        type_name=f".{_PACKAGE}.{of}",
        label=_Field.LABEL_OPTIONAL,
    )
