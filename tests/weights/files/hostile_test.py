"""Damaged or malicious files: one message each, and nothing large is allocated."""

import ast
import io
import json
import os
import zipfile

import numpy as np
import pytest

from tests.messages import refused
from tests.weights.conftest import named_error, zip_bomb
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
    with named_error("x.npz", "Get the file anew"):  # zlib, bz2 and lzma have their own words
        npz.read(path)["a"].read()


def array_of(shape, dtype="<f4"):
    """The file of an array that claims this shape, and has 4 bytes."""
    return header(f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}")


BAD_ARRAYS = {
    "pickle": (npy(np.array([{"a": 1}], object), allow_pickle=True), "pickle"),
    "text": (npy(np.array(["x"])), "<U1"),
    "no_array": (b"MZ" + bytes(40), "a.npy"),
    "short": (npy(ARRAYS["a"])[:-1], "23"),
    "long_header": (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(40), "4,294,967,295"),
    "code": (header("__import__('os').abort()"), "a.npy"),
    "negative": (array_of("(-1,)"), "(-1,)"),
    "huge": (array_of("(99999999999, 9999999)"), "99999999999"),
    "dimensions": (array_of((1,) * 71), "71"),
    "empty": (array_of("(0, 9223372036854775808)"), "(0, 9223372036854775808)"),
}


@pytest.mark.parametrize(("data", "name"), BAD_ARRAYS.values(), ids=BAD_ARRAYS)
def test_npz_with_a_bad_array(tmp_path, data, name):
    path = zipped(tmp_path / "x.npz", a=data)
    with refused(name):
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
    "long": ({"a": entry()}, "9,223,372,036,854,775,808"),
    "no_json": (b"\xff\xfe", "JSON"),
    "deep": (b"[" * 100_000, "JSON"),
    "number_of_5000_digits": (b'{"a": {"shape": [' + b"9" * 5000 + b"]}}", "JSON"),
    "list": (b"[]", "JSON"),
    "name_twice": (b'{"a": 1, "a": 2}', "twice"),
    "long_name": ({"x" * 10**6: entry()}, "1,000,000"),
    "no_entry": ({"a": None}, "'a'"),
    "unknown_type": ({"a": entry(dtype="F7")}, "F7"),
    "beyond_the_end": ({"a": entry(last=16, shape=[4])}, "'a'"),
    "below_the_start": ({"a": entry(first=-8)}, "-8"),
    "backwards": ({"a": entry(first=8, last=0)}, "[8, 0]"),
    "fraction": ({"a": entry(shape=[2.0])}, "2.0"),
    "negative": ({"a": entry(shape=[-1, -2])}, "[-1, -2]"),
    "large": ({"a": entry(shape=[2**63])}, str(2**63)),
    "dimensions": ({"a": entry(shape=[1] * 10**6)}, "1000000"),
    "empty": ({"a": entry(), "b": entry(8, 8, [0, 2**31, 2**31])}, "b"),
    "overlap": ({"a": entry(0, 8), "b": entry(4, 8, [1])}, "b"),
    "rest": ({"__metadata__": [1], "a": entry(last=4, shape=[1])}, "8"),
}


@pytest.mark.parametrize("kind", BAD_HEADERS)
def test_safetensors_with_a_bad_header(tmp_path, kind):
    entries, name = BAD_HEADERS[kind]
    length = 2**63 if kind == "long" else None
    path = safetensors(tmp_path / "x.safetensors", entries, bytes(8), length)
    with refused(name) as error:
        safetensors_file.read(path)
    assert len(str(error.value)) < 600 + len(str(path))


def test_an_index_stays_in_its_folder(tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../x.safetensors"}}))
    with refused("../x.safetensors"):
        read(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "x.safetensors"}}))
    with refused("x.safetensors"):
        read(tmp_path)
    safetensors(tmp_path / "x.safetensors", {"b": entry()}, bytes(8))
    with refused("a in x.safetensors"):
        read(tmp_path)
    index.write_text("[]")
    with refused(index.name):
        read(tmp_path)


# --- config.json and the like


@pytest.fixture
def edited(tmp_path, toy, bit):
    """`edited("timm", "config.json", key=value)`: a folder with changed JSON."""
    epsilons = {"weight_epsilon": 1e-8, "weight_epsilon_of": "variance", "group_norm_epsilon": 1e-5}
    makers = {
        "huggingface": (toy, {}),
        "dinov2": (toy, {"layer_scale": 1.0, "num_classes": 0, "mlp_dim": 32}),
        "timm": (toy, {"norm_epsilon": 1e-6}),
        "bit": (bit, epsilons),
    }

    def make(kind, file, changes):
        maker, fields = makers[kind]
        to = "timm" if kind == "timm" else "huggingface"
        weights.save(maker(**fields), tmp_path / kind, to)
        document = json.loads((tmp_path / kind / file).read_text())
        for key, value in changes.items():
            inside = document
            *sections, last = key.split(".")
            for section in sections:
                inside = inside[section]
            inside[last] = value
        (tmp_path / kind / file).write_text(json.dumps(document))
        return tmp_path / kind

    return make


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("huggingface", {"model_type": ["vit"]}, "['vit']"),
        ("huggingface", {"hidden_act": ["gelu"]}, "hidden_act=['gelu']"),
        ("huggingface", {"layer_norm_eps": float("nan")}, "layer_norm_eps=nan"),
        ("huggingface", {"id2label": ["a", "b"]}, "id2label=['a', 'b']"),
        ("huggingface", {"image_size": -12}, "image_size=-12"),
        ("huggingface", {"num_attention_heads": 0}, "num_attention_heads=0"),
        ("huggingface", {"num_attention_heads": 2.0}, "2.0"),
        ("dinov2", {"hidden_act": {}, "layerscale_value": -1}, "layerscale_value=-1"),
        ("timm", {"model_args": [1]}, "model_args=[1]"),
        ("timm", {"pretrained_cfg.crop_pct": 1e-300}, "crop_pct"),
        ("timm", {"pretrained_cfg.mean": [1, 2]}, "mean=[1, 2]"),
        ("timm", {"pretrained_cfg.std": [1, 0, 1]}, "std=[1, 0, 1]"),
        ("timm", {"model_args.global_pool": "avg"}, "global_pool='avg'"),
        ("timm", {"pretrained_cfg.crop_pct": 1e-320}, "crop_pct"),
        ("timm", {"pretrained_cfg.crop_pct": 13}, "crop_pct=13"),
        ("timm", {"pretrained_cfg.crop_pct": 10**400}, "crop_pct=1000"),
        ("huggingface", {"layer_norm_eps": 10**400}, "layer_norm_eps=1000"),
    ],
)
def test_a_false_config_is_refused(edited, kind, changes, message):
    folder = edited(kind, "config.json", changes)
    with refused(message):
        weights.load(folder)


