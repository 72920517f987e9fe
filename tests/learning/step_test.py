import dataclasses
import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.messages import refused
from tests.xla_flags import AS_USUAL
from vit_jax import models
from vit_jax.core import pytrees
from vit_jax.core.errors import NonFiniteError
from vit_jax.learning.losses import Objective, Softmax, batch_layout
from vit_jax.learning.optim import optimizers, schedules
from vit_jax.learning.optim.patterns import Frozen
from vit_jax.learning.state import TrainState, skip_update, state_layout
from vit_jax.learning.step import _accumulated, lower_update, make_update
from vit_jax.parallel import mesh as meshes
from vit_jax.parallel.chips import supported_compiler_options
from vit_jax.run.parts import updates
from vit_jax.store import checkpoint_dir
from vit_jax.train import train

SAME_MATH = 1e-5  # relative; float32 sums in another order
TINY = {"depth": 2, "width": 32, "mlp_dim": 64, "num_heads": 2}
CLASSES, SIZE = 4, (8, 8)


def compiled(
    batch_size=16, grad_accum_steps=1, mixup=0.0, cutmix=0.0, lr=1e-3, seed=0, optimizer="adam",
    freeze=(), ema_decay=None, model="ViT-Ti/4", toy=TINY, size=SIZE, mesh=None,
    shard_optimizer=False, unstacked_steps=False, compiler_options=None, make=None, **fields,
):  # fmt: skip
    """Layouts of state and batch, the compiled update, and the first state."""
    mesh = meshes.make_mesh(**{"replica": 1, "data": -1, "fsdp": 1, "tensor": 1} | (mesh or {}))
    schedule = schedules.schedule(
        schedules.Constant(), peak=lr, warmup_steps=0, cooldown_steps=0, total_steps=1000
    )
    optimizer = optimizers.create(
        optimizer, schedule=schedule, peak_lr=lr, weight_decay=0.01,
        weight_decay_meaning="lr_scaled", grad_clip_norm=1.0, b1=0.9, b2=0.999, eps=1e-8,
        momentum=0.9, nesterov=False, joint_qkv=False, mu_dtype="float32",
    )  # fmt: skip
    fields = toy | fields
    frozen = Frozen(freeze) if freeze else None
    layout = state_layout(
        make
        or (
            lambda rngs: models.create(
                model, num_classes=CLASSES, image_size=size, rngs=rngs, **fields
            )
        ),
        frozen.without_frozen(optimizer) if frozen else optimizer, mesh, ema_decay=ema_decay,
        shard_optimizer=shard_optimizer, unstacked_steps=unstacked_steps,
    ).in_steps  # fmt: skip
    objective = Objective(
        loss=Softmax(mixup=mixup, cutmix=cutmix),
        num_classes=CLASSES, grad_accum_steps=grad_accum_steps, frozen=frozen, mean=(0.5,) * 3,
        std=(0.5,) * 3,
    )  # fmt: skip
    batch = batch_layout(mesh, batch_size=batch_size, image_size=size, max_labels=1)
    update = make_update(layout, objective, lambda step, _: {"lr": schedule(step)}, seed)
    lowered = lower_update(update, layout, batch)
    return layout, batch, lowered.compile(compiler_options), layout.init(seed)


COMPILED = {}


class Trainer:
    """A compiled step on its own, without files; those of equal options share the program."""

    def __init__(self, size=SIZE, **options):
        key = repr((size, sorted(options.items())))
        if key not in COMPILED:
            COMPILED[key] = compiled(size=size, **options)
        self.layout, self.batch_layout, self.update, first = COMPILED[key]
        self.state, self.size = jax.tree.map(jnp.copy, first), size  # it is donated to the update

    def batch(self, seed, **changes):
        rng = np.random.default_rng(seed)
        n = self.batch_layout["weight"].shape[0]
        arrays = {
            "image": rng.integers(0, 256, (n, *self.size, 3), dtype=np.uint8),
            "labels": rng.integers(0, CLASSES, (n, 1), dtype=np.int32),
            "weight": np.ones(n, np.float32),
        } | changes
        return {k: jax.device_put(v, self.batch_layout[k].sharding) for k, v in arrays.items()}

    def step(self, batch):
        self.state, scalars = self.update(self.state, batch)
        return jax.device_get(scalars)


