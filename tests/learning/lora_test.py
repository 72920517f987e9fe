"""Fine-tuning by low-rank adapters: what moves, what is saved, what others then see."""

import jax
import numpy as np
import pytest
from flax import nnx

from tests.messages import refused
from vit_jax import weights
from vit_jax.core import pytrees
from vit_jax.core.errors import Preempted
from vit_jax.run.parts import networks
from vit_jax.train import train

MERGED = 1e-5  # of the largest logit: float32 sums in another order
KERNELS = "blocks/.*/attention/(query|value)/kernel,blocks/1/mlp/.*/kernel"
IMAGES = np.random.default_rng(1).normal(size=(5, 8, 8, 3)).astype(np.float32)


@pytest.fixture
def adapted(tiny_run, tmp_path):
    """`adapted("lora.rank=3")`: config and last state of a run with adapters of trained weights."""

    def run(*overrides, workdir="adapted", **arguments):
        config = tiny_run(
            f"init.weights={tmp_path / 'before'}", f"lora.kernels={KERNELS}", "lora.rank=2",
            "optim.lr=0.03", "optim.ema_decay=0.9", *overrides,
        )  # fmt: skip
        return config, train(config, tmp_path / workdir, **arguments)

    return run


def logits_of(graph, params):
    return np.asarray(jax.jit(lambda p: nnx.merge(graph, p)(IMAGES))(params))


def loaded(path, **arguments):
    """(logits, names of the parameters) of a checkpoint."""
    graph, params = nnx.split(weights.load(path, **arguments), nnx.Param)
    params = nnx.to_pure_dict(params)
    return logits_of(graph, params), set(pytrees.flatten(params))


def moved(before, after):
    """Names of parameters; of adapters, with what is not zero along layers and projections."""
    names = {n for n, x in after.items() if n not in before or (x != before[n]).any()}
    b = after["blocks/block/attention/qkv/lora_b"], after["blocks/block/mlp/fc1/lora_b"]
    return names, *(
        (np.abs(x).reshape(*x.shape[:n], -1).max(-1) > 0) for x, n in zip(b, (2, 1), strict=True)
    )


@pytest.mark.slow
def test_only_adapters_and_the_head_move(tiny_run, adapted, tmp_path, quick_compilation, capsys):
    before = pytrees.flatten(train(tiny_run("total.steps=2"), tmp_path / "before").params)
    capsys.readouterr()
    with pytest.raises(Preempted):
        adapted(stop="SIGTERM")
    # The first step's learning rate is 0, so this is still the function of the weights.
    first, names = loaded(tmp_path / "adapted")
    np.testing.assert_array_equal(first, loaded(tmp_path / "before")[0])
    assert names == set(before)
    config, state = adapted()
    said = capsys.readouterr().out
    assert "trained  580 parameters, 512 of them in adapters of rank 2; the others" in said

    after = pytrees.flatten(state.params)
    names, projections, layers = moved(before, after)
    assert names == {n for n in after if pytrees.is_adapter(n) or n.startswith("head/")}
    assert projections.tolist() == [[True, False, True]] * 2 and layers.tolist() == [False, True]
    kept = {n for n in pytrees.flatten(state.opt_state) if "/mu/" in n}
    assert {n.partition("/mu/")[2] for n in kept} == names

    # Merged where they are read: the same function, of ordinary parameters.
    model = networks.model(config, num_classes=4)
    graph = nnx.split(nnx.eval_shape(lambda: model.make(nnx.Rngs(0))))[0]
    for ema, params in ((False, state.params), (True, state.ema)):
        logits = logits_of(graph, params)
        merged, names = loaded(tmp_path / "adapted", ema=ema)
        limit = MERGED * float(np.abs(logits).max())
        np.testing.assert_allclose(merged, logits, rtol=0, atol=limit)
        assert np.abs(merged - first).max() > 100 * limit and names == set(before)

    # It ended as one that was not stopped, and does not go on with other adapters.
    jax.tree.map(np.testing.assert_array_equal, state, adapted(workdir="straight")[1])
    with refused("lora.rank"):
        adapted("lora.rank=3")
    with refused("lora_a"):
        adapted("lora.rank=3", allow_config_change=True)
