"""Damaged or malicious files: one message each, and nothing large is allocated."""

import ast
import io
import json
import os
import zipfile

import numpy as np
import pytest

from tests.weights.conftest import zip_bomb
from vit_jax import weights
from vit_jax.core.errors import UserError
from vit_jax.weights.files import detect_format, npz, of_array
from vit_jax.weights.files import safetensors as safetensors_file

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.float32)}


def refused(read, path):
    with pytest.raises(UserError) as error:
        for tensor in read(path).values():
            tensor.read()
    return str(error.value)


# --- .npz


def npy(array, allow_pickle=False):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=allow_pickle)
    return stream.getvalue()


def zipped(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return path


def header(text):
    """The file of an array with this header and 4 bytes."""
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + b"1234"


def test_an_intact_npz(tmp_path):
    npz.write(tmp_path / "x.npz", {n: of_array(x) for n, x in ARRAYS.items()})
    for name, tensor in npz.read(tmp_path / "x.npz").items():
        np.testing.assert_array_equal(tensor.read(), ARRAYS[name])
    assert os.listdir(tmp_path) == ["x.npz"]


def test_a_truncated_npz(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, **ARRAYS)
    path.write_bytes(path.read_bytes()[:-30])
    assert "cannot be read as .npz" in refused(npz.read, path)


def test_npz_with_a_flipped_bit(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, **ARRAYS)
    data = bytearray(path.read_bytes())
    data[data.index(b"\x00\x00\x80\x3f") + 2] ^= 1
    path.write_bytes(data)
    assert "Bad CRC-32" in refused(npz.read, path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (npy(np.array([{"a": 1}], object), allow_pickle=True), "run code"),
        (npy(np.array(["x"])), "not of numbers"),
        (b"MZ" + bytes(40), "not a NumPy array"),
        (b"", "not a NumPy array"),
        (npy(ARRAYS["a"])[:-1], "24 bytes, but has 23"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(40), "header of 4,294,967,295 bytes"),
        (header("__import__('os').abort()"), "header that cannot be read"),
        (header("(" * 3000), "header that cannot be read"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}"), "shape (-1,)"),
        (
            header("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 9999999)}"),
            "the file is damaged",
        ),
        (
            header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {(1,) * 71}}}"),
            "of 71 dimensions",
        ),
        (
            header("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 9223372036854775808)}"),
            "is empty, but has the shape",
        ),
    ],
    ids=[
        "pickle",
        "text",
        "no_array",
        "empty",
        "short",
        "long_header",
        "code",
        "deep",
        "negative",
        "huge",
        "dimensions",
        "empty",
    ],
)
def test_npz_with_a_bad_array(tmp_path, data, message):
    assert message in refused(npz.read, zipped(tmp_path / "x.npz", a=data))


def test_zip_bomb(tmp_path):
    """Nothing is unpacked."""
    assert "zip bomb" in refused(npz.read, zip_bomb(tmp_path))


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
    safetensors_file.write(path, {n: of_array(x) for n, x in ARRAYS.items()})
    tensors = safetensors_file.read(path)
    assert list(tensors) == list(ARRAYS)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor.read(), ARRAYS[name])
    path.write_bytes(path.read_bytes()[:-1])
    assert "not an intact safetensors" in refused(safetensors_file.read, path)


def test_arrays_of_a_quantised_file_are_not_damage(tmp_path, toy):
    weights.save(toy(norm_epsilon=1e-6), tmp_path / "x", "timm")
    file = tmp_path / "x" / "model.safetensors"
    named = {name: tensor.read() for name, tensor in safetensors_file.read(file).items()}
    entries, data = {}, b""
    for name, x in named.items():
        data, first = data + x.astype(np.int8).tobytes(), len(data)
        entries[name] = entry(first, len(data), x.shape, "I8")
    safetensors(file, entries, data)
    with pytest.raises(UserError, match=r"head\.bias is of int8, expected floating-point numbers"):
        weights.load(tmp_path / "x")


