import contextlib
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.messages import refused
from vit_jax.core.errors import Preempted
from vit_jax.learning.optim import optimizers
from vit_jax.learning.state import state_layout
from vit_jax.parallel import mesh as meshes
from vit_jax.run.parts import inputs, networks, outputs, updates
from vit_jax.run.parts.durations import make_durations
from vit_jax.train import train


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_every_optimizer_by_name(tiny_run, name):
    c = tiny_run(f"optim.name={name}").optim
    assert updates.optimizer(c, lambda step: c.lr)


@pytest.mark.parametrize(
    ("name", "field", "names"),
    [
        ("adam", "momentum=0.5", ("optim.momentum=0.5", "sgd, rmsprop, muon")),
        ("adam", "nesterov=true", ("optim.nesterov=True",)),
        ("sgd", "b1=0.5", ("optim.b1=0.5", "adam, adafactor, lion, muon, lamb")),
        ("adafactor", "eps=1e-6", ("optim.eps=1e-06", "adam, rmsprop, muon, lamb")),
    ],
)
def test_a_field_that_goes_unread_is_refused(tiny_run, name, field, names):
    c = tiny_run(f"optim.name={name}", f"optim.{field}").optim
    with refused(f"optim.name={name}", *names):
        updates.optimizer(c, lambda step: c.lr)


def test_offloading_needs_memory_to_go_to(tiny_run):
    class Device:
        device_kind = "a chip"

        def addressable_memories(self):
            return [SimpleNamespace(kind="device")]

    mesh = SimpleNamespace(devices=np.array([Device()]))
    with refused("model.remat=full"):
        updates.layout(tiny_run("model.remat=offload"), None, None, mesh)


def test_a_kernel_of_attention_for_other_devices_is_refused(tiny_run):
    config = tiny_run("model.attention=fused")
    with refused():
        updates.layout(config, None, None, inputs.mesh(config.mesh))


def lr(config, *, num_examples=64):
    return updates.schedule(config.optim, make_durations(config, num_examples=num_examples))


def test_schedule_reads_its_fields(tiny_run):
    base = ("optim.schedule=rsqrt", "optim.warmup_steps=none", "total.steps=16")
    changes = ("optim.rsqrt_timescale_steps=2", "optim.cooldown_steps=8", "optim.warmup_steps=1")
    rates = [float(lr(tiny_run(*base, change))(12)) for change in ("seed=0", *changes[:2])]
    assert len(set(rates)) == 3
    assert lr(tiny_run(*base, changes[2]))(0) == 0


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


@pytest.mark.parametrize("field", ["log.every_steps", "checkpoint.every_steps"])
def test_a_cadence_beyond_the_last_step_means_only_the_last(tiny_run, field):
    plan = make_durations(tiny_run(f"{field}=1_000_000"), num_examples=64)
    due = plan.log if field.startswith("log") else plan.save
    assert [step for step in range(plan.total_steps + 1) if due(step)] == [6]


@pytest.mark.parametrize("length", ["steps=8", "epochs=2", "examples=128"])
def test_cooldown_in_three_units(tiny_run, length):
    config = tiny_run("optim.schedule=constant", "total.steps=16", f"optim.cooldown_{length}")
    assert make_durations(config, num_examples=64).cooldown_steps == 8


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        (("optim.cooldown_steps=1",), ("optim.cooldown_*", "'linear'")),
        (("optim.schedule=rsqrt", "optim.cooldown_steps=5"), ("optim.cooldown_*", 4)),
        (("optim.rsqrt_timescale_steps=5",), ("optim.schedule=linear", "rsqrt")),
    ],
)
def test_an_impossible_schedule_is_explained(tiny_run, overrides, names):
    with refused(*names):
        lr(tiny_run(*overrides))


