import pytest
from google.protobuf.message import DecodeError

from vit_jax.data.host_tf import tf
from vit_jax.data.sources import tfds


def test_parses_what_tensorflow_writes():
    lists = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"\x00\xff", b""])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[-(2**63), 0, 2**63 - 1])),
        "weights": tf.train.Feature(float_list=tf.train.FloatList(value=[0.5, 1.25])),
        "empty": tf.train.Feature(),
    }
    written = tf.train.Example(features=tf.train.Features(feature=lists)).SerializeToString()
    read = tfds.example_parser()(written).features.feature
    assert set(read) == set(lists)
    for name, feature in lists.items():
        for kind in ("bytes_list", "int64_list", "float_list"):
            assert list(getattr(read[name], kind).value) == list(getattr(feature, kind).value)
    assert not read["not there"].bytes_list.value


def test_anything_else_is_refused():
    with pytest.raises(DecodeError):
        tfds.example_parser()(b"\xff\xff\xff not an example")
