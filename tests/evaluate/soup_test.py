import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from tests.conftest import DIGITS_RUN
from tests.messages import refused
from vit_jax import config as configs
from vit_jax import models, weights
from vit_jax.core.screen import Screen
from vit_jax.evaluate import soup


@pytest.fixture(scope="module")
def config():
    return configs.load("configs/vit_digits.py", DIGITS_RUN)


@pytest.fixture
def steps(digits_run):
    return [f"{digits_run}@{step}" for step in (2, 4, 6)]


def params(path, **options):
    _, found = nnx.split(weights.load(path, **options), nnx.Param)
    return [np.asarray(x) for x in jax.tree.leaves(found)]


@pytest.mark.parametrize("ema", [False, pytest.param(True, marks=pytest.mark.slow)])
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


@pytest.mark.parametrize(
    ("accuracies", "said"),
    [
        ([0.5, 0.9, 0.8], ["80.00%", "90.00%", "--even_if_worse"]),
        ([1.0, 0.5, 0.99999], [">99.99%", "100.00%"]),  # not all of it
    ],
)
def test_a_mean_that_is_worse_is_not_written(
    steps, config, tmp_path, monkeypatch, accuracies, said
):
    of_each = iter(accuracies)
    monkeypatch.setattr(soup, "evaluate", lambda *_, **__: {"test/accuracy": next(of_each)})
    with refused(*said):
        soup.soup(steps[:2], str(tmp_path / "mean"), config, Screen(quiet=True))
    assert not (tmp_path / "mean").exists()


def test_an_output_that_is_there_and_one_alone_are_refused_first(
    steps, config, tmp_path, monkeypatch
):
    monkeypatch.setattr(soup, "evaluate", None)  # is not called
    with refused(tmp_path):
        soup.soup(steps, str(tmp_path), config, Screen(quiet=True))
    for paths in ([], steps[:1], steps[:1] * 2):
        with refused("at least two"):
            soup.soup(paths, str(tmp_path / "mean"), config, Screen(quiet=True))


def test_inputs_have_to_be_alike(steps, monkeypatch):
    """Positions of another size do not add up; for other colours the mean is of no model."""
    info = weights.checkpoint_info
    for change in ({"image_size": (16, 16)}, {"std": (0.2, 0.2, 0.2)}):

        def changed(path, change=change):
            found = info(path)
            preprocess = dataclasses.replace(found.preprocess, **change)
            return dataclasses.replace(found, preprocess=preprocess) if path == steps[1] else found

        monkeypatch.setattr(weights, "checkpoint_info", changed)
        with refused(steps[1], "inputs"):
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


def test_models_have_to_be_alike(steps, tmp_path):
    wider = weights.load_with_info(steps[0])
    spec = dataclasses.replace(wider.model.spec, width=24)
    about = {"image_size": (8, 8), "preprocess": wider.model.preprocess}
    model = models.build(spec, num_classes=10, rngs=nnx.Rngs(0), **about)
    weights.save(wider._replace(model=model), tmp_path / "wider", "checkpoint")
    with refused("another model"):
        soup.check([steps[0], str(tmp_path / "wider")])
