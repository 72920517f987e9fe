"""Kernels of small programs as XLA writes them for a GPU."""

import jax
import jax.numpy as jnp
import pytest

from tests.messages import refused
from vit_jax.tools.plan.hlo import Collective, Kernel, collectives, instructions, kernels

LOOPS = """HloModule step, is_scheduled=true

%fused (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %n = f32[8]{0:T(8,128)} negate(%p)
}

%inner (x: (s32[], f32[8])) -> (s32[], f32[8]) {
  %a = f32[8]{0} fusion(%x), kind=kLoop, calls=%fused
  ROOT %t = (s32[], /*index=1*/f32[8]{0}) tuple(%i, %a)
}

%below_five (x: (s32[], f32[8])) -> pred[] {
  %five = s32[]{:T(128)} constant(5)
  ROOT %less = pred[] compare(%i, %five), direction=LT
}

%outer (x: (s32[], f32[8])) -> (s32[], f32[8]) {
  ROOT %w = (s32[], f32[8]{0}) while(%x), condition=%below_five, body=%inner
}

ENTRY %main (x: f32[8]) -> f32[8] {
  ROOT %v = (s32[], f32[8]{0}) while(%x), condition=%c, body=%outer, backend_config={"known_trip_count":{"n":"3"}}
}
"""  # noqa: E501, lines as XLA writes them


def runs(hlo):
    return {i.name: (i.opcode, i.runs, i.fused) for i in instructions(hlo)}


def test_a_loops_body_runs_once_per_iteration():
    assert runs(LOOPS) == {
        "v": ("while", 1, False),
        "w": ("while", 3, False),
        "a": ("fusion", 15, False),
        "p": ("parameter", 15, True),
        "n": ("negate", 15, True),
        "t": ("tuple", 15, False),
    }


def test_a_loop_that_counts_by_two():
    by_two = "  %two = s32[] constant(2)\n  %next = s32[] add(%counter, %two)\n"
    inner = "  ROOT %t = (s32[], /*index=1*/f32[8]{0}) tuple(%next, %a)"
    hlo = LOOPS.replace("  ROOT %t = (s32[], /*index=1*/f32[8]{0}) tuple(%i, %a)", by_two + inner)
    hlo = hlo.replace("ROOT %less", "%i = s32[] get-tuple-element(%x), index=0\n  ROOT %less")
    assert runs(hlo)["a"] == ("fusion", 3 * 3, False)


def test_a_loop_of_unknown_length_counts_once():
    listed = instructions(LOOPS.replace("constant(5)", "parameter(1)"))
    inside = dict.fromkeys("apnt", (3, False))
    assert {i.name: (i.runs, i.counted) for i in listed} == {
        "v": (1, True),
        "w": (3, True),
    } | inside


def test_reads_what_the_compiler_writes():
    def f(x):
        step = lambda x, _: (jnp.sin(x @ x), None)
        return jax.lax.scan(lambda x, _: jax.lax.scan(step, x, length=4), x, length=3)[0]

    hlo = jax.jit(f).lower(jnp.ones((8, 8))).compile().as_text()
    assert sum(i.runs for i in instructions(hlo) if i.opcode in ("dot", "custom-call")) == 12


# Collectives.

MESH = {"data": 2, "fsdp": 2, "tensor": 2}

