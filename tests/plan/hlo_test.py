import jax
import jax.numpy as jnp

from vit_jax.plan.hlo import instructions

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
"""  # noqa: E501


def runs(hlo):
    return {i.name: (i.opcode, i.runs, i.fused) for i in instructions(hlo)}


def test_what_is_in_a_loop_runs_as_often_as_it_turns():
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


def test_a_loop_that_ends_when_it_likes_counts_once():
    found = instructions(LOOPS.replace("constant(5)", "parameter(1)"))
    assert {i.name: (i.runs, i.counted) for i in found} == {
        "v": (1, True),
        "w": (3, True),
        "a": (3, False),
        "p": (3, False),
        "n": (3, False),
        "t": (3, False),
    }


def test_reads_what_the_compiler_writes():
    def f(x):
        step = lambda x, _: (jnp.sin(x @ x), None)
        return jax.lax.scan(lambda x, _: jax.lax.scan(step, x, length=4), x, length=3)[0]

    hlo = jax.jit(f).lower(jnp.ones((8, 8))).compile().as_text()
    assert sum(i.runs for i in instructions(hlo) if i.opcode in ("dot", "custom-call")) == 12
