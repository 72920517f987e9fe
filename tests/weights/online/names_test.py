import json
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.messages import refused
from tests.weights.conftest import named_error
from tests.weights.online.server import serving
from vit_jax import models, weights
from vit_jax.weights.online import download, parse

OBJECT = "gs://bucket/toy.npz"


@pytest.fixture
def server(monkeypatch, tmp_path, point_hub):
    monkeypatch.setattr(download, "WAIT_SECS", (0, 0))
    monkeypatch.setenv("VIT_JAX_CACHE", str(tmp_path / "cache"))
    with serving() as served:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", served.url)
        point_hub(served.url)
        yield served


def toy(tmp_path, to) -> Path:
    fields = {"depth": 1, "width": 16, "mlp_dim": 32, "num_heads": 2, "gelu": "exact"}
    if to == "google_npz":
        fields["gelu"] = "tanh"
    model = models.create("ViT-Ti/16", num_classes=3, image_size=32, rngs=nnx.Rngs(0), **fields)
    path = tmp_path / ("toy.npz" if to == "google_npz" else "toy")
    weights.save(weights.Loaded(model, "ViT-Ti/16", None, 0), path, to)
    return path


def serve_repository(server, tmp_path):
    folder = toy(tmp_path, "huggingface")
    server.files = {file.name: file.read_bytes() for file in folder.iterdir()}
    return folder


def same(a, b):
    images = jnp.ones((1, 32, 32, 3))
    assert np.array_equal(weights.load(a)(images), weights.load(b)(images))


def test_a_repository_is_fetched_once_and_pinned(server, tmp_path):
    folder = serve_repository(server, tmp_path)
    same("timm:toy", folder)
    assert str(weights.fetch("hf:timm/toy@v1")) == f"hf:timm/toy@{'a' * 40}"
    server.asked.clear()
    assert weights.checkpoint_info(f"timm:toy@{'a' * 40}").origin == f"timm:toy@{'a' * 40}"
    assert not server.asked


@pytest.mark.parametrize(
    ("status", "name", "message"),
    [
        (None, "hf:timm/other", "timm/other"),
        (None, "timm:toy@v9", "v9"),
        (401, "timm:toy", "HF_TOKEN"),
        (403, "timm:toy", "HF_TOKEN"),
    ],
)
def test_what_the_hub_refuses(server, status, name, message):
    server.files, server.status = {"pytorch_model.bin": b"x"}, status
    with named_error(message):
        weights.fetch(name)


def test_pickles_and_damage_are_refused(server, tmp_path):
    server.files = {"pytorch_model.bin": b"x"}
    with named_error("model.safetensors"):
        weights.fetch("timm:toy")
    server.commit = "b" * 40
    serve_repository(server, tmp_path)
    server.wrong_hash = True
    with named_error("SHA-256"):
        weights.fetch("timm:toy")


def test_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with refused("[hub]"):
        weights.fetch("timm:toy")


def test_an_object_is_kept_resumed_and_checked(server, tmp_path, capsys):
    file = toy(tmp_path, "google_npz")
    server.files = {"bucket/toy.npz": file.read_bytes()}
    server.cut_after = 1000
    same(OBJECT, file)
    about = json.loads(next((tmp_path / "cache").rglob("about.json")).read_text())
    assert about["generation"] == "7"
    pinned = str(weights.fetch(OBJECT))
    assert pinned == f"{OBJECT}#sha256={about['sha256']}"
    server.asked.clear()
    weights.fetch(pinned)
    assert not server.asked
    server.status = 503
    weights.fetch(OBJECT)
    assert "The copy of" in capsys.readouterr().err


def test_a_damaged_object_is_refused(server, tmp_path):
    server.files = {"bucket/toy.npz": b"x" * 100}
    server.wrong_hash = True
    with named_error("CRC-32C"):
        weights.fetch(OBJECT)
    server.status = 403
    with named_error("403", "Log in"):
        weights.fetch(OBJECT)


@pytest.mark.parametrize("path", ["runs/x", "/a/b.npz", "gs://bucket/runs/x", "C:/x"])
def test_paths_are_no_names(path):
    assert parse(path) is None


MISTAKES = {
    "huggingface:google/x": "hf:OWNER/NAME", "hf:a/b/c": "hf:OWNER/NAME", "hf:a/b@../x": "@",
    "https://huggingface.co/google/x": "hf:OWNER/NAME", "https://example.org/x.bin": "x.bin",
    "https://example.org/\0.npz": ".npz", "gs://bucket/\udcff.npz": ".npz",
    "https://example.org/x.npz#sha256=a": "sha256", "https://me:it@example.org/x.npz": "password",
}  # fmt: skip
NO_ADDRESSES = (
    "file:///tmp/x.npz", "FTP://example.org/x.npz", "foo://x", "http://[", "https://",
    "https://example.org:99999/x.npz", "https://example.org/a b.npz", "HTTP://example.org/x.npz",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "message"), (MISTAKES | dict.fromkeys(NO_ADDRESSES, "https://HOST/PATH")).items()
)
def test_mistakes_in_names(name, message):
    with refused(message) as raised:
        parse(name)
    assert "me:it" not in str(raised.value)
