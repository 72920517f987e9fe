import json
import types

import jax
import numpy as np
import pytest

from tests.messages import refused
from tests.xla_flags import xla_flags
from vit_jax import config as configs
from vit_jax.run.parts import inputs
from vit_jax.tools.plan import compiled
from vit_jax.tools.plan.compiled import DoesNotFit, Figures, lower, planned_step
from vit_jax.tools.plan.hlo import KERNEL_FLOPS_A_CYCLE, mega_cycles

FOUND = Figures(6_913_536, {"all-reduce": 810_332}, 1357890.0, None, 31.9)


@pytest.fixture(scope="module")
def lowered(config_file):
    """`lowered("optim.b1=0.8")`: the lowered step of the config with overrides."""

    def lowered(*overrides):
        config = configs.load(config_file, overrides)
        return lower(planned_step(config, inputs.mesh(config.mesh)))

    return lowered


@pytest.fixture(scope="module")
def base(lowered):
    return lowered()


@pytest.fixture
def figures(monkeypatch, tmp_path):
    """`figures()`: from the cache, or FOUND; counts compilations."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiled, "key", lambda *_: "key")
    compilations = []

    def compile_(step):
        compilations.append(step)
        return FOUND

    monkeypatch.setattr(compiled, "read_figures", compile_)
    file = tmp_path / "vit_jax" / "plans" / "key.json"
    ask = lambda anew=False: compiled.cached_figures(None, "v5e:2x2", anew=anew)
    return types.SimpleNamespace(ask=ask, compilations=compilations, file=file)


class OnGpu:
    """A compiled step of a GPU, of one kernel, for which XLA's cost analysis is not asked."""

    def as_text(self):
        return "ENTRY %main (a: f32[4]) -> f32[4] {\n}\n"

    def memory_analysis(self):
        sizes = dict.fromkeys(("argument", "temp", "output", "alias"), 1)
        return types.SimpleNamespace(**{f"{k}_size_in_bytes": v for k, v in sizes.items()})


def test_figures_of_gpus_are_of_their_kernels(monkeypatch):
    monkeypatch.setattr(compiled, "compile_", lambda step: OnGpu())
    device = types.SimpleNamespace(platform="gpu", device_kind="NVIDIA H100 80GB HBM3")
    mesh = types.SimpleNamespace(devices=np.array([device]), shape={"data": 1})
    found = compiled.read_figures(compiled.LoweredStep(None, mesh, 1.0))
    assert (found.accessed_bytes, found.kernels, found.peak_bytes) == (0, 0, 2)


def test_is_compiled_once(figures):
    assert figures.ask() == (FOUND, False)
    assert figures.ask() == (FOUND, True)
    assert figures.ask(anew=True) == (FOUND, False)
    assert len(figures.compilations) == 2


def test_a_program_that_does_not_fit_is_cached_too(figures, monkeypatch):
    def refuse(step):
        raise DoesNotFit("The step does not fit: 20 GiB.")

    monkeypatch.setattr(compiled, "read_figures", refuse)
    with pytest.raises(DoesNotFit):
        figures.ask()
    monkeypatch.setattr(compiled, "read_figures", None)
    with refused("20 GiB", error=DoesNotFit):
        figures.ask()


@pytest.mark.parametrize("damage", ["", "{", "[]", "3", '{"peak_bytes": 1}', '{"other": 2}'])
def test_a_damaged_file_counts_as_none(figures, damage):
    figures.ask()
    figures.file.write_text(damage)
    assert figures.ask() == (FOUND, False)
    assert json.loads(figures.file.read_text()) == FOUND._asdict()


@pytest.mark.slow
def test_another_process_finds_the_same_program(base, monkeypatch, process):
    monkeypatch.setenv("XLA_FLAGS", xla_flags(jax.device_count()))  # as in that process
    assert process[-1] == compiled.key(base, "v5e:2x2")


def test_whatever_changes_the_program_changes_its_key(base, lowered, monkeypatch):
    steps = [base, lowered("model.depth=2"), lowered("optim.b1=0.8")]
    keys = [compiled.key(step, "v5e:2x2") for step in steps]
    keys.append(compiled.key(base, "v5e:4x4"))
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_enable_something=true")
    keys.append(compiled.key(base, "v5e:2x2"))
    assert len(set(keys)) == 5
    monkeypatch.delenv("LIBTPU_INIT_ARGS")
    assert compiled.key(lowered("input.num_examples=500"), "v5e:2x2") == keys[0]


HLO = """HloModule step
%body (x: f32[]) -> f32[] {
  %a = f32[] fusion(%x), backend_config={"estimated_cycles":"1000"}
}

ENTRY %main (x: f32[]) -> f32[] {
  %b = f32[] fusion(%x), backend_config={"estimated_cycles":"500"}
  ROOT %w = f32[] while(%b), body=%body, backend_config={"known_trip_count":{"n":"12"}}
}
"""


def test_a_kernel_counts_by_its_own_estimate():
    call = (
        'f32[] custom-call(%x), custom_call_target="tpu_custom_call", backend_config={'
        '"custom_call_config":{"body":"x","cost_estimate":{"flops":"8000000"}}}'
    )
    hlo = HLO.replace('f32[] fusion(%x), backend_config={"estimated_cycles":"1000"}', call)
    assert mega_cycles(hlo) == (500 + 12 * 8_000_000 / KERNEL_FLOPS_A_CYCLE) / 1e6
    # XLA may fuse what it reads with it.
    lines = call.replace('{"flops":"8000000"}', '{\n"bytes":1,\n"flops":8000000\n}, "x": 1')
    kernel = f"%kernel (x: f32[]) -> f32[] {{\n  %k = {lines}\n}}\n\n"
    fused = hlo.replace("%body", f"{kernel}%body", 1)
    fused = fused.replace(f"%a = {call}", "%a = f32[] fusion(%x), calls=%kernel")
    assert mega_cycles(fused) == mega_cycles(hlo)


def test_the_body_of_a_loop_counts_once_per_iteration():
    assert mega_cycles(HLO) == (500 + 12 * 1000) / 1e6
