"""Class weights: torch's numbers, scikit-learn's formula, and what goes into a step."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

from tests.messages import refused
from vit_jax.data.mixtures import MixtureSource
from vit_jax.data.source import single
from vit_jax.data.sources.table import Synthetic
from vit_jax.learning import losses
from vit_jax.run.build import Run
from vit_jax.run.parts import updates
from vit_jax.run.parts.updates import class_weights
from vit_jax.train import train

ROUNDING = 1e-6  # relative; a few float32 operations
SAME_MATH = 1e-5  # relative; float32 sums in another order
WEIGHTS = (0.5, 2.0, 1.0, 4.0)
LABELS = np.array([0, 3, 3, 1, 2, 0, 3])
LOGITS = np.random.default_rng(0).normal(0, 2, (7, 4)).astype(np.float32)
ONE_HOT = np.eye(4, dtype=np.float32)[LABELS]
SOFT = 0.75 * ONE_HOT + 0.25 * np.roll(ONE_HOT, -1, axis=0)


def loss(tiny_run, targets, *overrides):
    """The loss of a batch, as a step adds it up."""
    fields = ("loss.class_weights=0.5,2,1,4", *overrides)
    config = tiny_run(*fields)
    of_step = updates.objective(config, num_classes=4)
    of_step = dataclasses.replace(
        of_step,
        class_weights=class_weights(config.loss.class_weights, config.input, None, num_classes=4),
    )
    model = lambda images, train, rngs: jnp.asarray(LOGITS)
    labels = losses.main_labels(jnp.asarray(targets))
    inputs = losses.StepInputs(None, of_step.loss_targets(jnp.asarray(targets)), {}, labels=labels)
    context = losses.StepContext(None, label_losses=of_step.label_losses)
    each = of_step.method.loss(model, inputs, None, context).losses
    weights = of_step.loss_weights(jnp.asarray(targets), jnp.ones(len(targets)))
    return jnp.sum(each * weights)


@pytest.mark.parity
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_softmax_is_torchs_weighted_mean(tiny_run, smoothing):
    torch = pytest.importorskip("torch")
    expected = torch.nn.CrossEntropyLoss(torch.tensor(WEIGHTS), label_smoothing=smoothing)(
        torch.tensor(LOGITS), torch.tensor(LABELS)
    )
    found = loss(tiny_run, ONE_HOT, f"loss.label_smoothing={smoothing}")
    np.testing.assert_allclose(found, expected.numpy(), rtol=ROUNDING)


@pytest.mark.parity
def test_softmax_of_blended_labels_is_torchs_sum_over_the_weights_of_the_labels(tiny_run):
    torch = pytest.importorskip("torch")
    summed = torch.nn.CrossEntropyLoss(torch.tensor(WEIGHTS), reduction="sum")(
        torch.tensor(LOGITS), torch.tensor(SOFT)
    )
    expected = summed.numpy() / (SOFT @ np.array(WEIGHTS, np.float32)).sum()
    np.testing.assert_allclose(loss(tiny_run, SOFT), expected, rtol=ROUNDING)


@pytest.mark.parity
@pytest.mark.parametrize("targets", [ONE_HOT, SOFT])
def test_sigmoid_weighs_what_is_asked_for_as_torchs_pos_weight(tiny_run, targets):
    torch = pytest.importorskip("torch")
    summed = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(WEIGHTS), reduction="sum")(
        torch.tensor(LOGITS), torch.tensor(targets)
    )
    found = loss(tiny_run, targets, "loss.kind=sigmoid")
    np.testing.assert_allclose(found, summed.numpy() / len(targets), rtol=ROUNDING)


@pytest.mark.parametrize("kind", losses.LOSSES)
def test_equal_weights_are_none_even_for_images_without_a_label(tiny_run, kind):
    targets = np.concatenate([SOFT[:-1], np.zeros((1, 4), np.float32)])
    equal = loss(tiny_run, targets, f"loss.kind={kind}", "loss.class_weights=1,1,1,1")
    none = loss(tiny_run, targets, f"loss.kind={kind}", "loss.class_weights=none")
    np.testing.assert_allclose(equal, none, rtol=ROUNDING)
    if losses.LOSSES[kind].exclusive:  # of these only the ratios count
        scaled = loss(tiny_run, targets, f"loss.kind={kind}", "loss.class_weights=7,7,7,7")
        np.testing.assert_allclose(scaled, none, rtol=ROUNDING)


def test_a_batch_of_classes_that_weigh_nothing_teaches_nothing(tiny_run):
    targets = np.tile(ONE_HOT[:1], (7, 1))
    assert loss(tiny_run, targets, "loss.class_weights=0,1,1,1") == 0


class Uneven(Synthetic):
    """Images of the classes 0, 0, 0, 1, 1, 2, and of none of class 3; `more` are of class 0."""

    def __init__(self, more=0):
        super().__init__(6 + more, 4, (8, 8))
        self.labels = [0, 0, 0, 1, 1, 2] + [0] * more

    def stored_labels(self):
        return single(self.labels)


def test_balanced_is_n_over_classes_times_count(tiny_run):
    """As sklearn.utils.class_weight.compute_class_weight: n_samples / (n_classes * bincount)."""
    config = tiny_run("loss.class_weights=balanced")
    weights = class_weights(config.loss.class_weights, config.input, Uneven(), num_classes=4)
    np.testing.assert_allclose(weights, [6 / (3 * 3), 6 / (3 * 2), 6 / (3 * 1), 1], rtol=ROUNDING)
    assert class_weights(config.loss.class_weights, config.input, None, num_classes=4) == (
        1,
        1,
        1,
        1,
    )


def test_balanced_follows_the_shares_of_a_mixture(tiny_run):
    """Half of the stream is of six images, half of ten, whatever their sizes."""
    overrides = [f"input.mixture.{name}.num_examples={n}" for name, n in (("a", 6), ("b", 10))]
    config = tiny_run("loss.class_weights=balanced", "input.num_examples=none", *overrides)
    source = MixtureSource({"a": Uneven(), "b": Uneven(more=4)})
    shares = (np.array([3, 2, 1]) / 6 + np.array([7, 2, 1]) / 10) / 2
    weights = class_weights(config.loss.class_weights, config.input, source, num_classes=4)
    np.testing.assert_allclose(weights, [*(1 / (3 * shares)), 1], rtol=ROUNDING)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("loss.class_weights=1,2,3",), "has 3 numbers, the data 4 classes"),
        (("loss.class_weights=1,2,3,-4",), "give at least 0 and below 1000000"),
        (("loss.class_weights=0,0,0,0",), "are all 0"),
        (("loss.class_weights=even",), "or 'balanced' or None, got 'even'"),
        (("loss.class_weights=balanced", "input.balance=class"), "set one to none"),
        (("loss.class_weights=balanced", "method.kind=mae"), "does not learn from"),
        (
            ("loss.class_weights=balanced", "method.kind=distillation", "method.teacher=/none"),
            "loss.class_weights=balanced is not read by method.kind=distillation",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    tiny_run, tmp_path, overrides, message
):
    with refused(message):
        Run.build(tiny_run(*overrides), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_microbatches_are_divided_by_the_weights_of_the_whole_batch(tiny_run, tmp_path):
    def losses(parts):
        fields = ("loss.class_weights=1,2,3,9", "loss.mixup=0.2", f"optim.grad_accum_steps={parts}")
        train(tiny_run(*fields), tmp_path / str(parts))
        rows = map(json.loads, (tmp_path / str(parts) / "metrics.jsonl").open())
        return [row["train/loss"] for row in rows if "train/loss" in row]

    assert len(losses(1)) == 6
    np.testing.assert_allclose(losses(4), losses(1), rtol=SAME_MATH)
