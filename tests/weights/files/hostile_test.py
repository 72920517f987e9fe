"""Damaged or malicious files: one message each, and nothing large is allocated."""

import io
import json
import os
import zipfile

import numpy as np
import pytest

from tests.messages import refused
from tests.weights.conftest import edit, named_error, zip_bomb
from vit_jax import weights
from vit_jax.core.errors import UserError
from vit_jax.weights.files import detect_format, from_array, npz
from vit_jax.weights.files import safetensors as safetensors_file

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.float32)}


def read(path):
    """Reads every array of a file or folder."""
    for tensor in detect_format.open_weights(path).tensors.values():
        tensor.read()


# --- .npz


def npy(array, allow_pickle=False):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=allow_pickle)
    return stream.getvalue()


def zipped(path, method=zipfile.ZIP_DEFLATED, **members):
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return path


def header(text):
    """The file of an array with this header and 4 bytes."""
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + b"1234"


def test_an_intact_npz(tmp_path):
    npz.write(tmp_path / "x.npz", {n: from_array(x) for n, x in ARRAYS.items()})
    for name, tensor in npz.read(tmp_path / "x.npz").items():
        np.testing.assert_array_equal(tensor.read(), ARRAYS[name])
    assert os.listdir(tmp_path) == ["x.npz"]


def test_a_truncated_npz(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, **ARRAYS)
    path.write_bytes(path.read_bytes()[:-30])
    with refused(path.name):
        read(path)


def test_npz_with_a_flipped_bit(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, **ARRAYS)
    data = bytearray(path.read_bytes())
    data[data.index(b"\x00\x00\x80\x3f") + 2] ^= 1
    path.write_bytes(data)
    with refused("CRC-32"):
        read(path)


@pytest.mark.parametrize("part", [0, 0.5], ids=["header", "values"])
@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_compressed_npz_with_damage(tmp_path, method, part):
    numbers = np.random.default_rng(0).normal(size=40_000).astype(np.float32)
    path = zipped(tmp_path / "x.npz", method, a=npy(numbers))
    with zipfile.ZipFile(path) as file:
        (member,) = file.infolist()
    data = bytearray(path.read_bytes())
    place = data.index(b"a.npy") + len("a.npy") + int(part * member.compress_size)
    data[place : place + 16] = b"\xff" * 16
    path.write_bytes(data)
    with named_error("x.npz", "Get the file anew"):  # behind the words of zlib, bz2 or lzma
        npz.read(path)["a"].read()


def array_of(shape, dtype="<f4"):
    """The file of an array that claims this shape, and has 4 bytes."""
    return header(f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}")


BAD_ARRAYS = {
    "pickle": npy(np.array([{"a": 1}], object), allow_pickle=True),
    "text": npy(np.array(["x"])),
    "no_array": b"MZ" + bytes(40),
    "short": npy(ARRAYS["a"])[:-1],
    "long": npy(ARRAYS["a"]) + b"1",
    "long_header": b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(40),
    "code": header("__import__('os').abort()"),
    "negative": array_of("(-1,)"),
    "huge": array_of("(99999999999, 9999999)"),
    "dimensions": array_of((1,) * 71),
    "empty": array_of("(0, 9223372036854775808)"),
}


@pytest.mark.parametrize("data", BAD_ARRAYS.values(), ids=BAD_ARRAYS)
def test_npz_with_a_bad_array(tmp_path, data):
    path = zipped(tmp_path / "x.npz", a=data)
    with refused("x.npz: a.npy"):
        npz.read(path)["a"].read()


def test_zip_bomb(tmp_path):
    """Nothing is unpacked."""
    with named_error("zip"):
        npz.read(zip_bomb(tmp_path))


# --- safetensors


def safetensors(path, entries, data=b"", length=None):
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    length = len(text) if length is None else length
    path.write_bytes(length.to_bytes(8, "little") + text + data)
    return path


def entry(first=0, last=8, shape=(2,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [first, last]}


def test_intact_safetensors(tmp_path):
    path = tmp_path / "x.safetensors"
    safetensors_file.write(path, {n: from_array(x) for n, x in ARRAYS.items()})
    tensors = safetensors_file.read(path)
    assert list(tensors) == list(ARRAYS)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor.read(), ARRAYS[name])
    path.write_bytes(path.read_bytes()[:-1])
    with refused(path.name):
        read(path)


def test_arrays_of_a_quantised_file_are_not_damage(tmp_path, toy):
    weights.save(toy(norm_epsilon=1e-6), tmp_path / "x", "timm")
    file = tmp_path / "x" / "model.safetensors"
    named = {name: tensor.read() for name, tensor in safetensors_file.read(file).items()}
    entries, data = {}, b""
    for name, x in named.items():
        data, first = data + x.astype(np.int8).tobytes(), len(data)
        entries[name] = entry(first, len(data), x.shape, "I8")
    safetensors(file, entries, data)
    with refused("head.bias", "int8"):
        weights.load(tmp_path / "x")


