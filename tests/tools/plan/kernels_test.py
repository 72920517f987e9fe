"""Kernels of small programs as XLA writes them for a GPU."""

import pytest

from vit_jax.tools.plan.hlo import instructions
from vit_jax.tools.plan.kernels import Kernel, kernels, operands

# A product of which the operand is a slice of two layers, a fusion that adds a bias and a residual,
# and one that writes a layer in place.
PROGRAM = """HloModule step, is_scheduled=true

%fused_slice (p0: f32[2,8,4], p1: s32[]) -> bf16[8,4] {
  %p0 = f32[2,8,4]{2,1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %slice = f32[1,8,4]{2,1,0} dynamic-slice(%p0, %p1, %zero, %zero), dynamic_slice_sizes={1,8,4}
  %one = f32[8,4]{1,0} bitcast(%slice)
  ROOT %converted = bf16[8,4]{1,0} convert(%one)
}

%fused_add (a: bf16[16,4], b: bf16[4], c: bf16[16,4]) -> (bf16[16,4], f32[16]) {
  %a = bf16[16,4]{1,0} parameter(0)
  %b = bf16[4]{0} parameter(1)
  %c = bf16[16,4]{1,0} parameter(2)
  %wide = bf16[16,4]{1,0} broadcast(%b), dimensions={1}
  %sum = bf16[16,4]{1,0} add(%a, %wide)
  %rows = f32[16]{0} reduce(%sum, %c), dimensions={1}, to_apply=%sum_of
  ROOT %both = (bf16[16,4]{1,0}, f32[16]{0}) tuple(%sum, %rows)
}

%fused_update (state: f32[2,8,4], layer: f32[8,4], index: s32[]) -> f32[2,8,4] {
  %state = f32[2,8,4]{2,1,0} parameter(0)
  %layer = f32[8,4]{1,0} parameter(1)
  %index = s32[] parameter(2)
  %new = f32[1,8,4]{2,1,0} bitcast(%layer)
  ROOT %updated = f32[2,8,4]{2,1,0} dynamic-update-slice(%state, %new, %index, %index, %index)
}

%sum_of (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %xy = f32[] add(%x, %y)
}

ENTRY %main (params: f32[2,8,4], x: bf16[16,8], i: s32[]) -> f32[2,8,4] {
  %params = f32[2,8,4]{2,1,0} parameter(0)
  %x = bf16[16,8]{1,0} parameter(1), metadata={op_name="batch[\\'image\\']"}
  %i = s32[] parameter(2)
  %bias = bf16[4]{0} constant({1, 2, 3, 4})
  %kernel = bf16[8,4]{1,0} fusion(%params, %i), kind=kLoop, calls=%fused_slice
  %product = (bf16[16,4]{1,0}, s8[4194304]{0}) custom-call(%x, %kernel), custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  %y = bf16[16,4]{1,0} get-tuple-element(%product), index=0
  %added = (bf16[16,4]{1,0}, f32[16]{0}) fusion(%y, %bias, %y), kind=kInput, calls=%fused_add
  %reduced = bf16[16,4]{1,0} all-reduce-start(%y), replica_groups={}, to_apply=%sum_of
  %done = bf16[16,4]{1,0} all-reduce-done(%reduced)
  %copied = f32[8,4]{0,1} copy(%kernel)
  ROOT %state = f32[2,8,4]{2,1,0} fusion(%params, %copied, %i), kind=kLoop, calls=%fused_update
}
"""  # noqa: E501, lines as XLA writes them
LAYER, ROWS = 8 * 4, 16 * 4  # elements


def test_bytes_and_flops_of_each_kernel():
    assert kernels(PROGRAM) == [
        Kernel("kernel", 1, LAYER * 4 + 4 + LAYER * 2, 0),  # one layer of two; the index
        Kernel("product", 1, 16 * 8 * 2 + LAYER * 2 + ROWS * 2, 2 * 16 * 8 * 4),  # no workspace
        Kernel("added", 1, (ROWS + 4 + ROWS) * 2 + ROWS * 2 + 16 * 4, 0),
        Kernel("copied", 1, LAYER * 2 + LAYER * 4, 0),
        Kernel("state", 1, LAYER * 4 + 4 + LAYER * 4, 0),  # the other layer stays
    ]


def test_a_loops_kernels_run_once_per_iteration():
    loop = """HloModule step
%body (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  ROOT %y = f32[8]{0} negate(%x)
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  ROOT %w = f32[8]{0} while(%x), body=%body, backend_config={"known_trip_count":{"n":"12"}}
}
"""
    assert kernels(loop) == [Kernel("y", 12, 64, 0)]


@pytest.mark.parametrize(("name", "taken"), [("updated", 5), ("product", 2), ("params", 0)])
def test_operands(name, taken):
    (one,) = (each for each in instructions(PROGRAM) if each.name == name)
    assert len(operands(one)) == taken


def test_a_product_inside_a_fusion_counts():
    fused = """HloModule step
%inside (a: f32[2,3,5], b: f32[2,5,7]) -> f32[2,3,7] {
  %a = f32[2,3,5]{2,1,0} parameter(0)
  %b = f32[2,5,7]{2,1,0} parameter(1)
  ROOT %dot = f32[2,3,7]{2,1,0} dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}
}

ENTRY %main (a: f32[2,3,5], b: f32[2,5,7]) -> f32[2,3,7] {
  %a = f32[2,3,5]{2,1,0} parameter(0)
  %b = f32[2,5,7]{2,1,0} parameter(1)
  ROOT %f = f32[2,3,7]{2,1,0} fusion(%a, %b), kind=kCustom, calls=%inside
}
"""  # noqa: E501, lines as XLA writes them
    (kernel,) = kernels(fused)
    assert kernel.flops == 2 * 2 * 3 * 5 * 7
    assert kernel.nbytes == 4 * 2 * (3 * 5 + 5 * 7 + 3 * 7)
