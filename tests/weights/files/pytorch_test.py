"""What lies around a state dict in PyTorch's files, and files that would end the reader."""

import argparse
import io
import json
import pathlib
import re
import tarfile
import types

import numpy as np
import pytest

from tests.weights.conftest import TOY, named_error, randomised
from vit_jax import weights
from vit_jax.weights.files import detect_format, pytorch, safetensors

torch = pytest.importorskip("torch")
HEAD = "head.weight"


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    """A toy ViT's state dict in timm's names."""
    folder = tmp_path_factory.mktemp("arrays") / "x"
    weights.save(randomised("ViT-Ti/4", **(TOY | {"norm_epsilon": 1e-6})), folder, "timm")
    named = safetensors.read(folder / "model.safetensors")
    return {n: torch.tensor(np.array(x.read())) for n, x in named.items()}


def read(path):
    return {name: x.read() for name, x in detect_format.open_weights(path).tensors.items()}


def saved(tmp_path, document, name="x.pth", **options):
    torch.save(document, tmp_path / name, **options)
    return tmp_path / name


def under(prefix, arrays):
    return {f"{prefix}{name}": x for name, x in arrays.items()}


def parts(arrays):
    """(all but the head, the head)"""
    return tuple(
        {n: x for n, x in arrays.items() if ("head" in n) == is_head} for is_head in (0, 1)
    )


AROUND = {
    "options": lambda a: {"model": a, "epoch": 3, "args": argparse.Namespace(lr=0.1)},
    "objects": lambda a: {
        "state_dict": under("module.", a),
        "best": np.float64(0.5),
        "folder": pathlib.PurePosixPath("x"),
        "config": types.SimpleNamespace(lr=0.1),
        "optimizer": {"state": {0: {"exp_avg": a[HEAD]}}},
    },
    "nested": lambda a: {"teacher": {"backbone": a}, "dino_loss": {"center": a[HEAD]}},
    "another key": lambda a: {"params_ema": a},
    "numbers": lambda a: {**a, "epoch": 3, "loss": np.float32(1)},
    "optimizer": lambda a: {**a, "optimizer": {"state": {0: {"exp_avg": a[HEAD]}}}},
    "compiled": lambda a: under("_orig_mod.module.", a),
    "encoder": lambda a: {"state_dict": under("model.encoder.", a), "epoch": 1},
    "head beside it": lambda a: under("backbone.", parts(a)[0]) | parts(a)[1],
    "average": lambda a: {"n_averaged": torch.tensor(5), **under("module.", a)},
}


@pytest.mark.parametrize("kind", AROUND)
def test_what_lies_around_a_state_dict_is_told(tmp_path, arrays, images, capsys, kind):
    expected = weights.load(saved(tmp_path, arrays, "plain.pth"), num_heads=2)(images)
    assert "x.pth" not in capsys.readouterr().err
    path = saved(tmp_path, AROUND[kind](arrays))
    np.testing.assert_array_equal(weights.load(path, num_heads=2)(images), expected)
    said = capsys.readouterr().err
    assert "its arrays are those of" in said or "is taken off" in said or "are read, not" in said


REFUSED = {
    "prefixes": (
        lambda a: under("student.", a) | under("teacher.", a),
        "student.",
    ),
    "projection": (
        lambda a: under("backbone.", parts(a)[0]) | {"head.mlp.0.weight": a[HEAD]},
        "head.mlp.0.weight",
    ),
    "near": (
        lambda a: under("module.", {n: x for n, x in a.items() if n != "norm.bias"}),
        "norm.bias",
    ),
    "stray": (
        lambda a: (
            under("x.", {"patch_embed.proj.weight": a["patch_embed.proj.weight"]})
            | {n: x for n, x in a.items() if n != "patch_embed.proj.weight"}
        ),
        "patch_embed.proj.weight",
    ),
    "list": (lambda a: list(a.values()), "torch.save"),
    "module": (lambda a: torch.nn.Linear(2, 2), "torch.nn.modules.linear.Linear"),
    "numpy": (lambda a: {HEAD: a[HEAD].numpy()}, "_reconstruct"),
    "repeated": (lambda a: a | {HEAD: a[HEAD][:1, :1].half().expand(2**16, 2**16)}, ".clone()"),
    "sparse": (
        lambda a: a | {HEAD: torch.sparse_coo_tensor([[0], [0]], [1.0], (2**16, 2**16))},
        ".clone()",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_one_models_arrays(tmp_path, arrays, kind):
    make, message = REFUSED[kind]
    with named_error(message) as error:
        weights.load(saved(tmp_path, make(arrays)), num_heads=2)
    assert "\x1b" not in str(error.value)


def test_one_of_several_models_is_saved_as_the_message_says(tmp_path, arrays, monkeypatch):
    document = {"model": arrays, "ema": arrays, "args": argparse.Namespace(lr=0.1)}
    with named_error('["model"]', '["ema"]') as error:
        read(saved(tmp_path, document))
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"torch\.save\(.*\)(?=\. )", str(error.value))[0], {"torch": torch})
    assert read(tmp_path / "weights.pth").keys() == arrays.keys()


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("zipped", [True, False])
def test_indices_outside_a_sparse_tensor(tmp_path, arrays, layout, zipped):
    """PyTorch's to_dense() writes where they point, which ended the process."""
    wrong = arrays[HEAD].to_sparse() if layout == "coo" else arrays[HEAD].to_sparse_csr()
    (wrong._indices()[0] if layout == "coo" else wrong.col_indices())[0] = 10**6
    path = saved(tmp_path, arrays | {HEAD: wrong}, _use_new_zipfile_serialization=zipped)
    with named_error(path.name, "damaged"):
        read(path)


def test_placeholders_are_made_of_objects(tmp_path):
    """A class of the file is not called, although it is allowed."""
    path = saved(tmp_path, {"a.weight": torch.ones(2, 2), "args": argparse.Namespace(lr=0.1)})
    assert type(pytorch._load(path)["args"]) is pytorch._Placeholder
    assert list(read(path)) == ["a.weight"]


def test_torchscript(tmp_path):
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "x.pt")
    with named_error("torch.jit.load"):
        read(tmp_path / "x.pt")


def test_a_tar(tmp_path):
    with tarfile.open(tmp_path / "x.pth.tar", "w") as file:
        file.addfile(tarfile.TarInfo("x.pth"), io.BytesIO())
    with named_error("x.pth.tar"):
        weights.load(tmp_path / "x.pth.tar")


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json"])
def test_a_pointer_of_git_lfs_in_place_of_json(tmp_path, toy, name):
    weights.save(toy(norm_epsilon=1e-6), tmp_path / "x", "timm")
    (tmp_path / "x" / name).write_text("version https://git-lfs.github.com/spec/v1\noid x\n")
    with named_error(name):
        weights.load(tmp_path / "x")


@pytest.mark.parametrize("name", ["flax_model.msgpack", "adapter_model.safetensors", "m.gguf"])
def test_a_file_of_a_kind_that_is_not_read(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    with named_error(name):
        weights.load(tmp_path / name)


@pytest.mark.parametrize("name", ["..", "", "/etc/passwd", "a/b", "a\\b"])
def test_an_index_stays_in_its_folder(tmp_path, name):
    document = json.dumps({"weight_map": {"a": name}})
    (tmp_path / "model.safetensors.index.json").write_text(document)
    with named_error(repr(name)):
        weights.load(tmp_path)
