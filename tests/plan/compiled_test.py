from vit_jax.plan.compiled import mega_cycles

HLO = """HloModule step
%body (x: f32[]) -> f32[] {
  %a = f32[] fusion(%x), backend_config={"estimated_cycles":"1000"}
}

ENTRY %main (x: f32[]) -> f32[] {
  %b = f32[] fusion(%x), backend_config={"estimated_cycles":"500"}
  ROOT %w = f32[] while(%b), body=%body, backend_config={"known_trip_count":{"n":"12"}}
}
"""


def test_the_body_of_a_loop_counts_as_often_as_it_runs():
    assert mega_cycles(HLO) == (500 + 12 * 1000) / 1e6