@pytest.mark.parametrize(
    ("override", "moved"),
    [
        ("seed=0", {"head": 1.0, "patches": 1.0}),
        ("optim.freeze=patches/.*", {"head": 1.0, "patches": 0.0}),
        ("optim.lr_multipliers=head/.*=2", {"head": 2.0, "patches": 1.0}),
        ("optim.layer_decay=0.5", {"head": 1.0, "patches": 0.5}),  # no blocks: one layer below
    ],
)
def test_parameters_by_pattern(tiny_run, override, moved):
    c = tiny_run("optim.name=sgd", "optim.grad_clip_norm=none", override).optim
    params = {name: {"kernel": jnp.ones((2, 2))} for name in moved}
    tx = updates.optimizer(c, lambda step: 1.0)
    change, _ = tx.update(params, tx.init(params), params)
    for name, by in moved.items():
        np.testing.assert_allclose(change[name]["kernel"], -by)


@pytest.mark.parametrize("field", ["freeze=haed/.*", "lr_multipliers=haed/.*=2"])
def test_a_pattern_that_matches_nothing_stops_before_anything_is_written(tiny_run, tmp_path, field):
    with refused("'head/bias'"):
        train(tiny_run(f"optim.{field}"), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_a_checkpoint_keeps_every_array_in_its_place(tiny_run, tmp_path, name):
    config = tiny_run(f"optim.name={name}", "optim.mu_dtype=bfloat16", "optim.freeze=patches/.*")
    model = networks.model(config, num_classes=4)
    optimizer = updates.optimizer(config.optim, lambda step: config.optim.lr)
    mesh = inputs.mesh(config.mesh)
    layout = state_layout(model.make, optimizer, mesh, ema_decay=None, shard_optimizer=False).state
    leaves, structure = jax.tree.flatten(layout)
    numbers = (np.full(x.shape, i, x.dtype) for i, x in enumerate(leaves))
    state = structure.unflatten(
        jax.device_put(n, x.sharding) for n, x in zip(numbers, leaves, strict=True)
    )
    with contextlib.closing(outputs.store(config, tmp_path)) as store:
        store.save(0, state, {}, {})
        store.wait()
        restored = store.restore(layout)
    assert jax.tree.structure(restored) == structure
    jax.tree.map(np.testing.assert_array_equal, restored, state)


@pytest.mark.slow
@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_resuming_gives_the_same_bits(tiny_run, tmp_path, name):
    config = tiny_run(f"optim.name={name}", "optim.mu_dtype=bfloat16", "optim.freeze=blocks/0/.*")
    straight = train(config, tmp_path / "straight")
    with pytest.raises(Preempted):
        train(config, tmp_path / "stopped", stop="SIGTERM")
    resumed = train(config, tmp_path / "stopped")
    jax.tree.map(np.testing.assert_array_equal, straight, resumed)


def test_a_blend_may_ask_for_both_classes_in_whole(tiny_run):
    blended = jnp.array([[0.75, 0.25, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
    fields = ("loss.kind=sigmoid", "loss.mixup=0.8")
    shares = updates.objective(tiny_run(*fields), num_classes=4)
    whole = updates.objective(tiny_run(*fields, "loss.binarize_targets=true"), num_classes=4)
    np.testing.assert_array_equal(shares.loss_targets(blended), blended)
    np.testing.assert_array_equal(whole.loss_targets(blended), [[1, 1, 0, 0], [0, 0, 1, 0]])
    with refused("loss.binarize_targets=True", "only by sigmoid"):
        updates.objective(tiny_run("loss.binarize_targets=true"), num_classes=4)


@pytest.mark.parametrize(
    ("platform", "fields", "apart"),
    [
        ("tpu", (), True),
        ("gpu", (), True),
        ("tpu", ("optim.name=lion",), True),
        ("cpu", (), False),
        ("sharded tpu", (), False),
        ("tpu", ("model.scan=true",), False),
        ("tpu", ("optim.name=lamb",), False),
        ("tpu", ("optim.layer_decay=0.7",), False),
        ("tpu", ("optim.freeze=patches/.*",), False),
        ("tpu", ("optim.lr_multipliers=head/.*=10",), False),
    ],
)
def test_steps_that_see_layers_apart(tiny_run, platform, fields, apart):
    shape = dict.fromkeys(meshes.AXES, 1) | ({"fsdp": 2} if platform == "sharded tpu" else {})
    device = SimpleNamespace(platform=platform.removeprefix("sharded "))
    mesh = SimpleNamespace(devices=np.array([device]), shape=shape)
    assert updates._unstacked_steps(tiny_run(*fields), mesh) == apart