def test_memorises_64_images():
    trainer = Trainer(batch_size=64, lr=3e-3)
    batch = trainer.batch(0)
    for _ in range(150):
        scalars = trainer.step(batch)
    assert scalars["train/accuracy"] == 1.0
    assert scalars["train/loss"] < 0.05


def test_a_non_finite_step_changes_only_the_count():
    trainer = Trainer()
    trainer.step(trainer.batch(0))
    before = jax.device_get(trainer.state)
    # An infinite weight stands for an overflow anywhere in the forward pass.
    bad = trainer.batch(1, weight=np.full(16, np.inf, np.float32))
    scalars = trainer.step(bad)
    after = jax.device_get(trainer.state)
    assert (before.step, after.step) == (1, 2)
    jax.tree.map(np.testing.assert_array_equal, before.params, after.params)
    jax.tree.map(np.testing.assert_array_equal, before.opt_state, after.opt_state)
    assert after.first_bad_step == scalars["first_bad_step"] == 2
    assert not np.isfinite(after.first_bad_values).all()
    # Nor does a later, finite step: the first one is kept, and so is the state.
    for seed in (2, 3):
        trainer.step(trainer.batch(seed))
    frozen = jax.device_get(trainer.state)
    assert (frozen.step, frozen.first_bad_step) == (4, 2)
    jax.tree.map(np.testing.assert_array_equal, before.params, frozen.params)
    jax.tree.map(np.testing.assert_array_equal, before.opt_state, frozen.opt_state)


def test_a_norm_that_is_not_finite_changes_only_the_count(monkeypatch):
    """The loss may be finite where the gradient is not, or its square overflows."""
    infinite = lambda *_, **__: jnp.asarray(np.inf, jnp.float32)
    monkeypatch.setattr("vit_jax.learning.step.global_norm", infinite)
    monkeypatch.setitem(globals(), "COMPILED", {})  # no other test gets this program
    trainer = Trainer()
    before = jax.device_get(trainer.state)
    scalars = trainer.step(trainer.batch(0))
    after = jax.device_get(trainer.state)
    assert np.isfinite(scalars["train/loss"])
    assert after.first_bad_step == 1
    jax.tree.map(np.testing.assert_array_equal, before.params, after.params)
    jax.tree.map(np.testing.assert_array_equal, before.opt_state, after.opt_state)


def test_a_skipped_batch_changes_only_the_counts():
    trainer = Trainer(ema_decay=0.9)
    trainer.step(trainer.batch(0))
    before = jax.device_get(trainer.state)
    nan = trainer.batch(1, weight=np.full(16, np.nan, np.float32))
    trainer.state, scalars = skip_update(trainer.state, nan)
    after = jax.device_get(trainer.state)
    assert (before.step, after.step) == (1, 2)
    changed = lambda name, x: x + 1 if name in ("step", "opt_state/2/count") else x
    assert "opt_state/2/count" in pytrees.flatten(before)  # the schedule's; Adam's is beside others
    expected = pytrees.map_named(changed, before)
    jax.tree.map(np.testing.assert_array_equal, expected, after)
    assert jax.device_get(scalars)["first_bad_step"] == 0
    trainer.step(trainer.batch(2))  # its arrays are where the compiled step expects them


def test_a_skipped_step_counts_in_schedules_of_schedule_free_optimizers():
    rule = optax.contrib.schedule_free_adamw(lambda step: 0.1 / (1 + step))
    opt_state = rule.init({"kernel": jnp.ones(2)})
    zero = jnp.zeros((), jnp.int32)
    before = TrainState(zero, {}, opt_state, {}, {}, zero, jnp.zeros(2))
    after, _ = skip_update(before, {})
    changed = {
        name for name, x in pytrees.flatten(after.opt_state).items()
        if not np.array_equal(x, pytrees.flatten(opt_state)[name])
    }  # fmt: skip
    assert "step_count" in changed and after.opt_state.step_count == opt_state.step_count + 1
    assert all(name.rpartition("/")[2] in ("step_count", "count") for name in changed)


def test_examples_of_weight_0_count_for_nothing():
    weight = np.ones(16, np.float32)
    weight[3] = 0
    one, two = Trainer(), Trainer()
    image = np.asarray(one.batch(0)["image"]).copy()
    first = one.step(one.batch(0, weight=weight))
    assert first["skipped_images"] == 1
    image[3] = 0
    second = two.step(two.batch(0, weight=weight, image=image))
    assert first["train/loss"] == second["train/loss"]
    jax.tree.map(np.testing.assert_array_equal, one.state.params, two.state.params)