@pytest.mark.parametrize(
    ("entries", "length", "message"),
    [
        ({"a": entry()}, 2**63, "a header of 9,223,372,036,854,775,808 bytes"),
        (b"[" * 100_000, None, "its header is not JSON"),
        (b"\xff\xfe", None, "its header is not JSON"),
        (b"[]", None, "not a JSON object"),
        (b'{"a": 1, "a": 2}', None, "there twice"),
        ({"a": entry(last=16, shape=[4])}, None, "in 8 bytes of data"),
        ({"a": entry(first=-8)}, None, "in 8 bytes of data"),
        ({"a": entry(shape=[2**40])}, None, "does not have 8 bytes"),
        ({"a": entry(shape=[-1, -2])}, None, "in 8 bytes of data"),
        ({"a": entry(shape=[2.0])}, None, "in 8 bytes of data"),
        ({"a": entry(dtype="F7")}, None, "types read: F64, F32"),
        ({"a": None}, None, "its entry 'a'"),
        ({"a": entry(), "b": entry()}, None, "begins at byte 0 of the data, expected 8"),
        ({"a": entry(last=4, shape=[1])}, None, "end at byte 4 of the data, which has 8"),
        ({"a": entry(shape=[1] * 70 + [2])}, None, "a has 71 dimensions"),
        ({"a": entry(shape=[1] * 10**6)}, None, "a has 1000000 dimensions"),
        ({"a": entry(shape=[2**63])}, None, "does not have 8 bytes"),
        ({"a": entry(), "b": entry(8, 8, [0, 2**63])}, None, "b is empty, but has the shape [0, 9"),
        ({"a": entry(), "b": entry(8, 8, [0, 2**31, 2**31])}, None, "b is empty, but has"),
        ({"a": entry(shape=[True, 2])}, None, "in 8 bytes of data"),
        ({"a": entry(shape="2")}, None, "in 8 bytes of data"),
        ({"a": entry(last=8.0)}, None, "in 8 bytes of data"),
        ({"a": entry(first=8, last=0)}, None, "in 8 bytes of data"),
        (
            {"a": entry(first=4, last=8, shape=[1])},
            None,
            "begins at byte 4 of the data, expected 0",
        ),
        (
            {"a": entry(0, 8), "b": entry(4, 8, [1])},
            None,
            "begins at byte 4 of the data, expected 8",
        ),
        ({"x" * 10**6: entry()}, None, "a name of 1,000,000 characters begins with 'xxx"),
        (b'{"a": {"dtype": "F32", "dtype": "F64"}}', None, "there twice"),
        (b'{"a": ' * 10**5 + b"1" + b"}" * 10**5, None, "its header is not JSON"),
        (b'{"a": {"shape": [' + b"9" * 5000 + b"]}}", None, "its header is not JSON"),
        (b'{"a": {"shape": [NaN], "dtype": "F32", "data_offsets": [0, 8]}}', None, "in 8 bytes"),
        ({"__metadata__": [1], "a": entry(last=4, shape=[1])}, None, "end at byte 4 of the data"),
    ],
)
def test_safetensors_with_a_bad_header(tmp_path, entries, length, message):
    path = safetensors(tmp_path / "x.safetensors", entries, bytes(8), length)
    error = refused(safetensors_file.read, path)
    assert message in error
    assert len(error) < 600 + len(str(path))


