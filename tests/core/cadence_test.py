from vit_jax.core.cadence import Cadence


def test_due_at_multiples_and_at_the_end():
    due = Cadence(every_steps=3, total_steps=8)
    assert [s for s in range(9) if due(s)] == [3, 6, 8]


def test_without_a_number_due_at_the_end_alone():
    due = Cadence(every_steps=None, total_steps=8)
    assert [s for s in range(9) if due(s)] == [8]
