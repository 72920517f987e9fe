import json
import types

import pytest

from vit_jax import config as configs
from vit_jax.plan import cache, compiled
from vit_jax.plan.compiled import DoesNotFit, Figures, lower, planned_step
from vit_jax.run import build

FOUND = Figures(6_913_536, {"all-reduce": 810_332}, 1357890.0, None, 31.9)
CONFIG = {
    "model": {"name": "ViT-Ti/4", "depth": 1, "width": 16, "mlp_dim": 32, "num_heads": 2},
    "input": {"preprocess": "decode|resize(8)", "batch_size": 16, "num_classes": 10},
    "loss": {"mixup": 0.2},
    "total": {"steps": 5},
}
KEY = f"""
from vit_jax import config as configs
from vit_jax.run import build
from vit_jax.plan import cache
from vit_jax.plan.compiled import lower, planned_step

config = configs.resolve({CONFIG!r}, [])
print(cache.key(lower(planned_step(config, build.mesh(config.mesh))), "v5e:2x2"))
"""


@pytest.fixture
def figures(monkeypatch, tmp_path):
    """`figures()`: from the cache, or FOUND; what has been compiled is counted."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "key", lambda *_: "key")
    compilations = []

    def compile_(step):
        compilations.append(step)
        return FOUND

    monkeypatch.setattr(compiled, "read_figures", compile_)
    ask = lambda anew=False: cache.figures(None, "v5e:2x2", anew=anew)
    return types.SimpleNamespace(ask=ask, compilations=compilations)


def test_is_compiled_once(figures):
    assert figures.ask() == (FOUND, False)
    assert figures.ask() == (FOUND, True)
    assert figures.ask(anew=True) == (FOUND, False)
    assert len(figures.compilations) == 2


def test_that_it_does_not_fit_is_kept_as_well(figures, monkeypatch):
    def refuse(step):
        raise DoesNotFit("The step does not fit: 20 GiB.")

    monkeypatch.setattr(compiled, "read_figures", refuse)
    with pytest.raises(DoesNotFit):
        figures.ask()
    monkeypatch.setattr(compiled, "read_figures", None)
    with pytest.raises(DoesNotFit, match="20 GiB"):
        figures.ask()


@pytest.mark.parametrize("damage", ["", "{", "[]", "3", '{"peak_bytes": 1}'])
def test_a_damaged_file_is_as_none(figures, damage):
    figures.ask()
    (cache.folder() / "key.json").write_text(damage)
    assert figures.ask() == (FOUND, False)
    assert json.loads((cache.folder() / "key.json").read_text()) == FOUND._asdict()


def test_without_a_folder_it_is_compiled(figures, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert figures.ask() == (FOUND, False)
    assert figures.ask() == (FOUND, False)


def test_another_process_finds_the_same_program(run_python):
    keys = {
        (done := run_python("-c", KEY, PYTHONHASHSEED=seed)).stdout or done.stderr
        for seed in ("1", "2")
    }
    assert len(keys) == 1
    assert len(keys.pop().strip()) == 64


def test_whatever_changes_the_program_changes_its_key(monkeypatch):
    def key(*overrides, topology="v5e:2x2"):
        config = configs.resolve(CONFIG, overrides)
        return cache.key(lower(planned_step(config, build.mesh(config.mesh))), topology)

    keys = [
        key(),
        key("model.depth=2"),
        key("optim.b1=0.8"),
        key("optim.grad_accum_steps=2"),
        key(topology="v5e:4x4"),
    ]
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_enable_something=true")
    assert len({*keys, key()}) == 6
    monkeypatch.delenv("LIBTPU_INIT_ARGS")
    assert key() == key("input.num_examples=500") == keys[0]
