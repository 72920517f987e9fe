"""Weight files of other projects may name Python code; no reader imports any of it."""

import json

import numpy as np
import pytest
from flax import nnx

from tests.weights.conftest import edit
from vit_jax import models, weights
from vit_jax.core.errors import UserError
from vit_jax.store.checkpoints import Checkpoints
from vit_jax.weights.description import describe
from vit_jax.weights.files import from_array

EVIL = "evil.Class"
SMALL = {"depth": 1, "width": 8, "mlp_dim": 8, "num_heads": 2, "num_classes": 4, "image_size": 8}


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module `evil` in the current folder; the returned file exists once it was imported."""
    ran = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield ran
    assert not ran.exists()


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("huggingface", {
            "auto_map": {"AutoModel": f"{EVIL}--evil", "AutoConfig": EVIL},
            "custom_pipelines": {"x": {"impl": EVIL}}, "trust_remote_code": True,
            "_name_or_path": "evil", "torch_dtype": EVIL, "architectures": [EVIL],
        }),
        ("timm", {
            "custom_load": EVIL, "file": "evil.py", "library_name": "evil",
            "model_args": {"norm_layer": EVIL, "num_heads": 2},
        }),
    ],
)  # fmt: skip
def test_configs_of_models(tmp_path, toy, evil, kind, changes):
    fields = {"norm_epsilon": 1e-6} if kind == "timm" else {}
    weights.save(toy(**fields), tmp_path / kind, kind)
    edit(tmp_path / kind, changes)
    assert weights.load(tmp_path / kind).num_classes == 3


def test_metadata_of_safetensors(tmp_path, evil):
    from vit_jax.weights.files import safetensors

    arrays = {"a": from_array(np.ones(3, np.float32))}
    safetensors.write(tmp_path / "x.safetensors", arrays)
    content = (tmp_path / "x.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] = {"format": "evil", "class": EVIL, "auto_map": EVIL}
    new = json.dumps(header).encode()
    whole = len(new).to_bytes(8, "little") + new + content[8 + length :]
    (tmp_path / "x.safetensors").write_bytes(whole)
    tensors = safetensors.read(tmp_path / "x.safetensors")
    assert tensors["a"].read().tolist() == [1, 1, 1]


def replaced(value, number=0):
    """A JSON document in which all strings that name classes are replaced by EVIL's."""
    if isinstance(value, dict):
        return {name: replaced(x) for name, x in value.items()} | {"handler_typestr": EVIL}
    if isinstance(value, list):
        return [replaced(x) for x in value]
    is_class = isinstance(value, str) and ("." in value or value[:1].isupper())
    return EVIL if is_class else value


def test_metadata_of_checkpoints(tmp_path, evil):
    vit = models.create("ViT-Ti/4", **SMALL, rngs=nnx.Rngs(0))
    saved = {"params": nnx.to_pure_dict(nnx.split(vit, nnx.Param)[1])}
    info = models.info("ViT-Ti/4", **SMALL)
    about = describe(info, num_classes=4, class_names=None, preprocess=vit.preprocess)
    folder = tmp_path / "checkpoints"
    store = Checkpoints(
        folder, keep_last=1, keep_every_steps=None, best_metric=None, best_mode="max"
    )
    store.save(1, saved, about, {})
    store.close()
    changed = []
    for path in sorted(folder.rglob("*METADATA")):
        document = json.loads(path.read_text())
        path.write_text(json.dumps(replaced(document)))
        changed.append(path.name)
    assert set(changed) >= {"_CHECKPOINT_METADATA", "_METADATA"}
    try:
        assert weights.load(tmp_path).num_classes == 4
    except UserError as error:
        assert "damaged" in str(error) or "checkpoint" in str(error)