BAD_HEADERS = {
    "long": {"a": entry()},
    "no_json": b"\xff\xfe",
    "deep": b"[" * 100_000,
    "number_of_5000_digits": b'{"a": {"shape": [' + b"9" * 5000 + b"]}}",
    "list": b"[]",
    "name_twice": b'{"a": 1, "a": 2}',
    "long_name": {"x" * 10**6: entry()},
    "no_entry": {"a": None},
    "unknown_type": {"a": entry(dtype="F7")},
    "type_that_is_not_read": {"a": entry(last=1, dtype="F8_E8M0")},
    "type_of_a_list": {"a": entry(dtype=["F32"])},
    "beyond_the_end": {"a": entry(last=16, shape=[4])},
    "below_the_start": {"a": entry(first=-8)},
    "backwards": {"a": entry(first=8, last=0)},
    "fraction": {"a": entry(shape=[2.0])},
    "negative": {"a": entry(shape=[-1, -2])},
    "large": {"a": entry(shape=[2**63])},
    "dimensions": {"a": entry(shape=[1] * 10**6)},
    "empty": {"a": entry(), "b": entry(8, 8, [0, 2**31, 2**31])},
    "overlap": {"a": entry(0, 8), "b": entry(4, 8, [1])},
    "rest": {"__metadata__": [1], "a": entry(last=4, shape=[1])},
}


@pytest.mark.parametrize("kind", BAD_HEADERS)
def test_safetensors_with_a_bad_header(tmp_path, kind):
    length = 2**63 if kind == "long" else None
    path = safetensors(tmp_path / "x.safetensors", BAD_HEADERS[kind], bytes(8), length)
    with refused(path) as error:
        safetensors_file.read(path)
    assert len(str(error.value)) < 600 + len(str(path))


STRANGE = ("../x.safetensors", "..", "", "/etc/passwd", "a/b", "a\\b", "x" * 5000, "\ud800", "a\0b")


@pytest.mark.parametrize(
    "where",
    [
        *({"a": name} for name in STRANGE),
        {"a": "absent.safetensors"},
        {"a": "x.safetensors"},
        {},
        3,
        "x.safetensors",
    ],
)
def test_an_index_names_files_of_its_folder(tmp_path, where):
    safetensors(tmp_path / "x.safetensors", {"b": entry()}, bytes(8))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    with pytest.raises(UserError) as raised:
        read(tmp_path)
    assert str(tmp_path) in str(raised.value) and len(str(raised.value).encode()) < 1000


