import contextlib
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.messages import refused
from vit_jax.learning.optim import optimizers
from vit_jax.learning.state import state_layout
from vit_jax.run.parts import inputs, networks, outputs, updates
from vit_jax.run.parts.durations import make_durations
from vit_jax.train import train


def test_offloading_needs_memory_to_go_to(tiny_run):
    class Device:
        device_kind = "a chip"

        def addressable_memories(self):
            return [SimpleNamespace(kind="device")]

    mesh = SimpleNamespace(devices=np.array([Device()]))
    with refused("model.remat=full"):
        updates.layout(tiny_run("model.remat=offload"), None, None, mesh)


def lr(config, *, num_examples=64):
    return updates.schedule(config.optim, make_durations(config, num_examples=num_examples))


def test_the_logged_weight_decay_is_that_of_what_is_trained(tmp_path, tiny_run, quick_compilation):
    """LAMB's ratio of a layer without gradient, as all blocks at first, is 1 / weight_decay."""
    fields = ("optim.name=lamb", "optim.eps=1e-6", "optim.weight_decay=1e-6", "total.steps=2")
    train(tiny_run(*fields, "optim.warmup_steps=none", "optim.freeze=blocks/0"), tmp_path)
    row = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0 < row["train/effective_weight_decay"] < 10 * 1e-6 * row["train/learning_rate"]


def test_a_trace_that_would_never_come_is_refused(tiny_run):
    assert make_durations(tiny_run("log.profile_at_step=5"), num_examples=64).total_steps == 6
    with refused("profile_at_step"):
        make_durations(tiny_run("log.profile_at_step=6"), num_examples=64)


@pytest.mark.parametrize("length", ["steps=8", "epochs=2", "examples=128"])
def test_cooldown_in_three_units(tiny_run, length):
    config = tiny_run("optim.schedule=constant", "total.steps=16", f"optim.cooldown_{length}")
    assert make_durations(config, num_examples=64).cooldown_steps == 8


@pytest.mark.parametrize("field", ["freeze=haed/.*", "lr_multipliers=haed/.*=2"])
def test_a_pattern_that_matches_nothing_stops_before_anything_is_written(tiny_run, tmp_path, field):
    with refused("'head/bias'"):
        train(tiny_run(f"optim.{field}"), tmp_path)
    assert not list(tmp_path.iterdir())


def in_bfloat16(name):
    """Overrides for an optimizer with its moment, where it has one, in bfloat16."""
    has_moment = "mu_dtype" in optimizers.OPTIMIZERS[name].reads
    return (f"optim.name={name}", *["optim.mu_dtype=bfloat16"] * has_moment)


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_a_checkpoint_keeps_every_array_in_its_place(tiny_run, tmp_path, name):
    config = tiny_run(*in_bfloat16(name), "optim.freeze=patches/.*")
    model = networks.model(config, num_classes=4)
    optimizer = updates.optimizer(config.optim, lambda step: config.optim.lr)
    mesh = inputs.mesh(config.mesh)
    layout = state_layout(model.make, optimizer, mesh, ema_decay=None, shard_optimizer=False).state
    leaves, structure = jax.tree.flatten(layout)
    numbers = (np.full(x.shape, i, x.dtype) for i, x in enumerate(leaves))
    state = structure.unflatten(
        jax.device_put(n, x.sharding) for n, x in zip(numbers, leaves, strict=True)
    )
    with contextlib.closing(outputs.store(config.checkpoint, tmp_path)) as store:
        store.save(0, state, {}, {})
        store.wait()
        restored = store.restore(layout)
    assert jax.tree.structure(restored) == structure
    jax.tree.map(np.testing.assert_array_equal, restored, state)


def test_a_blend_may_ask_for_both_classes_in_whole(tiny_run):
    blended = jnp.array([[0.75, 0.25, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
    fields = ("loss.kind=sigmoid", "loss.mixup=0.8")
    shares = updates.objective(tiny_run(*fields), num_classes=4)
    whole = updates.objective(tiny_run(*fields, "loss.binarize_targets=true"), num_classes=4)
    np.testing.assert_array_equal(shares.loss_targets(blended), blended)
    np.testing.assert_array_equal(whole.loss_targets(blended), [[1, 1, 0, 0], [0, 0, 1, 0]])