def test_accuracy_counts_only_examples_with_labels():
    """A fresh head's logits are all 0, which ranks class 0 first."""
    labels = np.array([0] * 4 + [1] * 4 + [-1] * 8, np.int32)[:, None]
    trainer = Trainer()
    assert trainer.step(trainer.batch(0, labels=labels))["train/accuracy"] == 0.5
    nothing = trainer.batch(0, labels=np.full_like(labels, -1))
    assert trainer.step(nothing)["train/accuracy"] == 0


def test_a_batch_without_a_valid_example_leaves_finite_numbers():
    trainer = Trainer()
    scalars = trainer.step(trainer.batch(0, weight=np.zeros(16, np.float32)))
    assert scalars["train/loss"] == 0
    assert scalars["skipped_images"] == 16
    assert scalars["first_bad_step"] == 0


def test_accumulation_gives_the_same_update():
    mixing = {"mixup": 0.5, "cutmix": 1.0}
    whole, parts = Trainer(**mixing), Trainer(grad_accum_steps=4, **mixing)
    weight = np.ones(16, np.float32)
    weight[:5] = 0  # microbatches with different numbers of valid examples
    for seed in range(3):
        a = whole.step(whole.batch(seed, weight=weight))
        b = parts.step(parts.batch(seed, weight=weight))
        for name in ("train/loss", "train/accuracy", "train/grad_norm"):
            np.testing.assert_allclose(a[name], b[name], rtol=SAME_MATH, err_msg=name)


def test_the_ema_follows_the_parameters():
    decay = 0.3
    trainer = Trainer(lr=0.01, ema_decay=decay)
    expected = jax.device_get(trainer.state.params)
    for step in range(4):
        trainer.step(trainer.batch(step))
        kept = min(decay, (1 + step) / (10 + step))  # 0.1, 2/11, 3/12, 4/13 -> 0.3
        expected = jax.tree.map(
            lambda a, p, kept=kept: kept * a + (1 - kept) * p,
            expected,
            jax.device_get(trainer.state.params),
        )
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=SAME_MATH, atol=1e-7),
            jax.device_get(trainer.state.ema),
            expected,
        )
    before = jax.device_get(trainer.state.ema)
    trainer.step(trainer.batch(0, weight=np.full(16, np.nan, np.float32)))
    jax.tree.map(np.testing.assert_array_equal, before, jax.device_get(trainer.state.ema))


def test_dropout_differs_between_steps():
    """And between seeds and microbatches, whose keys do: state_test.py, and the test above."""
    trainer = Trainer(dropout=0.5, lr=0.0)
    # A fresh head is zero, and would hide every effect of dropout.
    head = jax.random.normal(jax.random.key(0), (32, CLASSES))
    trainer.state.params["head"]["kernel"] = jax.device_put(
        head, trainer.layout.state.params["head"]["kernel"].sharding
    )
    first, second = (float(trainer.step(trainer.batch(0))["train/loss"]) for _ in range(2))
    assert first != second


def test_frozen_parameters_keep_their_bits_and_count_in_no_norm():
    freeze = ("patches/.*", "blocks/0/.*", "blocks/block/attention/.*/bias", "norm/scale")
    trainer, free = Trainer(freeze=freeze), Trainer()
    before = jax.device_get(trainer.state.params)
    for seed in range(2):  # a fresh head is zero, so only the head has a first gradient
        norms = [float(t.step(t.batch(seed))["train/grad_norm"]) for t in (trainer, free)]
    assert norms[0] < norms[1]
    moved = jax.tree.map(lambda a, b: a != b, before, jax.device_get(trainer.state.params))
    frozen = pytrees.flatten(Frozen(freeze).masks(before))
    for name, changed in pytrees.flatten(moved).items():
        by_layer = changed.reshape(frozen[name].size, -1).any(axis=1)
        np.testing.assert_array_equal(by_layer, ~frozen[name].reshape(-1), err_msg=name)


