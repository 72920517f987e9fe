"""Counting, on a model whose logits are the colours of an image's only pixel."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.messages import refused
from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.evals.classification import ClassificationConfig
from vit_jax.evals.kind import EvalInputs, SplitReader
from vit_jax.learning.losses import Objective, Softmax
from vit_jax.parallel import mesh as meshes
from vit_jax.probes.calibration import best_temperature, calibration, cross_fitted

RIGHT, WRONG = (9, 0, 0), (0, 9, 0)  # of class 0
BAD, PADDING = ((0, 0, 0), [-1, -1], [0, 0], 0.0), ((0, 0, 0), [-1, -1], [0, 0], 0.0)


class Colours(nnx.Module):
    spec = models.spec("ViT-Ti/4")

    def __call__(self, images):
        return images[:, 0, 0]


class Feed(list):
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def run(examples, *, num_examples, batch_size=2, weighted=True, keep=None, **fields):
    """Evaluates examples (pixel, labels, their weights, weight of the example) with padding."""

    def open_feed():
        arrays = []
        for first in range(0, len(examples), batch_size):
            pixels, labels, weights, weight = zip(
                *examples[first : first + batch_size], strict=True
            )
            batch = {
                "image": np.array(pixels, np.uint8)[:, None, None],
                "labels": np.array(labels, np.int32),
                "weight": np.array(weight, np.float32),
            }
            if weighted:
                batch["label_weights"] = np.array(weights, np.float32)
            arrays.append(jax.tree.map(jnp.asarray, batch))

        return Feed(arrays), len(arrays)

    objective = Objective(
        loss=Softmax(), num_classes=3,
        grad_accum_steps=1, mean=(0.0,) * 3, std=(1 / 255,) * 3,
    )  # fmt: skip
    graph, _ = nnx.split(Colours(), nnx.Param)
    mesh = meshes.make_mesh(replica=1, data=-1, fsdp=1, tensor=1)
    read = functools.partial(
        SplitReader,
        graph=graph, mesh=mesh, open_feed=open_feed, num_examples=num_examples, where="evals.test",
    )  # fmt: skip
    config = ClassificationConfig(**fields)
    inputs = EvalInputs(read, objective, graph, mesh, num_classes=3, keep=keep)
    numbers = config.make(inputs).run({}, lambda *_: None, stop=False)
    assert set(numbers) == set(config.numbers())
    return numbers


def test_images_without_a_label_and_bad_ones_are_counted_and_not_scored():
    labelled = [(RIGHT, [0, -1], [1, 0], 1.0), (WRONG, [0, -1], [1, 0], 1.0)]
    unlabelled = [(WRONG, [-1, -1], [0, 0], 1.0)] * 3
    numbers = run([*labelled, *unlabelled, BAD, BAD, PADDING], num_examples=7, weighted=False)
    loss = math.log(1 + 2 * math.exp(-9)) + 9 / 2  # the mean of right and wrong
    expected = {
        "accuracy": 0.5, "top5_accuracy": 1.0, "loss": pytest.approx(loss, rel=1e-5),
        "examples": 2, "unlabelled_images": 3, "skipped_images": 2,
    }  # fmt: skip
    assert {name: numbers[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("label_threshold", "accuracy", "unlabelled"),
    [(0.2, 2 / 3, 0), (0.5, 1 / 2, 1), (0.75, 1 / 2, 1), (1.0, 1.0, 2)],
)
def test_a_hit_needs_a_label_of_enough_weight(label_threshold, accuracy, unlabelled):
    examples = [
        (RIGHT, [0, 1], [0.25, 0.75], 1.0),  # class 0 weighs too little from 0.5 on
        (RIGHT, [0, 1], [1.0, 0.25], 1.0),
        (WRONG, [0, -1], [0.25, 0.0], 1.0),
        PADDING,
    ]
    numbers = run(examples, num_examples=3, label_threshold=label_threshold)
    assert (numbers["accuracy"], numbers["unlabelled_images"]) == (accuracy, unlabelled)
    assert numbers["examples"] + numbers["unlabelled_images"] == 3


def test_a_split_without_scorable_images_is_refused():
    with refused("evals.test: none of its 2", "1 are bad", "evals.test.label_threshold=0.5"):
        run([(RIGHT, [0, -1], [0.25, 0], 1.0), BAD], num_examples=2)


def test_means_of_classes():
    of_0 = [(RIGHT, [0], [1.0], 1.0), (RIGHT, [0], [1.0], 1.0), (WRONG, [0], [1.0], 1.0)]
    numbers = run([*of_0, (RIGHT, [2], [1.0], 1.0)], num_examples=4, macro=True)
    assert numbers["accuracy"] == 0.5  # of 4 images; 2 of 3 of class 0, none of class 2
    recall, precision = numbers["macro_recall"], numbers["macro_precision"]
    assert (recall, precision) == pytest.approx((1 / 3, 1 / 3))
    assert numbers["macro_f1"] == pytest.approx(1 / 3)
    assert "macro_recall" not in run(of_0[:2], num_examples=2)


def test_probabilities_are_judged_on_the_images_that_are_scored():
    pixels = np.random.default_rng(0).integers(0, 4, (20, 3))
    labels = np.random.default_rng(1).integers(0, 3, 20)
    good = [(tuple(x), [y], [1.0], 1.0) for x, y in zip(pixels, labels, strict=True)]
    others = [((9, 9, 9), [-1], [0.0], 1.0), ((0, 0, 0), [-1], [0.0], 0.0)]
    examples = [*good[:7], *others, *good[7:]]
    numbers = run(examples, num_examples=22, calibration=True, batch_size=11)
    found = calibration(pixels, labels)
    assert numbers["ece"] == pytest.approx(found.ece, abs=1e-6)
    assert numbers["nll"] == pytest.approx(found.nll) == pytest.approx(numbers["loss"])
    assert numbers["brier"] == pytest.approx(found.brier)
    assert numbers["temperature"] == pytest.approx(best_temperature(pixels, labels))
    scaled = calibration(pixels, labels, cross_fitted(pixels, labels))
    assert numbers["scaled_ece"] == pytest.approx(scaled.ece, abs=1e-6)
    assert numbers["scaled_nll"] == pytest.approx(scaled.nll)


@pytest.mark.parametrize("options", [{"calibration": True}, {"macro": True}, {"keep": print}])
def test_probabilities_that_are_not_finite_are_an_error(monkeypatch, options):
    monkeypatch.setattr(Colours, "__call__", lambda self, images: images[:, 0, 0] / 0.0)
    with pytest.raises(UserError, match=r"evals\.test.* 1 of 1 "):
        run([(RIGHT, [0], [1.0], 1.0)], num_examples=1, **options)


def test_the_scores_of_all_images_are_told():
    kept = []
    examples = [
        (RIGHT, [0, 1], [1.0, 0.25], 1.0),
        BAD,
        (WRONG, [2, 0], [0.75, 0.5], 1.0),
        (RIGHT, [2, -1], [0.25, 0.0], 1.0),  # not scored
        (RIGHT, [1, 2], [0.25, 1.0], 1.0),
        PADDING,
    ]
    run(examples, num_examples=5, keep=kept.append)
    (scores,) = kept
    assert scores.places.tolist() == [0, 2, 4]
    assert scores.labels.tolist() == [[0, -1], [2, 0], [2, -1]]
    assert scores.prediction.tolist() == [0, 1, 0]
    assert scores.correct.tolist() == [True, False, False]
    assert scores.confidence == pytest.approx(1 / (1 + 2 * math.exp(-9)), rel=1e-5)
    loss = math.log(1 + 2 * math.exp(-9)) + 9 * 0.25 / 1.25  # of the share of class 1
    assert scores.loss[0] == pytest.approx(loss, rel=1e-5)
    assert scores.exclusive and scores.counts.images.tolist() == [2, 0, 2]
    assert scores.counts.predicted.tolist() == [2, 1, 0]


@pytest.mark.parametrize("batch_size", [2, 7])
def test_sigmoids_are_decided_class_by_class(monkeypatch, batch_size):
    spec = dataclasses.replace(Colours.spec, probabilities="sigmoid")
    monkeypatch.setattr(Colours, "spec", spec)
    monkeypatch.setattr(Colours, "__call__", lambda self, images: images[:, 0, 0] - 4)
    kept = []
    examples = [
        ((9, 9, 0), [0, 1], [1.0, 1.0], 1.0),
        ((9, 0, 0), [0, 1], [1.0, 0.25], 1.0),  # class 1 weighs too little
        BAD,
        ((0, 4, 9), [1, 2], [1.0, 1.0], 1.0),  # half is enough
        ((9, 9, 9), [-1, -1], [0.0, 0.0], 1.0),  # not scored
        ((0, 0, 9), [0, -1], [1.0, 0.0], 1.0),
        PADDING,
    ]
    run(examples, num_examples=6, keep=kept.append, batch_size=batch_size)
    (scores,) = kept
    assert not scores.exclusive
    assert [x.tolist() for x in scores.counts] == [[3, 2, 1], [2, 2, 1], [2, 2, 2], [2, 2, 1]]
    assert scores.correct.tolist() == [True, True, True, False]
    with refused("evals.test.calibration"):
        run(examples, num_examples=6, calibration=True)
