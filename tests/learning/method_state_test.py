"""What a method carries from step to step: of all microbatches, across starts and skipped steps."""

import dataclasses
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.nn import initializers

from vit_jax import plugins
from vit_jax.core.axes import TOKENS
from vit_jax.core.errors import NonFiniteError
from vit_jax.core.schema import entry_points
from vit_jax.core.schema.fields import field
from vit_jax.core.screen import Screen
from vit_jax.learning.method import LossOutput, Method
from vit_jax.learning.state import skip_update
from vit_jax.models.layers.linear import param
from vit_jax.run.build import Run
from vit_jax.train import train


@dataclasses.dataclass(frozen=True)
class Seen(Method):
    """Keeps the sums of the images of the last four steps, the newest first."""

    kind: str = field("seen")
    breaks_after: int = field(1000, "steps with a finite loss")

    def make_state(self, model, rngs):
        return nnx.Dict(sums=param(initializers.zeros, (4,), (TOKENS,), None))

    def loss(self, model, inputs, key, context):
        sums = context.state["sums"][...]
        breaks = jnp.sum(sums != 0) >= self.breaks_after
        losses = model.features(inputs.images).mean(-1) + jnp.where(breaks, jnp.nan, 0.0)
        return LossOutput(losses, {}, observed=inputs.images.sum((1, 2, 3)))

    def next_state(self, state, observed, context):
        newest = jnp.sum(observed)[None]
        state["sums"][...] = jnp.concatenate([newest, state["sums"][...]])[:4]
        return state


@pytest.fixture(autouse=True)
def _method(monkeypatch):
    monkeypatch.setattr(entry_points, "_added", {})
    plugins.add("methods", "seen", Seen)


def sums(config, folder):
    return np.asarray(train(config, folder).method_state["sums"])


def test_is_that_of_whole_batches_and_goes_on_after_a_start(tmp_path, tiny_run):
    fields = ("method.kind=seen", "checkpoint.every_steps=2")
    straight = sums(tiny_run(*fields, "total.steps=4"), tmp_path / "a")
    assert straight.all() and len(set(straight.tolist())) == 4
    parts = sums(tiny_run(*fields, "total.steps=4", "optim.grad_accum_steps=2"), tmp_path / "b")
    np.testing.assert_allclose(parts, straight, rtol=1e-5)
    shutil.rmtree(tmp_path / "a" / "checkpoints" / "4")
    resumed = sums(tiny_run(*fields, "total.steps=4"), tmp_path / "a")
    np.testing.assert_array_equal(resumed, straight)
    skipped = sums(tiny_run(*fields, "total.steps=4", "input.skip_steps=4"), tmp_path / "c")
    np.testing.assert_array_equal(skipped, [*straight[1:], 0])


def test_a_step_that_is_skipped_or_not_finite_leaves_it(tmp_path, tiny_run):
    config = tiny_run("method.kind=seen", "method.breaks_after=2")
    run = Run.build(config, tmp_path)
    update, layout, states = run.compile_update(Screen()), run.parts.layout, []
    state = layout.in_steps.init(0)
    with run.feed(start_step=0) as feed:
        for _ in range(4):
            state, _ = update(state, next(feed))
            states.append(np.asarray(state.method_state["sums"]))
        skipped, _ = skip_update(state, next(feed))
    assert (states[1] != states[0]).any() and states[1].any()
    for after in (states[2], states[3], skipped.method_state["sums"]):
        np.testing.assert_array_equal(after, states[1])
    assert (int(skipped.step), int(skipped.first_bad_step)) == (5, 3)


def test_a_step_that_is_not_finite_is_told(tmp_path, tiny_run):
    config = tiny_run("method.kind=seen", "method.breaks_after=2", "total.steps=6")
    with pytest.raises(NonFiniteError, match="Step 3"):
        train(config, tmp_path)