def curve():
    trainer = Trainer(mixup=0.2, dropout=0.1, stochastic_depth=0.1, remat="dots")
    # 15 examples: with 16 a class may have its very share, 4, and then the gradient of a fresh
    # head's bias is nothing but rounding, of which Adam takes the sign.
    weight = np.ones(16, np.float32)
    weight[0] = 0
    batches = (trainer.batch(i, weight=weight) for i in range(20))
    return [float(trainer.step(batch)["train/loss"]) for batch in batches], trainer


# State and update are sharded by the rules.
ON_EIGHT = """
import json
from tests.learning.step_test import curve
losses, trainer = curve()
image = trainer.batch(0)["image"]
assert len(image.sharding.device_set) == 8
assert image.addressable_shards[0].data.shape[0] == 2
kernel = trainer.state.params["head"]["kernel"]
assert kernel.sharding.is_fully_replicated and len(kernel.sharding.device_set) == 8
print(json.dumps(losses))
"""


def test_eight_devices_give_the_curve_of_one(run_python):
    """The other optimizers do so in tests/meshes_test.py."""
    done = run_python("-c", ON_EIGHT, devices=8)
    assert done.returncode == 0, done.stderr
    one, trainer = curve()
    assert trainer.layout.mesh.size == 1
    np.testing.assert_allclose(json.loads(done.stdout), one, rtol=SAME_MATH)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        ("adam", {"mixup": 0.2, "dropout": 0.1, "ema_decay": 0.9}),
        pytest.param("sgd", {"grad_accum_steps": 2}, marks=pytest.mark.slow),
        pytest.param("sgd", {"dtype": "bfloat16"}, marks=pytest.mark.slow),
        pytest.param("lion", {}, marks=pytest.mark.slow),
    ],
)
def test_one_array_per_layer_gives_the_same_bits(optimizer, options):
    """To rounding where a loop adds up gradients: XLA sums into stacks in another order."""
    agree = np.testing.assert_array_equal
    if "grad_accum_steps" in options:
        agree = functools.partial(np.testing.assert_allclose, rtol=SAME_MATH, atol=1e-8)
    options = options | {"compiler_options": AS_USUAL}
    stacked = Trainer(optimizer=optimizer, **options)
    apart = Trainer(optimizer=optimizer, unstacked_steps=True, **options)
    assert "block[1]" in apart.state.params["blocks"]
    assert set(apart.state.params["blocks"]["block"]["mlp"]["fc1"]) == {"bias"}
    own = jax.eval_shape(apart.layout.optimizer.init, apart.layout.state.params)
    assert jax.tree.structure(own) == jax.tree.structure(apart.layout.state.opt_state)
    for seed in range(3):
        one, other = stacked.step(stacked.batch(seed)), apart.step(apart.batch(seed))
        jax.tree.map(agree, one, other)
    back = apart.layout.stack_layers(apart.state)
    jax.tree.map(agree, back, stacked.state)


def test_options_that_a_compiler_does_not_know_are_left_out():
    known = {"xla_cpu_enable_fast_math": "False"}
    device = jax.devices()[0]
    gone = {"xla_gone": "2"}
    for options, expected in ((known, known), (known | gone, known), (gone, None), (None, None)):
        assert supported_compiler_options(options, device) == expected


def test_options_are_asked_for_under_the_mesh_of_a_step(run_python):
    code = """
import jax
from vit_jax.parallel.chips import supported_compiler_options
known = {"xla_cpu_enable_fast_math": "False"}
with jax.set_mesh(jax.make_mesh((2,), ("data",))):
    assert supported_compiler_options(known, jax.devices()[0]) == known
"""
    done = run_python("-c", code, devices=2)
    assert done.returncode == 0, done.stderr


# --- a loss, gradient or update that is not finite ends the run, and nothing of it is saved


def test_a_non_finite_loss_stops_the_run_and_is_not_saved(tmp_path, tiny_run):
    config = tiny_run(
        "optim.lr=9e5", "optim.weight_decay=9e5", "optim.warmup_steps=none",
        "checkpoint.every_steps=1", "log.every_steps=100", "total.steps=50",
    )  # fmt: skip
    with pytest.raises(NonFiniteError) as error:
        train(config, tmp_path)
    assert re.search(r"\b(nan|inf)\b", str(error.value))
    for step in checkpoint_dir.steps(tmp_path / "checkpoints"):
        wanted = {"first_bad_step": jax.ShapeDtypeStruct((), np.int32)}
        saved = checkpoint_dir.read_some(tmp_path / "checkpoints" / str(step), wanted)
        assert not int(saved["first_bad_step"])


