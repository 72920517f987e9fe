"""Optimizers of optax and of plug-ins in a run, beside optax's own steps on layers one by one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.messages import refused
from vit_jax import config as configs
from vit_jax import plugins, weights
from vit_jax.core import pytrees
from vit_jax.core.schema import entry_points
from vit_jax.core.schema.fields import field
from vit_jax.learning.optim import matrices
from vit_jax.learning.state import kept_by
from vit_jax.run.parts import updates
from vit_jax.train import train

pytestmark = pytest.mark.usefixtures("quick_compilation")
LR = 0.01
ROUNDING = 1e-5  # of updates, relative; sums over layers are in another order


def schedule(step):
    return LR / (1.0 + step)


@dataclasses.dataclass(frozen=True)
class SAM(configs.OptimConfig):
    rho: float = field(0.05, "size of the perturbation", bounds=(0, 10))

    def rule(self, schedule):
        perturb = optax.chain(optax.contrib.normalize(), optax.sgd(self.rho))
        return optax.contrib.sam(optax.sgd(schedule, momentum=0.9), perturb, sync_period=2)

    @property
    def average(self):
        def unperturbed(state, params):
            before, since = (optax.tree.get(state, name) for name in ("cache", "steps_since_sync"))
            return jax.tree.map(lambda b, p: jnp.where(since > 0, b, p), before, params)

        return unperturbed


@pytest.fixture
def sam(monkeypatch):
    monkeypatch.setattr(entry_points, "_added", {})
    plugins.add("optimizers", "sam", SAM)


def trees(number=5, layers=2):
    """Parameters and gradients of some layers and a head: in layers, one by one."""
    rng = np.random.default_rng(1)
    layer = lambda: {"kernel": rng.normal(size=(6, 4)), "bias": rng.normal(size=4)}
    blocks = lambda: {str(i): layer() for i in range(layers)}
    return [jax.tree.map(jnp.float32, {"blocks": blocks(), "head": layer()}) for _ in range(number)]


def stacked(tree):
    layers = tree["blocks"].values()
    return tree | {"blocks": {"block": jax.tree.map(lambda *x: jnp.stack(x), *layers)}}


def trained(tx, params, gradients, **extra):
    state = tx.init(params)
    for gradient in gradients:
        changes, state = tx.update(gradient, state, params, **extra)
        params = optax.apply_updates(params, changes)
    return params


def kernels(params):
    return jax.tree.map_with_path(lambda path, _: path[-1].key == "kernel", params)


CASES = {
    "by_number": (
        ("optim.name=optax:contrib.ademamix", "optim.arguments=alpha=8,b3=0.99"),
        lambda: optax.contrib.ademamix(schedule, alpha=8, b3=0.99),
    ),
    "decays": (
        ("optim.name=optax:adamw", "optim.weight_decay=0.3", "optim.arguments=nesterov=True"),
        lambda: optax.adamw(schedule, weight_decay=0.3, mask=kernels, nesterov=True),
    ),
    "decays_all": (
        ("optim.name=optax:contrib.schedule_free_adamw", "optim.weight_decay=0.3",
         "optim.weight_decay_on=all"),
        lambda: optax.contrib.schedule_free_adamw(schedule, weight_decay=0.3),
    ),
    "unscaled": (
        ("optim.name=optax:scale_by_adam", "optim.weight_decay=0.3"),
        lambda: optax.adamw(schedule, weight_decay=0.3, mask=kernels),
    ),
    "over_all": (
        ("optim.name=optax:contrib.prodigy", "optim.arguments=['betas=(0.9, 0.99)']"),
        lambda: optax.contrib.prodigy(schedule, betas=(0.9, 0.99)),
    ),
    "decays_of_matrices": (
        ("optim.name=optax:lamb", "optim.weight_decay=0.3"),
        lambda: optax.lamb(schedule, weight_decay=0.3, mask=kernels),
    ),
    "decays_by_another_name": (
        ("optim.name=optax:lars", "optim.weight_decay=0.3"),
        lambda: optax.lars(schedule, weight_decay=0.3, weight_decay_mask=kernels),
    ),
    "of_matrices": (("optim.name=optax:novograd",), lambda: optax.novograd(schedule)),
    "plug_in": (
        ("optim.name=sam", "optim.rho=0.2"), lambda: SAM(rho=0.2).rule(schedule),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_updates_are_those_of_layers_one_by_one(tiny_run, sam, case):
    overrides, make = CASES[case]
    config = tiny_run(f"optim.lr={LR}", "optim.grad_clip_norm=none", *overrides)
    assert configs.resolve(configs.to_dict(config)) == config
    params, *gradients = trees()
    expected = trained(make(), params, gradients)
    start, *stacks = map(stacked, (params, *gradients))
    optimizer = updates.optimizer(config.optim, schedule)
    done = trained(optimizer, start, stacks, norm=jnp.float32(1))  # as in a step
    moved = jax.tree.map(jnp.subtract, done, start)
    wanted = jax.tree.map(jnp.subtract, stacked(expected), start)
    for a, b in zip(jax.tree.leaves(moved), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=ROUNDING, atol=ROUNDING * np.abs(b).max())


def test_schedule_free_is_evaluated_with_its_average(tiny_run):
    """The EMA of a step's state is what optax says of layers one by one."""
    name = "optim.name=optax:contrib.schedule_free_sgd"
    config = tiny_run(
        name, f"optim.lr={LR}", "optim.schedule=constant", "optim.grad_clip_norm=none"
    )
    c = config.optim
    assert updates.ema_decay(c, config.method) == 0
    make = lambda: optax.contrib.schedule_free_sgd(schedule)
    params, *gradients = trees()
    state, layers, tx = make().init(params), params, make()
    for gradient in gradients:
        changes, state = tx.update(gradient, state, layers)
        layers = optax.apply_updates(layers, changes)
    expected = stacked(optax.contrib.schedule_free_eval_params(state, layers))
    optimizer, params = updates.optimizer(c, schedule), stacked(params)
    opt_state = optimizer.init(params)
    for gradient in map(stacked, gradients):
        changes, opt_state = optimizer.update(gradient, opt_state, params)
        params = optax.apply_updates(params, changes)
    averaged = c.average(opt_state, params)
    assert not np.allclose(averaged["head"]["kernel"], params["head"]["kernel"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=ROUNDING), averaged, expected)


