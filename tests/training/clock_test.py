import types

import pytest

from vit_jax.training.clock import Cadence, Clock


@pytest.mark.parametrize(("every_steps", "steps"), [(3, [3, 6, 8]), (0, [8]), (None, [8])])
def test_a_cadence_is_due_at_multiples_and_at_the_end(every_steps, steps):
    due = Cadence(every_steps, total_steps=8)
    assert [s for s in range(9) if due(s)] == steps


def make_clock(monkeypatch, peak_flops=None):
    now, feed = [100.0], types.SimpleNamespace(wait_secs=0.0)
    monkeypatch.setattr("vit_jax.training.clock.time.perf_counter", lambda: now[0])
    clock = Clock(
        batch_size=32, step_flops=1e9, peak_flops=peak_flops, start_step=10, total_steps=50,
        feed=feed,
    )  # fmt: skip
    return clock, now, feed


def test_speeds_are_measured_since_the_last_tick(monkeypatch):
    clock, now, feed = make_clock(monkeypatch, peak_flops=10e9)
    now[0], feed.wait_secs = 104.0, 1.0
    assert clock.tick(20) == {
        "speed/images_per_second": 80.0,
        "speed/input_wait": 0.25,
        "speed/mfu": 0.25,
    }
    assert clock.eta_secs == 12.0


def test_pauses_do_not_count(monkeypatch):
    clock, now, _ = make_clock(monkeypatch)
    with clock.paused():
        now[0] += 1000
    now[0] += 1
    assert clock.tick(11)["speed/images_per_second"] == 32.0


def test_no_mfu_without_a_known_peak(monkeypatch):
    clock, now, _ = make_clock(monkeypatch)
    now[0] += 1
    assert "speed/mfu" not in clock.tick(11)
