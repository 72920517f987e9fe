"""The search for the largest batch, and what the command says of a real step."""

import dataclasses
import json
import types

import pytest

from tests.tools.plan.command_test import plan  # noqa: F401  # a fixture
from vit_jax.core.errors import UserError
from vit_jax.tools.plan.compiled import DoesNotFit
from vit_jax.tools.plan.forecast import Memory
from vit_jax.tools.plan.largest_batch import largest_batch

STATE = 100


@pytest.fixture
def found(tiny_run):
    """`found(batch_size, there)`: what fits where an image takes a byte beside the state."""

    def found(batch_size, there, *, devices=2, given=None, refuses=False):
        config = tiny_run(f"input.batch_size={batch_size}")
        mesh = types.SimpleNamespace(shape={"replica": 1, "data": devices, "fsdp": 1, "tensor": 1})
        tried = []

        def memory_of(config):
            parts = config.optim.grad_accum_steps
            tried.append((config.input.batch_size, parts))
            micro = config.input.batch_size // parts // devices
            if refuses and STATE + micro > there:
                raise DoesNotFit("too large")
            return Memory(0, 0, 0, None, STATE + micro, there)

        return largest_batch(config, mesh, memory_of, there=given), tried

    return found


@pytest.mark.parametrize("refuses", [False, True])
def test_the_fewest_microbatches_that_fit(found, refuses):
    best, tried = found(960, STATE + 100, refuses=refuses)
    assert (best.grad_accum_steps, best.peak) == (5, STATE + 96)
    assert (best.in_one_go, best.too_large) == (192, 240)
    assert len(tried) <= 7 and len(set(tried)) == len(tried)
    assert ("the same update by", "--config.optim.grad_accum_steps=5") in best.rows()


def test_a_batch_that_fits_is_doubled(found):
    best, tried = found(16, STATE + 100)
    assert best == (16, 1, STATE + 8, STATE + 100, 128, 256)
    assert [size for size, _ in tried] == [16, 32, 64, 128, 256]
    assert found(16, 10**9)[0].too_large is None


def test_what_can_never_fit_is_refused(found):
    with pytest.raises(DoesNotFit, match="Not even 8 microbatches of 2 images fit"):
        found(16, STATE)


def test_memory_that_is_not_known_has_to_be_given(found):
    with pytest.raises(UserError, match="give --memory_gib, or --topology"):
        found(16, None)
    assert found(16, None, given=STATE + 100)[0].there == STATE + 100


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compilation")
def test_of_a_real_step(plan):  # noqa: F811  # that fixture
    model = ("model.name=ViT-Ti/4", "model.depth=2", "input.batch_size=256")
    peak = lambda parts: json.loads(
        plan(*model, f"optim.grad_accum_steps={parts}", json=True)
    )["memory"]["peak"]  # fmt: skip
    whole, less = peak(1), peak(8)
    assert less < whole
    gib = (whole + less) / 2 / 2**30
    best = json.loads(plan(*model, largest_batch=True, memory_gib=gib, json=True))
    assert 1 < best["grad_accum_steps"] <= 8 and best["peak"] <= gib * 2**30
    assert peak(best["grad_accum_steps"]) == best["peak"]


def test_only_the_batch_and_its_parts_differ(tiny_run):
    from vit_jax.tools.plan.largest_batch import _with

    config = tiny_run()
    tried = _with(config, 16, 4)
    assert tried.optim == dataclasses.replace(config.optim, grad_accum_steps=4)
    assert (tried.input, tried.total) == (config.input, config.total)
