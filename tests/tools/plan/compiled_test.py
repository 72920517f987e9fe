import types

import numpy as np

from vit_jax.tools.plan import compiled
from vit_jax.tools.plan.hlo import KERNEL_FLOPS_A_CYCLE, mega_cycles


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
    planned = types.SimpleNamespace(layout=types.SimpleNamespace(mesh=mesh))
    found = compiled.read_figures(planned)
    assert (found.accessed_bytes, found.kernels, found.peak_bytes) == (0, 0, 2)


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
