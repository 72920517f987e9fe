import numpy as np
import pytest

from vit_jax import build
from vit_jax.core.errors import UserError


def indices(config, steps):
    source = build.source(config.input)
    with build.train_batches(config, source, start_step=0) as batches:
        return np.concatenate([next(batches)["index"] for _ in range(steps)])


def test_a_run_goes_over_its_subset(tiny_run):
    """64 examples are declared; an epoch has 16 of them, which are one batch."""
    for override in ("input.subset_fraction=0.25", "input.subset_examples=16"):
        config = tiny_run(override)
        assert build.declared_examples(config.input) == 16
        assert build.source(config.input).num_examples == 16
        epochs = indices(config, 2).reshape(2, 16)
        np.testing.assert_array_equal(np.sort(epochs), [np.arange(16)] * 2)


def test_the_subset_does_not_depend_on_the_seed(tiny_run):
    one, other = (
        build.source(tiny_run("input.subset_examples=5", f"seed={seed}").input) for seed in (0, 1)
    )
    assert [one.describe(i) for i in range(5)] == [other.describe(i) for i in range(5)]
    assert one.fingerprint == other.fingerprint


def test_a_subset_by_class(tiny_run):
    config = tiny_run("input.subset_per_class=3")  # of four classes
    source = build.source(config.input)
    assert source.num_examples == 12
    assert build.declared_examples(config.input) is None
    with build.train_batches(config, source, start_step=0) as batches:
        labels = next(batches)["labels"][:12, 0]
    np.testing.assert_array_equal(np.bincount(labels), [3] * 4)


def test_one_kind_of_subset_at_most(tiny_run):
    both = tiny_run("input.subset_examples=5", "input.subset_fraction=0.5").input
    message = r"Give one of input\.subset_fraction, input\.subset_examples; 2 are set"
    for function in (build.source, build.declared_examples):
        with pytest.raises(UserError, match=message):
            function(both)


def test_the_declared_number_is_that_of_the_split(tiny_run):
    changed = ("input.source=digits", "input.num_classes=10", "input.subset_examples=100")
    assert build.source(tiny_run("input.num_examples=1437", *changed).input).num_examples == 100
    with pytest.raises(UserError, match=r"input\.num_examples=100, but the data have 1437"):
        build.source(tiny_run("input.num_examples=100", *changed).input)