def test_sam_is_evaluated_without_its_perturbation(tiny_run, sam):
    c = tiny_run("optim.name=sam", "optim.rho=0.2", f"optim.lr={LR}").optim
    optimizer = updates.optimizer(c, schedule)
    params, *gradients = map(stacked, trees())
    state, before = optimizer.init(params), params
    for step, gradient in enumerate(gradients, start=1):
        changes, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, changes)
        before = before if step % 2 else params
        jax.tree.map(np.testing.assert_array_equal, c.average(state, params), before)
    with refused("optim.layer_decay"):
        configs.check_constraints(tiny_run("optim.name=sam", "optim.layer_decay=0.5"))


def test_running_statistics_beside_an_average_are_those_that_are_trained():
    params = {"head": {"norm": {"running_mean": 1.0, "scale": 2.0}}}
    assert pytrees.is_statistic("head/norm/running_mean")
    double = lambda _, trained: jax.tree.map(lambda x: 2 * x, trained)
    after = kept_by(double)({}, 0.0, params, None)
    assert after == {"head": {"norm": {"running_mean": 1.0, "scale": 4.0}}}


def test_a_schedule_free_run_goes_on_to_the_same_bits(tiny_run, tmp_path):
    fields = ("optim.name=optax:contrib.schedule_free_adamw", "checkpoint.every_steps=2")
    states = []
    for name, stops in (("whole", (4,)), ("parts", (2, 4))):
        for steps in stops:
            config = tiny_run(*fields, f"total.steps={steps}", "optim.schedule=constant")
            train(config, tmp_path / name, allow_config_change=True)
        states.append(nnx.state(weights.load(tmp_path / name, ema=True), nnx.Param))
    jax.tree.map(np.testing.assert_array_equal, *states)


