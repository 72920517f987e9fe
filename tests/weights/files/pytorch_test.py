"""What lies around a state dict in PyTorch's files, and files that would end the reader."""

import argparse
import io
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


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_that_are_read(tmp_path, arrays, kind):
    path = saved(tmp_path, arrays | {HEAD: KINDS[kind](arrays[HEAD])}, "x.pth.tar")
    np.testing.assert_array_equal(read(path)[HEAD], arrays[HEAD].numpy())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_floats_of_8_bits(tmp_path, arrays, dtype):
    x = arrays[HEAD].to(dtype)
    pytest.importorskip("safetensors.torch").save_file({HEAD: x}, tmp_path / "x.safetensors")
    np.testing.assert_array_equal(read(tmp_path / "x.safetensors")[HEAD], x.float().numpy())


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
    "DINO": lambda a: {
        "student": {"module.backbone.x.weight": a[HEAD]}, "teacher": under("backbone.", a),
        "dino_loss": {"center": a[HEAD]},
    },
    "I-JEPA": lambda a: {
        "target_encoder": under("module.", a), "predictor": {"module.x.weight": a[HEAD]},
        "encoder": {"module.x.weight": a[HEAD]}, "opt": {"state": {}},
    },
    "target encoder": lambda a: {"target_encoder": under("module.", a), "epoch": 3},
    "another key": lambda a: {"params_ema": a},
    "numbers": lambda a: {**a, "epoch": 3, "loss": np.float32(1)},
    "optimizer": lambda a: {**a, "optimizer": {"state": {0: {"exp_avg": a[HEAD]}}}},
    "compiled": lambda a: under("_orig_mod.module.", a),
    "encoder": lambda a: {"state_dict": under("model.encoder.", a), "epoch": 1},
    "head beside it": lambda a: under("backbone.", parts(a)[0]) | parts(a)[1],
    "average": lambda a: {"n_averaged": torch.tensor(5), **under("module.", a)},
}  # fmt: skip


@pytest.mark.parametrize("kind", AROUND)
def test_what_lies_around_a_state_dict_is_told(tmp_path, arrays, images, capsys, kind):
    expected = weights.load(saved(tmp_path, arrays, "plain.pth"), num_heads=2)(images)
    assert "x.pth" not in capsys.readouterr().err
    path = saved(tmp_path, AROUND[kind](arrays))
    np.testing.assert_array_equal(weights.load(path, num_heads=2)(images), expected)
    said = capsys.readouterr().err
    assert re.search("its arrays are those of|is taken off|are read, not", said)
    assert (f"a checkpoint of {kind}; left out: " in said) == (kind in ("DINO", "I-JEPA"))
    assert ("of I-JEPA. Images are prepared" in said) == (kind == "target encoder")


REFUSED = {
    "distillation": (lambda a: {"student": a, "teacher": a}, "several models"),
    "prefixes": (lambda a: under("student.", a) | under("teacher.", a), "student."),
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
    "repeated": (
        lambda a: a | {HEAD: a[HEAD][:1, :1].half().expand(2**16, 2**16)},
        "cannot be read",
    ),
    "sparse": (
        lambda a: a | {HEAD: torch.sparse_coo_tensor([[0], [0]], [1.0], (2**16, 2**16))},
        "cannot be read",
    ),
    "quantised": (
        lambda a: a | {HEAD: torch.quantize_per_tensor(a[HEAD], 0.01, 0, torch.qint8)},
        "qint8",
    ),
    "meta": (lambda a: a | {HEAD: a[HEAD].to("meta")}, "meta"),
    "complex": (lambda a: a | {HEAD: a[HEAD].to(torch.complex64)}, "complex64"),
    "conjugate": (lambda a: a | {HEAD: a[HEAD].to(torch.complex64).conj()}, "complex64"),
    "integers": (lambda a: a | {HEAD: a[HEAD].int()}, "int32"),
    "flags": (lambda a: a | {HEAD: a[HEAD] > 0}, "bool"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_one_models_arrays(tmp_path, arrays, kind):
    make, message = REFUSED[kind]
    with named_error(message) as error:
        weights.load(saved(tmp_path, make(arrays)), num_heads=2)
    assert "\x1b" not in str(error.value)


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


def test_torchscript(tmp_path):
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "x.pt")
    with named_error("TorchScript"):
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


def test_placeholders_are_made_of_objects(tmp_path):
    """A class of the file is not called, although it is allowed."""
    path = saved(tmp_path, {"a.weight": torch.ones(2, 2), "args": argparse.Namespace(lr=0.1)})
    assert type(pytorch._load(path)["args"]) is pytorch._Placeholder
    assert list(read(path)) == ["a.weight"]
