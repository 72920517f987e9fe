import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.conftest import TINY_RUN
from vit_jax import config as configs
from vit_jax.learning import step as steps
from vit_jax.learning.histograms import EDGES, count, make_distributions
from vit_jax.learning.loggers import RunLog
from vit_jax.learning.state import state_layout
from vit_jax.learning.step import lower_update, make_update
from vit_jax.run.parts import examples, inputs, networks, updates
from vit_jax.run.parts.durations import make_durations

SAME_MATH = 1e-4  # relative; float32 sums in another order


def test_counts_are_those_of_numpy():
    random = np.random.default_rng(0)
    x = random.normal(size=2000) * 10 ** random.uniform(-13, 6, 2000)
    x = np.concatenate([x, [0, -0.0, np.inf, -np.inf]]).astype(np.float32)
    outermost_open = np.concatenate([[-np.inf], EDGES[1:-1], [np.inf]])
    expected, _ = np.histogram(x.astype(np.float64), bins=outermost_open)
    np.testing.assert_array_equal(count(x.reshape(4, -1)), expected)
    assert count(jnp.array([np.nan, 1.0])).sum() == 1


@pytest.fixture(scope="module")
def step():
    """Layout, objective, state, batch, scalars and counts of a first step."""
    config = configs.resolve(TINY_RUN, ["loss.mixup=0.5", "optim.grad_accum_steps=2"])
    mesh, source = inputs.mesh(config.mesh), examples.source(config.input)
    plan = make_durations(config, num_examples=source.num_examples)
    model = networks.model(config, num_classes=source.num_classes)
    optimizer = updates.optimizer(config.optim, updates.schedule(config.optim, plan))
    layout = state_layout(model.make, optimizer, mesh, ema_decay=None, shard_optimizer=False)
    objective = updates.objective(config, num_classes=source.num_classes)
    batch_layout = inputs.batch_layout(config.input, source, mesh)
    with inputs.train_feed(
        config.input, source, batch_layout, seed=config.seed, start_step=0
    ) as feed:
        batch = next(feed)
    update = make_update(layout, objective, lambda step, _: {}, config.seed)
    state = layout.init(0)
    donated = jax.tree.map(jnp.copy, state)
    _, scalars = lower_update(update, layout, batch_layout).compile()(donated, batch)
    distributions = make_distributions(layout, objective, config.seed)(state, batch)
    return layout, objective, state, batch, scalars, jax.device_get(distributions)


def test_gradients_are_those_of_the_update(step):
    _, _, state, _, scalars, distributions = step
    norms = {name: x for name, x in distributions.scalars.items() if name.startswith("gradients/")}
    parts = {"blocks/0", "blocks/1", "head", "norm", "patches", "positions", "cls"}
    assert set(norms) == {f"gradients/{part}/norm" for part in parts}
    total = np.sqrt(sum(x**2 for x in norms.values()))
    np.testing.assert_allclose(total, scalars["train/grad_norm"], rtol=SAME_MATH)
    counts = {name: c for name, c in distributions.counts.items() if name.startswith("gradients/")}
    assert sum(c.sum() for c in counts.values()) == sum(
        x.size for x in jax.tree.leaves(state.params)
    )
    assert counts["gradients/blocks/1/mlp/fc1/kernel"].sum() == 16 * 32


@pytest.mark.slow
def test_activations_are_those_of_the_blocks(step):
    layout, objective, state, batch, _, distributions = step
    images, _, _ = steps.examples(batch, objective, seed=0, done=0)
    model = nnx.merge(layout.graph, state.params)
    for i, x in enumerate(model.tokens(images[::2], layers=(0, 1))):
        assert (distributions.counts[f"activations/blocks/{i}"] == count(x)).mean() > 0.95
        assert distributions.counts[f"activations/blocks/{i}"].sum() == x.size
        for name, value in (
            ("rms", jnp.sqrt(jnp.mean(x**2))),
            ("mean", jnp.mean(x)),
            ("std", jnp.std(x)),
            ("abs_max", jnp.max(jnp.abs(x))),
        ):
            there = distributions.scalars[f"activations/blocks/{i}/{name}"]
            np.testing.assert_allclose(there, value, rtol=SAME_MATH, atol=1e-6, err_msg=name)


def test_they_are_written_to_every_log(tmp_path, step):
    written = []

    class Writer:
        def write(self, step, values):
            written.append((step, values))

        write_histograms = write

        def close(self, error):
            pass

    with RunLog(tmp_path, writers=[Writer()], start_step=0, profile=None) as log:
        log.write_distributions(1, step[-1])
    (_, scalars), (_, histograms) = written
    assert set(scalars) == set(step[-1].scalars)
    assert set(histograms) == set(step[-1].counts)
    assert log.row(1) == {"step": 1, **scalars}
