"""Running statistics of batch norms: moved by the step, kept from the optimizer, saved."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

from tests.learning.step_test import Trainer
from tests.messages import refused
from vit_jax import models, weights
from vit_jax.core import pytrees
from vit_jax.core.errors import Preempted
from vit_jax.learning.losses import Objective, Softmax
from vit_jax.learning.step import make_loss_and_grads
from vit_jax.models.efficientnet import Root
from vit_jax.models.head import head as make_head
from vit_jax.parallel import mesh as meshes
from vit_jax.run.parts import networks, updates
from vit_jax.train import train

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROUNDING = 1e-5  # float32 sums in another order
NAME = "EfficientNet-0.1x0.1"


class Shallow(nnx.Module):
    """The root of an EfficientNet, and a head."""

    def __init__(self, rngs, **fields):
        self.spec = models.spec(NAME, **fields)
        self.root = Root(self.spec, rngs=rngs)
        self.head = make_head(
            self.spec,
            self.spec.stage_channels[0],
            4,
            kernel_init=jax.nn.initializers.normal(),
            rngs=rngs,
        )

    def __call__(self, images, train=False, rngs=None):
        return self.head(self.root(images, train).mean(axis=(1, 2)))


TOY = {"make": Shallow, "batch_size": 8, "ema_decay": 0.9}
# Of the tiny run, which is a ViT's.
OVERRIDES = (
    f"model.name={NAME}",
    *(f"model.{field}=none" for field in ("depth", "width", "mlp_dim", "num_heads")),
    "input.preprocess=decode|resize(32)",
)


@pytest.fixture(scope="module")
def trainer():
    """One for all tests: they go on from each other's states."""
    return Trainer(**TOY)


def of_root(params):
    return {n: np.asarray(params["root"]["norm"][n]) for n in ("running_mean", "running_variance")}


def test_a_step_moves_them_to_the_moments_of_its_batch(trainer):
    before, batch = jax.device_get(trainer.state), trainer.batch(0)
    images = 2 * np.asarray(batch["image"], np.float32) / 255 - 1
    model = nnx.merge(trainer.layout.graph, before.params)
    maps = np.asarray(model.root.convolved(images))
    trainer.step(batch)
    after = jax.device_get(trainer.state)
    for params, kept in ((after.params, 0.99), (after.ema, None)):
        old, new = of_root(before.params), of_root(params)
        for name, moment in (("running_mean", np.mean), ("running_variance", np.var)):
            step = 0.01 * (moment(maps, axis=(0, 1, 2)) - old[name])
            step *= 1 if kept else 0.9  # the EMA's first decay is 1 / 10
            np.testing.assert_allclose(new[name] - old[name], step, atol=ROUNDING, rtol=1e-3)


def test_the_optimizer_does_not_see_them(trainer):
    names = list(pytrees.flatten(trainer.state.params))
    moments = list(pytrees.flatten(trainer.state.opt_state))
    statistics = [name for name in names if pytrees.is_statistic(name)]
    assert len(statistics) == 2 * sum(name.endswith("/scale") for name in names) > 0
    for name in names:
        assert sum(n.endswith(name) for n in moments) == (0 if name in statistics else 2), name


def test_neither_clipping_nor_the_log_counts_their_gradients(trainer):
    objective = Objective(
        loss=Softmax(), num_classes=4,
        grad_accum_steps=1, mean=(0.5,) * 3, std=(0.5,) * 3,
    )  # fmt: skip
    loss_and_grads = jax.jit(make_loss_and_grads(trainer.layout, objective, 0))
    batch = trainer.batch(1)
    grads = pytrees.flatten(loss_and_grads(trainer.state, batch).grads)
    squares = {name: float(np.square(x).sum()) for name, x in grads.items()}
    norm = sum(x for name, x in squares.items() if not pytrees.is_statistic(name)) ** 0.5
    assert norm**2 < sum(squares.values())
    np.testing.assert_allclose(trainer.step(batch)["train/grad_norm"], norm, rtol=1e-4)


def test_a_step_that_is_not_finite_leaves_them(trainer):
    before = jax.device_get(trainer.state)
    trainer.step(trainer.batch(2, weight=np.full(8, np.inf, np.float32)))
    after = jax.device_get(trainer.state)
    jax.tree.map(np.testing.assert_array_equal, before.params, after.params)
    jax.tree.map(np.testing.assert_array_equal, before.ema, after.ema)


def test_frozen_ones_stay_to_the_bit():
    frozen = Trainer(**TOY | {"make": functools.partial(Shallow, frozen_statistics=True)})
    before = pytrees.flatten(jax.device_get(frozen.state.params))
    frozen.step(frozen.batch(0))
    after = pytrees.flatten(jax.device_get(frozen.state.params))
    same = {name for name, x in before.items() if (x == after[name]).all()}
    assert same == {name for name in before if pytrees.is_statistic(name)}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("optim.grad_accum_steps", "2"),
        ("optim.freeze", "(?!head/).*"),
        ("optim.freeze", "root"),
        ("lora.kernels", "stage7/.*/project/kernel"),
    ],
)
def test_they_have_to_be_frozen_with(tiny_run, field, value):
    """Microbatches, and parts that are evaluated by running moments which no step moves."""

    def layout(*overrides):
        config = tiny_run(*OVERRIDES, f"{field}={value}", *overrides)
        make = networks.model(config, num_classes=4).make
        return updates.layout(config, make, lambda step: 0.1, meshes.make_mesh(
            replica=1, data=1, fsdp=1, tensor=1
        ))  # fmt: skip

    with refused(field):
        layout()
    assert layout("model.frozen_statistics=true")


@pytest.mark.slow
def test_a_resumed_run_has_the_same_bits_and_evaluates_with_them(tiny_run, tmp_path):
    config = tiny_run(*OVERRIDES, "optim.ema_decay=0.9")
    straight = train(config, tmp_path / "straight")
    with pytest.raises(Preempted):
        train(config, tmp_path / "resumed", stop="SIGTERM")
    resumed = train(config, tmp_path / "resumed")
    jax.tree.map(np.testing.assert_array_equal, straight, resumed)
    for ema, params in ((False, straight.params), (True, straight.ema)):
        model = weights.load(tmp_path / "resumed", ema=ema)
        loaded = nnx.to_pure_dict(nnx.state(model, nnx.Param))
        jax.tree.map(np.testing.assert_array_equal, loaded, jax.device_get(params))
    assert (of_root(straight.params)["running_mean"] != 0).all()


def test_they_may_move_where_others_are_frozen(tiny_run):
    config = tiny_run(*OVERRIDES, "optim.freeze=.*/kernel")
    make = networks.model(config, num_classes=4).make
    mesh = meshes.make_mesh(replica=1, data=1, fsdp=1, tensor=1)
    assert updates.layout(config, make, lambda step: 0.1, mesh)
