"""What people have instead of a file of weights: each is read, or said in one message."""

import argparse
import json

import numpy as np
import pytest

from tests.weights.conftest import named_error, params_of
from vit_jax import weights

torch = pytest.importorskip("torch")


@pytest.fixture
def saved(toy, tmp_path):
    """(the model, its arrays as timm names them, as torch's)"""
    loaded = toy(gelu="exact", norm_epsilon=1e-6)
    weights.save(loaded, tmp_path / "timm", "timm")
    from safetensors.torch import load_file

    return loaded.model, dict(load_file(tmp_path / "timm" / "model.safetensors"))


KINDS = {
    "parameter": lambda x: torch.nn.Parameter(x.clone()),
    "requires_grad": lambda x: x.clone().requires_grad_(),
    "sparse": lambda x: x.to_sparse(),
    "csr": lambda x: x.to_sparse_csr(),
    "negative": lambda x: torch._neg_view(-x),
    "double": lambda x: x.double(),
    "view": lambda x: torch.cat([x, x])[: len(x)],
    "transposed": lambda x: x.T.contiguous().T,
}
REFUSED = {
    "quantised": (
        lambda x: torch.quantize_per_tensor(x, 0.01, 0, torch.qint8), "qint8"
    ),
    "meta": (lambda x: x.to("meta"), '"meta"'),
    "complex": (lambda x: x.to(torch.complex64), "complex64"),
    "conjugate": (lambda x: x.to(torch.complex64).conj(), "complex64"),
    "integers": (lambda x: x.int(), "int32"),
    "flags": (lambda x: x > 0, "bool"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_that_are_read(saved, tmp_path, kind):
    model, arrays = saved
    torch.save(arrays | {"head.weight": KINDS[kind](arrays["head.weight"])}, tmp_path / "x.pth.tar")
    read = params_of(weights.load(tmp_path / "x.pth.tar", num_heads=2))
    for name, x in params_of(model).items():
        np.testing.assert_array_equal(read[name], x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", REFUSED)
def test_tensors_that_are_refused(saved, tmp_path, kind):
    _, arrays = saved
    change, message = REFUSED[kind]
    torch.save(arrays | {"head.weight": change(arrays["head.weight"])}, tmp_path / "x.pth")
    with named_error(message):
        weights.load(tmp_path / "x.pth", num_heads=2)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module.backbone.", "model."])
@pytest.mark.parametrize("key", [None, "state_dict", "model", "teacher"])
def test_wrappers_are_taken_off(saved, tmp_path, prefix, key):
    model, arrays = saved
    content = {prefix + name: x for name, x in arrays.items()}
    if key:
        beside = {"epoch": 3, "args": argparse.Namespace(lr=0.1), "optimizer": {"state": {}}}
        content = {key: content, **beside}
    torch.save(content, tmp_path / "x.pth")
    read = params_of(weights.load(tmp_path / "x.pth", num_heads=2))
    np.testing.assert_array_equal(read["head/kernel"], params_of(model)["head/kernel"])


def test_several_models_are_asked_for(saved, tmp_path):
    _, arrays = saved
    torch.save({"student": arrays, "teacher": arrays}, tmp_path / "x.pth")
    with named_error('["student"]', '["teacher"]'):
        weights.load(tmp_path / "x.pth")


def test_prefixes_of_two_models_are_named(saved, tmp_path):
    _, arrays = saved
    both = {f"{p}.{n}": x for p in ("base_encoder", "momentum_encoder") for n, x in arrays.items()}
    torch.save(both, tmp_path / "x.pth")
    with named_error("base_encoder.", "momentum_encoder."):
        weights.load(tmp_path / "x.pth")


def test_a_pointer_of_git_lfs(tmp_path):
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 343\n"
    for name in ("model.safetensors", "x.npz", "x.pth"):
        (tmp_path / name).write_text(text)
        with named_error(name):
            weights.load(tmp_path / name)


def test_floats_of_8_bits(saved, tmp_path):
    from safetensors.torch import save_file

    _, arrays = saved
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        x = arrays["head.weight"].to(dtype)
        save_file(arrays | {"head.weight": x}, tmp_path / "x.safetensors")
        read = params_of(weights.load(tmp_path / "x.safetensors", num_heads=2))
        np.testing.assert_array_equal(read["head/kernel"], x.float().numpy().T)
    header = json.dumps({"a": {"dtype": "F8_E8M0", "shape": [1], "data_offsets": [0, 1]}}).encode()
    (tmp_path / "y.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    with named_error("F8_E8M0"):
        weights.load(tmp_path / "y.safetensors")


@pytest.mark.parametrize(
    "name",
    [
        "flax_model.msgpack",
        "tf_model.h5",
        "adapter_model.safetensors",
        "model.gguf",
        "program.jax_export",
        "vit.safetensors",
    ],
)
def test_a_folder_without_weights_that_are_read(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    (tmp_path / "config.json").write_text("{}")
    with named_error(name):
        weights.load(tmp_path)


@pytest.mark.parametrize("name", ["x" * 5000, "\ud800", "a\0b"])
def test_an_index_that_names_what_no_file_is_called(tmp_path, name):
    document = json.dumps({"weight_map": {"a": name}})
    (tmp_path / "model.safetensors.index.json").write_text(document)
    with named_error("model.safetensors.index.json") as raised:
        weights.load(tmp_path)
    assert len(str(raised.value)) < 1000
    str(raised.value).encode()