@pytest.mark.parametrize("name", ["tf_model.h5", "adapter_model.safetensors", "m.gguf"])
def test_files_that_are_not_read_are_named(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    for path in (tmp_path, tmp_path / name):
        with refused(name):
            weights.load(path)


# --- config.json and the like


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("huggingface", {"model_type": ["vit"]}, "['vit']"),
        ("huggingface", {"hidden_act": ["gelu"]}, "hidden_act=['gelu']"),
        ("huggingface", {"layer_norm_eps": float("nan")}, "layer_norm_eps=nan"),
        ("huggingface", {"id2label": ["a", "b"]}, "id2label=['a', 'b']"),
        ("huggingface", {"image_size": -12}, "image_size=-12"),
        ("huggingface", {"num_attention_heads": 0}, "num_heads"),
        ("huggingface", {"num_attention_heads": 3}, "num_heads"),
        ("huggingface", {"image_size": [12, 16]}, "12 x 16"),
        ("timm", {"model_args.img_size": 224}, "224 x 224"),
        ("dinov2", {"hidden_act": {}, "layerscale_value": -1}, "layerscale_value=-1"),
        ("timm", {"model_args": [1]}, "model_args=[1]"),
        ("timm", {"pretrained_cfg.crop_pct": 1e-300}, "crop_pct"),
        ("timm", {"pretrained_cfg.mean": [1, 2]}, "mean=[1, 2]"),
        ("timm", {"pretrained_cfg.std": [1, 0, 1]}, "std=[1, 0, 1]"),
        ("timm", {"model_args.global_pool": "map"}, "global_pool='map'"),
        ("timm", {"architecture": "vit_dwee_patch16_reg1_gap_256"}, "difference of two"),
        ("timm", {"pretrained_cfg.crop_pct": 13}, "crop_pct=13"),
        ("timm", {"pretrained_cfg.crop_mode": "bordr"}, "crop_mode='bordr'"),
        ("timm", {"pretrained_cfg.interpolation": "bicubik"}, "interpolation='bicubik'"),
        ("timm", {"pretrained_cfg.crop_pct": 10**400}, "crop_pct=1000"),
        ("huggingface", {"layer_norm_eps": 10**400}, "layer_norm_eps=1000"),
        ("huggingface", {"problem_type": "regression"}, "problem_type"),
        ("huggingface", {"problem_type": "multilabel"}, "multi_label_classification"),
        ("dinov2", {"image_size": 24}, "image_size=24"),
        ("dinov2", {"qkv_bias": False}, "qkv_bias=False"),
        ("dinov2", {"hidden_act": "gel"}, "one of gelu"),
        ("dinov3", {"query_bias": False}, "query_bias=False"),
        ("dinov3", {"mlp_bias": False}, "mlp_bias=False"),
        ("dinov3", {"rope_theta": "x"}, "rope_theta='x'"),
        ("dinov3", {"hidden_act": "silu"}, "hidden_act='silu'"),
        ("dinov3", {"hidden_act": "silu", "use_gated_mlp": True}, "layer.0.mlp.gate_proj.weight"),
        ("dinov3", {"use_gated_mlp": 1}, "use_gated_mlp=1"),
        ("dinov3", {"key_bias": True}, "layer.1.attention.k_proj.bias"),
        ("dinov3", {"proj_bias": False, "mlp_bias": False}, "o_proj.bias"),
        ("dinov3", {"layer_norm_eps": 2}, "norm_epsilon=2"),
        ("dinov3", {"num_attention_heads": 16}, "width=16"),
        ("dinov3", {"model_type": "dinov3_convnext"}, "'dinov3_convnext'"),
        ("bit", {"layer_type": "bottleneck"}, "layer_type='bottleneck'"),
        ("bit", {"global_padding": "SAME"}, "global_padding='SAME'"),
        ("bit", {"output_stride": 4}, "output_stride=4"),
        ("bit", {"model_type": "vit"}, "ViT"),
        ("bit", {"model_type": "resnet"}, "'resnet'"),
        ("timm", {"architecture": "vit_small_patch16_dinov3.lvd1689m"}, "dinov3"),
        ("hybrid", {"model_args": {"num_heads": 2, "padding_same": False}}, "padding_same=False"),
        ("hybrid", {"model_args": {"num_heads": 2, "global_pool": "max"}}, "global_pool='max'"),
        ("registers", {"model_args.pool_include_prefix": True}, "pool_include_prefix"),
        ("registers", {"model_args.dynamic_img_pad": True}, "dynamic_img_pad"),
    ],
)
def test_a_false_config_is_refused(written, kind, changes, message):
    folder = written(kind)
    edit(folder, changes)
    with refused(message):
        weights.load(folder)


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("huggingface", "hidden_size", 32),
        ("huggingface", "patch_size", [4, 8]),
        ("dinov2", "patch_size", 14),
        ("dinov3", "num_hidden_layers", 5),
        ("bit", "depths", [1, 2, 1]),
        ("timm", "num_features", 768),
        ("timm", "model_args.depth", 12),
    ],
)
def test_sizes_of_another_model_are_refused(written, kind, key, value):
    folder = written(kind)
    edit(folder, {key: value})
    with refused(f"{key}={value} "):
        weights.load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": {"height": None, "width": 3}}, "size={'width': 3}"),
        ({"size": {"height": 24, "width": 24}}, "12 x 12"),
        ({"size": {"shortest_edge": 12, "longest_edge": 20}}, "longest_edge"),
        ({"size": {"shortest_edge": "x"}}, "shortest_edge='x'"),
        ({"size": [1, 2, 3]}, "size=[1, 2, 3]"),
        ({"do_center_crop": True, "crop_size": {"shortest_edge": 9}}, "crop_size="),
        ({"do_center_crop": True, "crop_size": 24}, "crop_size"),
        ({"do_center_crop": True, "crop_size": {"height": 10**9, "width": 1}}, "crop_size=1000000"),
        ({"do_pad": True, "pad_size": {"height": 16, "width": 16}}, "pad_size={"),
        ({"resample": None}, "resample=None"),
        ({"image_processor_type": "ViTImageProcesor"}, "'ViTImageProcessor'"),
        ({"image_processor_type": 3}, "image_processor_type=3"),
        ({"image_mean": ["a", "b", "c"]}, "image_mean=['a', 'b', 'c']"),
        ({"rescale_factor": 0}, "rescale_factor=0"),
    ],
)
def test_a_false_processor_is_refused(written, changes, message):
    folder = written("huggingface")
    edit(folder, changes, "preprocessor_config.json")
    with refused(message):
        weights.load(folder)


# --- any file


def test_files_of_another_kind(tmp_path):
    for name, content in (
        ("x.npz", b""), ("y.npz", b"\x89PNG\r\n\x1a\n" + bytes(30)), ("x.txt", b"hello, world")
    ):  # fmt: skip
        (tmp_path / name).write_bytes(content)
        with refused(name):
            read(tmp_path / name)


@pytest.mark.parametrize("name", ["model.safetensors", "x.npz", "x.pth", "pytorch_model.bin"])
def test_a_pointer_of_git_lfs(tmp_path, name):
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\n")
    with refused(name, "git lfs pull"):
        weights.load(tmp_path / name)


def test_a_pickle_is_never_run(tmp_path):
    """PyTorch's safe loader refuses it, and so does a Python without PyTorch."""

    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    import pickle

    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(UserError):  # whose message says whether PyTorch is there
        read(path)
    assert not (tmp_path / "ran").exists()
