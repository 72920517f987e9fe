import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from tests.messages import refused, told
from vit_jax import config as configs
from vit_jax import models, weights
from vit_jax.core.screen import Screen
from vit_jax.evaluate import soup
from vit_jax.train import train

FIELDS = (
    "total.epochs=none", "total.steps=6", "optim.warmup_epochs=none", "model.depth=1",
    "model.width=16", "model.mlp_dim=32", "model.num_heads=2", "log.tensorboard=false",
    "optim.ema_decay=0.5", "checkpoint.every_steps=2", "checkpoint.keep_last=3",
)  # fmt: skip


@pytest.fixture(scope="module")
def config():
    return configs.load("configs/vit_digits.py", FIELDS)


@pytest.fixture(scope="module")
def run(tmp_path_factory, config):
    workdir = tmp_path_factory.mktemp("soup") / "run"
    train(config, workdir)
    return workdir


@pytest.fixture
def steps(run):
    return [f"{run}@{step}" for step in (2, 4, 6)]


def params(path, **options):
    _, found = nnx.split(weights.load(path, **options), nnx.Param)
    return [np.asarray(x) for x in jax.tree.leaves(found)]


@pytest.mark.parametrize("ema", [False, True])
def test_the_mean_of_three_steps_is_written_and_evaluated(steps, config, tmp_path, capsys, ema):
    output = str(tmp_path / "mean")
    results = soup.soup(steps, output, config, Screen(), ema=ema, even_if_worse=True)
    expected = [
        np.mean(each, axis=0) for each in zip(*(params(s, ema=ema) for s in steps), strict=True)
    ]
    for mean, right in zip(params(output), expected, strict=True):
        np.testing.assert_allclose(mean, right, rtol=1e-6, atol=1e-7)
    assert list(results) == [*steps, output] and len({*map(tuple, results.values())}) == 1
    assert weights.checkpoint_info(output).step == 6
    assert output in capsys.readouterr().out


def test_a_mean_that_is_worse_is_not_written(steps, config, tmp_path, monkeypatch):
    accuracies = iter([0.5, 0.9, 0.8])
    told = lambda *_, **__: {"test/accuracy": next(accuracies)}
    monkeypatch.setattr(soup, "evaluate", told)
    with refused("80.00%", "90.00%", "--even_if_worse"):
        soup.soup(steps[:2], str(tmp_path / "mean"), config, Screen(quiet=True))
    assert not (tmp_path / "mean").exists()


def test_one_alone_is_none(steps, config, tmp_path):
    for paths in ([], steps[:1], steps[:1] * 2):
        with refused():
            soup.soup(paths, str(tmp_path / "mean"), config, Screen(quiet=True))


def test_a_share_that_is_not_all_is_not_called_so(steps, config, tmp_path, monkeypatch):
    accuracies = iter([1.0, 0.5, 0.99999])
    told = lambda *_, **__: {"test/accuracy": next(accuracies)}
    monkeypatch.setattr(soup, "evaluate", told)
    with refused(">99.99%", "100.00%"):
        soup.soup(steps[:2], str(tmp_path / "mean"), config, Screen(quiet=True))


def test_an_output_that_is_there_is_refused_first(steps, config, tmp_path, monkeypatch):
    monkeypatch.setattr(soup, "evaluate", None)  # is not called
    with refused(tmp_path):
        soup.soup(steps, str(tmp_path), config, Screen(quiet=True))


def test_inputs_have_to_be_alike(steps, monkeypatch):
    """Positions of another size do not add up; for other colours the mean is of no model."""
    info = weights.checkpoint_info
    for change in ({"image_size": (16, 16)}, {"std": (0.2, 0.2, 0.2)}):

        def changed(path, change=change):
            found = info(path)
            preprocess = dataclasses.replace(found.preprocess, **change)
            return dataclasses.replace(found, preprocess=preprocess) if path == steps[1] else found

        monkeypatch.setattr(weights, "checkpoint_info", changed)
        with refused("size, mean and std", next(iter(change.values()))):
            soup.check(steps)


def test_runs_may_have_been_trained_otherwise(steps, tmp_path):
    other = weights.load_with_info(steps[1])
    fields = {
        "dropout": 0.2, "stochastic_depth": 0.1, "scan": not other.model.spec.scan,
        "remat": "full", "attention": "xla", "dtype": "bfloat16", "head_bias": -6.0,
        "initialization": "deit",
    }  # fmt: skip
    spec = dataclasses.replace(other.model.spec, **fields)
    model = models.build(
        spec,
        num_classes=other.model.num_classes,
        image_size=other.model.preprocess.image_size,
        preprocess=other.model.preprocess,
        rngs=nnx.Rngs(0),
    )
    nnx.update(model, nnx.to_pure_dict(nnx.split(other.model, nnx.Param)[1]))
    weights.save(other._replace(model=model), tmp_path / "other", "checkpoint")
    trained_otherwise = [steps[0], str(tmp_path / "other")]
    soup.check(trained_otherwise)
    mean, expected = soup.average(trained_otherwise), soup.average(steps[:2])
    assert mean.model.spec == expected.model.spec
    arrays = (nnx.split(each.model, nnx.Param)[1] for each in (mean, expected))
    for one, other in zip(*map(jax.tree.leaves, arrays), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_table_is_read_as_overrides_say(steps, tmp_path, run_python):
    table = tmp_path / "odd.csv"
    table.write_text("picture_of,label\na.png,cat\n")
    flags = ("--data", str(table), "--output", str(tmp_path / "mean"))
    column = "--config.input.image_column=painting_of"
    done = run_python("-m", "vit_jax", "soup", *flags, column, *steps)
    told(done.stderr, "'painting_of'", "'picture_of'")


def test_models_have_to_be_alike(steps, tmp_path):
    wider = configs.load("configs/vit_digits.py", [*FIELDS, "model.width=24", "total.steps=2"])
    train(wider, tmp_path)
    with refused("one model"):
        soup.check([steps[0], str(tmp_path)])