CONTRADICTIONS = {
    "huggingface": {
        "hidden_size=32": "16",
        "num_hidden_layers=True": "2",
        "num_attention_heads=3": "a width of 16, over which they do not divide",
        "patch_size=[4, 8]": "4",
        "num_channels=1": "3",
        "qkv_bias=False": "True",
        "num_labels=4": "3",
        "intermediate_size=64": "24",
        "image_size=[12, 16]": "10 positions of patches of 4 pixels",
    },
    "dinov2": {
        "hidden_size=12": "16",
        "num_hidden_layers=1": "2",
        "num_attention_heads=32": "a width of 16, over which they do not divide",
        "patch_size=14": "4",
        "use_swiglu_ffn=True": "False",
        "mlp_ratio=4": "an MLP of 32 behind tokens of 16",
        "image_size=224": "10 positions of patches of 4 pixels",
        "num_register_tokens=4": "0",
    },
    "bit": {
        "embedding_size=64": "32",
        "depths=[1, 2, 1]": "[1, 2]",
        "hidden_sizes=[128]": "[128, 256]",
        "num_labels=2": "3",
    },
    "timm": {
        "num_classes=1000": "3",
        "num_features=768": "16",
        "model_args.in_chans=1": "3",
        "model_args.embed_dim=768": "16",
        "model_args.depth=12": "2",
        "model_args.num_heads=12": "a width of 16, over which they do not divide",
        "model_args.mlp_ratio=1e+300": "an MLP of 24 behind tokens of 16",
        "model_args.patch_size=16": "4",
        "model_args.img_size=224": "10 positions of patches of 4 pixels",
    },
}


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_sizes_of_another_model_are_reported_at_once(edited, kind):
    changes = {}
    for line in CONTRADICTIONS[kind]:
        key, value = line.split("=")
        changes[key] = ast.literal_eval(value)
    folder = edited(kind, "config.json", changes)
    with refused() as error:
        weights.load(folder)
    lines = str(error.value).splitlines()[1:]
    for line, (stated, there) in zip(lines, CONTRADICTIONS[kind].items(), strict=True):
        assert line.strip().startswith(stated) and line.endswith(there)


def _unstated(kind):
    needed = ("image_size", "img_size", "num_attention_heads", "num_heads")
    keys = [line.split("=")[0] for line in CONTRADICTIONS[kind]]
    return {key: None for key in keys if not key.endswith(needed)}


def test_sizes_need_not_be_stated(edited):
    weights.checkpoint_info(edited("timm", "config.json", _unstated("timm")))


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("huggingface", "hidden_size", 768),
        ("dinov2", "mlp_ratio", 4),
        ("bit", "depths", [3, 4, 6, 3]),
    ],
)
def test_sizes_that_hugging_face_does_not_state_are_defaults(edited, kind, key, value):
    with refused(key, value):
        weights.checkpoint_info(edited(kind, "config.json", _unstated(kind)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": {"height": None, "width": 3}}, "size={'width': 3}"),
        ({"size": {"height": "x", "width": 3}}, "size='x'"),
        ({"size": {"height": 24, "width": 24}}, "24 x 24"),
        ({"size": {"shortest_edge": 12, "longest_edge": 20}}, "longest_edge"),
        ({"size": {"shortest_edge": "x"}}, "shortest_edge='x'"),
        ({"size": [1, 2, 3]}, "size=[1, 2, 3]"),
        ({"do_center_crop": True, "crop_size": {"shortest_edge": 9}}, "crop_size={"),
        ({"do_center_crop": True, "crop_size": 24}, "crop_size"),
        ({"do_center_crop": True, "crop_size": {"height": 10**9, "width": 1}}, "crop_size=1000000"),
        ({"do_pad": True, "pad_size": {"height": 16, "width": 16}}, "pad_size={"),
        ({"resample": None}, "resample=None"),
        ({"image_processor_type": "ViTImageProcesor"}, "'ViTImageProcessor'"),
        ({"image_processor_type": 3}, "image_processor_type=3"),
        ({"image_mean": ["a", "b", "c"]}, "image_mean=['a', 'b', 'c']"),
        ({"rescale_factor": 0}, "rescale_factor=0"),
        ({"image_mean": [10**400] * 3}, "image_mean=[1000"),
        ({"rescale_factor": 10**400}, "rescale_factor=1000"),
    ],
)
def test_a_false_processor_is_refused(edited, changes, message):
    folder = edited("huggingface", "preprocessor_config.json", changes)
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