@pytest.fixture
def spoiled_batch(monkeypatch):
    """`spoiled_batch(4)`: makes the loss of that step's batch non-finite."""

    def spoil(step):
        update = updates.make_update

        def make(*arguments):
            good = update(*arguments)

            def bad(state, batch):
                weight = jnp.where(state.step + 1 == step, jnp.nan, batch["weight"])
                return good(state, batch | {"weight": weight})

            return bad

        monkeypatch.setattr(updates, "make_update", make)

    return spoil


@pytest.mark.parametrize("name", ["sgd", pytest.param("rmsprop", marks=pytest.mark.slow)])
def test_steps_behind_a_skipped_one_take_the_rate_that_is_logged(name, tmp_path, tiny_run):
    """All counts of schedules go on, so that a cooldown reaches its end."""
    fields = (f"optim.name={name}", "optim.momentum=0", "optim.weight_decay=0.1", "model.depth=1")
    state = train(tiny_run(*fields, "total.steps=3", "input.skip_steps=1,2"), tmp_path)
    counts = {n: int(x) for n, x in pytrees.flatten(state.opt_state).items() if "count" in n}
    assert counts and set(counts.values()) == {3}, counts


@pytest.mark.slow
def test_a_spoiled_batch_can_be_skipped(tmp_path, tiny_run, spoiled_batch, capsys):
    spoiled_batch(4)
    never = train(tiny_run("input.skip_steps=4"), tmp_path / "never")  # encountered it
    config = tiny_run("checkpoint.every_steps=3", "log.every_steps=2")
    for _ in range(2):  # the same batch comes again
        with refused("Step 4", "--config.input.skip_steps=4", error=NonFiniteError):
            train(config, tmp_path / "run")
    assert checkpoint_dir.steps(tmp_path / "run" / "checkpoints") == [3]
    skipping = dataclasses.replace(config, input=dataclasses.replace(config.input, skip_steps=(4,)))
    state = train(skipping, tmp_path / "run")  # needs no --allow_config_change
    jax.tree.map(np.testing.assert_array_equal, state.params, never.params)
    assert "step 4 | its batch is left out" in capsys.readouterr().out
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    assert written["config"]["input"]["skip_steps"] == [4]
    assert written["runs"][-1]["config_changes"] == ["input.skip_steps: [] there, [4] here"]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert [(row["step"], "train/loss" in row) for row in rows] == [
        (2, True),
        (4, False),
        (6, True),
    ]
    with refused("input.skip_steps", "[4]"):
        train(config, tmp_path / "run")
    with refused("input.skip_steps", 7, "total.*"):
        train(tiny_run("input.skip_steps=7"), tmp_path / "other")


def test_nothing_is_evaluated_after_a_non_finite_step(tmp_path, tiny_run, spoiled_batch, capsys):
    spoiled_batch(2)
    config = tiny_run(
        "log.every_steps=100", "evals.test.every_steps=3",
        "evals.test.preprocess=decode|resize(8)",
    )  # fmt: skip
    with refused("Step 2", error=NonFiniteError):
        train(config, tmp_path)
    assert "test: accuracy" not in capsys.readouterr().out
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_non_finite_update_stops_the_run_and_is_not_saved(tmp_path, tiny_run):
    """The head starts at zero, so the gradients below it are: Adam without eps divides 0 by 0."""
    config = tiny_run("optim.eps=0", "checkpoint.every_steps=1", "total.steps=2")
    with pytest.raises(NonFiniteError) as error:
        train(config, tmp_path)
    assert "optim.eps" in str(error.value)
    assert not checkpoint_dir.steps(tmp_path / "checkpoints")


def test_microbatches_have_keys_of_their_own():
    def draw(params, batch, key):
        drawn = jnp.full(batch.shape, jax.random.uniform(key))
        return (jnp.zeros(()), (drawn, drawn)), params

    _, (drawn, observed), _ = _accumulated(draw, jnp.zeros(()), jnp.zeros(8), jax.random.key(0), 4)
    assert len(np.unique(drawn)) == 4 and drawn.shape == (8,)
    np.testing.assert_array_equal(observed, drawn.reshape(2, 4).T)
