import pytest

from vit_jax.plan.collectives import Collective, collectives

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
            "%r = (f32[8]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start(%x), "
            "source_target_pairs={{0,2},{2,0}}",
            ("collective-permute", "f32", 32, 1, ("fsdp",)),
        ),
    ],
)
def test_reads_one(line, expected):
    program = PROGRAM.format(line)
    assert collectives(program, MESH) == [Collective(*expected)]


def test_several_arrays_are_several_and_the_end_of_one_is_none():
    start = "%r = (f32[8]{0}, bf16[8]{0}) all-reduce-start(%x, %y), replica_groups=[4,2]<=[8]"
    done = "%d = (f32[8]{0}, bf16[8]{0}) all-reduce-done(%r)"
    found = collectives(PROGRAM.format(f"{start}\n  {done}"), MESH)
    assert [(c.dtype, c.total_bytes) for c in found] == [("f32", 32), ("bf16", 16)]


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


def test_in_a_loop_that_ends_when_it_likes():
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
    with pytest.raises(ValueError, match="How often does this run"):
        collectives(program, MESH)
