"""Damaged, malicious or unsuitable files as config.init.weights are refused first of all."""

import os
import pickle
import re

import pytest
from etils import epath

from tests.weights.conftest import randomised, zip_bomb
from vit_jax import weights
from vit_jax.core.errors import UserError
from vit_jax.run import build
from vit_jax.train import train

TOY = {"depth": 2, "width": 16, "mlp_dim": 32, "num_heads": 2, "num_classes": 4, "image_size": 8}
UNNAMED = tuple(
    f"model.{field}=none" for field in ("name", "depth", "width", "mlp_dim", "num_heads")
)


def saved(path, to="google_npz", **fields):
    weights.save(randomised("ViT-Ti/4", None, **(TOY | fields)), path, to)
    return path


def truncated(tmp_path):
    folder = saved(tmp_path / "timm", "timm")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    return folder


class Evil:
    def __reduce__(self):
        return (os.mkdir, ("ran",))


def a_pickle(tmp_path):
    path = tmp_path / "weights.npz"
    path.write_bytes(pickle.dumps(Evil()))
    return path


HOSTILE = {
    truncated: "cannot be read",
    a_pickle: "is a pickle|would run code",
    zip_bomb: "a zip bomb",
}


@pytest.fixture
def refused(tmp_path, tiny_run, monkeypatch):
    """`refused(path, ...)`: the one message of a run from these weights, which wrote nothing."""

    def compiled(*_, **__):
        raise AssertionError("the step was compiled")

    monkeypatch.setattr(build, "lower_update", compiled)
    monkeypatch.chdir(tmp_path)

    def refused(path, *overrides):
        with pytest.raises(UserError) as error:
            config = tiny_run(f"init.weights={path}", *overrides)
            train(config, epath.Path(tmp_path / "run"))
        assert not {"run", "ran"} & set(os.listdir(tmp_path))
        assert str(error.value).startswith(f"init.weights={path}")
        return str(error.value)

    return refused


@pytest.mark.parametrize("overrides", [(), UNNAMED], ids=["named", "unnamed"])
@pytest.mark.parametrize("make", HOSTILE, ids=lambda make: make.__name__)
def test_hostile_files(tmp_path, refused, make, overrides):
    assert re.search(HOSTILE[make], refused(make(tmp_path), *overrides))


def test_the_command_ends_with_one_message(tmp_path, run_python):
    folder, workdir = truncated(tmp_path), tmp_path / "run"
    done = run_python(
        "-m", "vit_jax.train", "--config=configs/vit_digits.py", f"--workdir={workdir}",
        f"--config.init.weights={folder}",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert f"init.weights={folder}:" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not workdir.exists()