def test_an_index_stays_in_its_folder(tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../x.safetensors"}}))
    assert "not a file in its own folder" in refused(detect_format.open_weights, tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "x.safetensors"}}))
    assert "get all parts" in refused(detect_format.open_weights, tmp_path)
    safetensors(tmp_path / "x.safetensors", {"b": entry()}, bytes(8))
    assert "names arrays that are not there: a in" in refused(detect_format.open_weights, tmp_path)
    index.write_text("[]")
    assert "not a JSON object" in refused(detect_format.open_weights, tmp_path)


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
        ("huggingface", {"model_type": ["vit"]}, "model of the type ['vit']"),
        ("huggingface", {"hidden_act": ["gelu"]}, "hidden_act=['gelu']"),
        ("huggingface", {"layer_norm_eps": "x"}, "layer_norm_eps='x'; it must be a number above 0"),
        ("huggingface", {"layer_norm_eps": float("nan")}, "layer_norm_eps=nan"),
        ("huggingface", {"id2label": ["a", "b"]}, "id2label=['a', 'b']; it must be a JSON object"),
        ("huggingface", {"image_size": -12}, "image_size=-12; it must be pixels"),
        (
            "huggingface",
            {"num_attention_heads": 0},
            "num_attention_heads=0, the arrays have a width",
        ),
        ("huggingface", {"num_attention_heads": 2.0}, "says 2.0 heads"),
        ("dinov2", {"layerscale_value": None, "layer_norm_eps": []}, "layer_norm_eps=[]"),
        ("dinov2", {"hidden_act": {}, "layerscale_value": -1}, "layerscale_value=-1"),
        ("timm", {"model_args": [1]}, "model_args=[1]; it must be a JSON object"),
        ("timm", {"pretrained_cfg": "x"}, "pretrained_cfg='x'"),
        ("timm", {"pretrained_cfg.crop_pct": 1e-300}, "crop_pct"),
        ("timm", {"pretrained_cfg.crop_pct": "x"}, "crop_pct='x'"),
        ("timm", {"pretrained_cfg.mean": [1, 2]}, "mean=[1, 2]; it must be three numbers"),
        ("timm", {"pretrained_cfg.std": [1, 0, 1]}, "std=[1, 0, 1]"),
        ("timm", {"model_args.act_layer": {"a": 1}}, "act_layer={'a': 1}"),
        ("timm", {"model_args.global_pool": "avg"}, "global_pool='avg', but its arrays are those"),
    ],
)
def test_a_false_config_is_refused(edited, kind, changes, message):
    with pytest.raises(UserError) as error:
        weights.load(edited(kind, "config.json", changes))
    assert message in str(error.value)


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
    with pytest.raises(UserError) as error:
        weights.load(folder)
    assert str(error.value).splitlines() == [
        f"{folder}: its config.json is of another model than its arrays:",
        *(f"  {line}, the arrays have {there}" for line, there in CONTRADICTIONS[kind].items()),
    ]


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
    with pytest.raises(UserError) as error:
        weights.checkpoint_info(edited(kind, "config.json", _unstated(kind)))
    assert f"{key} is not stated, which means {value}, the arrays have" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": {"width": 3}}, "size={'width': 3}; supported are height and width"),
        ({"size": {"height": None, "width": 3}}, "size={'width': 3}; supported are"),
        ({"size": {"height": "x", "width": 3}}, "size='x'; it must be pixels"),
        ({"size": {"height": 24, "width": 24}}, "become 24 x 24 pixels, the model takes 12 x 12"),
        ({"size": {"shortest_edge": 12, "longest_edge": 20}}, "shortest_edge alone"),
        ({"size": {"max_height": 12, "max_width": 12}}, "supported are height and width"),
        ({"do_center_crop": True, "crop_size": {"shortest_edge": 9}}, "give height and width"),
        ({"do_center_crop": True, "crop_size": 24}, "has black borders"),
        ({"do_pad": True, "pad_size": {"height": 16, "width": 16}}, "do_pad to pad_size="),
        ({"resample": None}, "resample=None. There are"),
        ({"image_processor_type": "PerceiverImageProcessor"}, "PerceiverImageProcessor', whose"),
        ({"image_processor_type": "ViTImageProcesor"}, "Did you mean 'ViTImageProcessor'"),
        ({"image_processor_type": 3}, "image_processor_type=3, whose steps are not known"),
        ({"size": {"shortest_edge": "x"}}, "shortest_edge='x'"),
        ({"size": [1, 2, 3]}, "size=[1, 2, 3]"),
        ({"do_center_crop": True, "crop_size": {"height": 10**9, "width": 1}}, "crop_size=1000000"),
        ({"image_mean": ["a", "b", "c"]}, "image_mean=['a', 'b', 'c']"),
        ({"image_std": [0.5, 0.5, 0.0]}, "image_std"),
        ({"rescale_factor": 0}, "rescale_factor=0; it must be a number above 0"),
    ],
)
def test_a_false_processor_is_refused(edited, changes, message):
    with pytest.raises(UserError) as error:
        weights.load(edited("huggingface", "preprocessor_config.json", changes))
    assert message in str(error.value)


# --- any file


def test_files_of_another_kind(tmp_path):
    path = tmp_path / "x.npz"
    for content in (b"", b"\x89PNG\r\n\x1a\n" + bytes(30)):
        path.write_bytes(content)
        assert "cannot be read as .npz" in refused(detect_format.open_weights, path)
    other = tmp_path / "x.txt"
    other.write_text("hello, world")
    assert "not a file of weights" in refused(detect_format.open_weights, other)


def test_a_pickle_is_never_run(tmp_path):
    """PyTorch's safe loader refuses it, and so does a Python without PyTorch."""

    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    import pickle

    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(pickle.dumps(Evil()))
    assert "pickle" in refused(detect_format.open_weights, path)
    assert not (tmp_path / "ran").exists()