def test_gradients_arrive_clipped(tiny_run, sam):
    params, gradient = trees(2)
    config = tiny_run("optim.name=optax:sgd", "optim.grad_clip_norm=0.5", f"optim.lr={LR}")
    changes = jax.tree.map(
        jnp.subtract, trained(updates.optimizer(config.optim, schedule), params, [gradient]), params
    )
    np.testing.assert_allclose(optax.tree.norm(changes), LR * 0.5, rtol=1e-4)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (("optim.name=optax:adamv",), ("'adamv'", "'adam'")),
        (("optim.name=optax:contrib",), ("optax.contrib",)),
        (("optim.name=admw",), ("'admw'", "adam")),
        (("optim.name=adam", "optim.arguments=b1=0.5"), ("optim.arguments", "optax:NAME")),
        (("optim.name=sam", "optim.roh=0.5"), ("optim.roh", "'rho'")),
        (("optim.name=sam", "optim.rho=50"), ("optim.rho",)),
        (("optim.name=optax:adan", "optim.arguments=b4=0.5"), ("'b4'", "b3")),
        (("optim.name=optax:adan", "optim.arguments=b3"), ("'b3'",)),
        (("optim.name=optax:adan", "optim.arguments=learning_rate=1"), ("learning_rate",)),
        (("optim.name=optax:adan", "optim.arguments=b1=0.5,b1=0.9"), ("twice",)),
        (("optim.name=optax:adan", "optim.arguments=b1=high"), ("b1", "'high'")),
        (("optim.name=optax:constant_schedule", "optim.arguments=value=1"), ("no optimizer",)),
        (("optim.name=optax:adan", "optim.b1=0.5"), ("optim.b1=0.5",)),
        (("optim.name=optax:polyak_sgd",), ("optax:polyak_sgd", "value")),
        (("optim.name=optax:lars",), ()),
        (("optim.name=optax:contrib.sam",), ("optax:contrib.sam", "optimizer")),
        (("optim.name=optax:contrib.schedule_free_adamw", "optim.weight_decay=1"),
         ("weight_decay_on=all",)),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused(tiny_run, sam, overrides, named):
    if not named:  # one that can
        updates.optimizer(tiny_run(*overrides).optim, schedule)
        return
    with refused(*named):
        config = tiny_run(*overrides)
        configs.check_constraints(config)
        updates.optimizer(config.optim, schedule)


@pytest.mark.parametrize("sides", [2, 3, 4, 5, 128])
def test_layers_are_no_rows_to_a_rule_that_factors_arrays(sides):
    """By a side from which on arrays are factored, biases of 5 layers were, and off by 0.2."""
    rule = optax.chain(optax.scale_by_factored_rms(min_dim_size_to_factor=sides), optax.scale(-LR))
    params, *gradients = trees(layers=5)
    expected = stacked(trained(rule, params, gradients))
    found = trained(matrices.by_layer(rule), stacked(params), list(map(stacked, gradients)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=ROUNDING), found, expected)


@pytest.mark.parametrize(
    "rule",
    [
        optax.adafactor(0.1, multiply_by_parameter_scale=False),
        optax.adaptive_grad_clip(10.0),
        optax.scale_by_trust_ratio(min_norm=10.0),
        optax.clip_by_block_rms(10.0),
    ],
)
def test_a_threshold_is_of_a_matrix_where_no_example_of_normal_size_meets_it(rule):
    assert matrices.by_layer(rule).update is not rule.update


def test_arguments_are_in_the_words_of_configs(tiny_run):
    rows = []
    for value in ("false", "False"):
        fields = ("optim.name=optax:sgd", f"optim.arguments=momentum=0.9,nesterov={value}")
        params, *gradients = map(stacked, trees())
        optimizer = updates.optimizer(tiny_run(*fields).optim, schedule)
        rows.append(trained(optimizer, params, gradients))
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(schedule, momentum=0.9))
    expected = trained(rule, params, gradients)
    jax.tree.map(np.testing.assert_array_equal, *rows)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), rows[0], expected)


def test_rules_of_matrices_get_them_one_by_one():
    """A rule that neither way of looking at a stack suits is refused."""
    by_rank = optax.stateless(lambda g, _: jax.tree.map(lambda x: x * x.ndim, g))
    of_tree = optax.stateless(lambda g, _: jax.tree.map(lambda x: x * len(jax.tree.leaves(g)), g))
    params, gradient = map(stacked, trees(2))
    rule = matrices.by_layer(by_rank)
    changes, _ = rule.update(gradient, rule.init(params), params)
    kernel = gradient["blocks"]["block"]["kernel"]
    np.testing.assert_allclose(changes["blocks"]["block"]["kernel"], 2 * kernel, rtol=1e-6)
    with refused("stack"):
        matrices.by_layer(of_tree)