PROGRAM = """HloModule step

ENTRY %main (x: f32[8]) -> f32[8] {{
  {}
}}
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "%r = f32[8,16]{1,0:T(8,128)} all-reduce(%x), replica_groups=[1,8]<=[8]",
            ("all-reduce", "f32", 512, 1, ("data", "fsdp", "tensor")),
        ),
        (
            "%r = bf16[8]{0} all-reduce(%x), replica_groups={{0,4},{1,5},{2,6},{3,7}}",
            ("all-reduce", "bf16", 16, 1, ("data",)),
        ),
        (
            "%r = f32[8]{0} all-reduce(%x), replica_groups={}",
            ("all-reduce", "f32", 32, 1, ("data", "fsdp", "tensor")),
        ),
        (
            "%r = bf16[8]{0} reduce-scatter(%x), replica_groups=[4,2]<=[2,2,2]T(0,2,1)",
            ("reduce-scatter", "bf16", 32, 1, ("fsdp",)),
        ),
        (
            "%r = bf16[8]{0} all-reduce(%x), replica_groups=mesh['a'=2,'b'=2,'c'=2] {'a','c'}",
            ("all-reduce", "bf16", 16, 1, ("data", "tensor")),
        ),
        (
            "%r = (u8[8]{0}, u8[16]{0}) all-gather-start(%x), replica_groups=[4,2]<=[8]",
            ("all-gather", "u8", 16, 1, ("tensor",)),
        ),
        (
            "%r = (bf16[8]{0}, bf16[4]{0}) reduce-scatter-start(%x), replica_groups=[4,2]<=[8]",
            ("reduce-scatter", "bf16", 16, 1, ("tensor",)),
        ),
        (
            "%r = (f32[8]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start(%x), "
            "source_target_pairs={{0,2},{2,0}}",
            ("collective-permute", "f32", 32, 1, ("fsdp",)),
        ),
    ],
)
def test_reads_a_collective(line, expected):
    program = PROGRAM.format(line)
    assert collectives(program, MESH) == [Collective(*expected)]


def test_the_steps_of_one_have_its_channel_and_count_once():
    step = "%{} = f32[8]{{0}} all-gather(%x), channel_id={}, replica_groups=[4,2]<=[8]"
    program = PROGRAM.format(
        "\n  ".join([step.format("a", 1), step.format("b", 1), step.format("c", 2)])
    )
    assert len(collectives(program, MESH)) == 2


def test_a_sum_that_each_device_takes_a_part_of():
    program = """HloModule step

%all-reduce-scatter.3 (x: f32[8]) -> f32[4] {
  %sum = f32[8]{0} all-reduce(%x), replica_groups=[4,2]<=[8]
  ROOT %own = f32[4]{0} dynamic-slice(%sum, %i)
}

ENTRY %main (x: f32[8]) -> f32[4] {
  ROOT %r = f32[4]{0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.3
}
"""
    assert collectives(program, MESH) == [Collective("reduce-scatter", "f32", 32, 1, ("tensor",))]


def test_a_collective_in_a_loop_of_unknown_length():
    program = """HloModule step

%body (x: f32[8]) -> f32[8] {
  ROOT %r = f32[8]{0} all-reduce(%x), replica_groups=[1,8]<=[8]
}

%until (x: f32[8]) -> pred[] {
  ROOT %p = pred[] compare(%a, %b), direction=LT
}

ENTRY %main (x: f32[8]) -> f32[8] {
  ROOT %w = f32[8]{0} while(%x), condition=%until, body=%body
}
"""
    with refused("all-reduce", error=ValueError):
        collectives(program, MESH)


# A product of which the operand is a slice of two layers, a fusion that adds a bias and a residual,
# and one that writes a layer in place.
GPU_PROGRAM = """HloModule step, is_scheduled=true

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
    assert kernels(GPU_PROGRAM) == [
        Kernel("kernel", 1, LAYER * 4 + 4 + LAYER * 2, 0),  # one layer of two; the index
        Kernel("product", 1, 16 * 8 * 2 + LAYER * 2 + ROWS * 2, 2 * 16 * 8 * 4),  # no workspace
        Kernel("added", 1, (ROWS + 4 + ROWS) * 2 + ROWS * 2 + 16 * 4, 0),
        Kernel("copied", 1, LAYER * 2 + LAYER * 4, 0),
        Kernel("state", 1, LAYER * 4 + 4 + LAYER * 4, 0),  # the other layer stays
    ]


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
