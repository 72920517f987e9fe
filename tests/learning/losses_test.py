import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from flax import nnx

from tests.tools.prepare.conftest import jpeg
from tests.tools.prepare.pipeline_test import prepared
from vit_jax.learning import losses
from vit_jax.learning.methods.dino import DINO
from vit_jax.learning.methods.mae import MAE
from vit_jax.run.build import Run
from vit_jax.run.parts import eval_data, examples, inputs, updates
from vit_jax.run.parts.eval_data import ModelClasses
from vit_jax.tools.prepare import records
from vit_jax.tools.prepare.collection import CollectionRequest, PrepareOptions

ROUNDING = 1e-6  # relative; a few float32 operations

LOGITS = np.array([[2.0, -1.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0], [30.0, -30.0, 5.0, 1.0]])


def numpy_softmax_loss(logits, targets):
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -(targets * log_p).sum(-1)


def test_multi_hot():
    labels = jnp.array([[2, -1, -1], [0, 3, -1], [1, 1, -1], [-1, -1, -1]])
    np.testing.assert_array_equal(
        losses.multi_hot(labels, 4), [[0, 0, 1, 0], [1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0]]
    )


def test_weights_of_labels():
    """A label listed twice has the larger weight; one of weight 0 is not a label."""
    labels = jnp.array([[2, 0, -1], [1, 1, 3], [3, -1, -1]])
    weights = jnp.array([[0.25, 1, 0], [0.5, 0.75, 0], [0, 0, 0]])
    targets = losses.multi_hot(labels, 4, weights)
    np.testing.assert_array_equal(targets, [[1, 0, 0.25, 0], [0, 0.75, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(
        losses.multi_hot(labels, 4, jnp.ones([3, 3])), losses.multi_hot(labels, 4)
    )
    divided = np.array([[0.8, 0, 0.2, 0], [0, 1, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_allclose(
        losses.softmax_cross_entropy(jnp.array(LOGITS), targets),
        numpy_softmax_loss(LOGITS, divided),
        rtol=ROUNDING,
    )


def test_smoothing_keeps_the_sum_of_a_row():
    targets = jnp.array([[0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    np.testing.assert_allclose(
        losses.smooth_labels(targets, 0.2),
        [[0.05, 0.85, 0.05, 0.05], [0.9, 0.9, 0.1, 0.1], [0, 0, 0, 0]],
        rtol=ROUNDING,
    )
    np.testing.assert_array_equal(losses.smooth_labels(targets, 0.0), targets)


def test_sigmoid_is_summed_over_classes():
    targets = np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.3, 0.0, 0.7, 0.0]])
    yes, no = np.logaddexp(0, -LOGITS), np.logaddexp(0, LOGITS)  # -log p, -log(1 - p)
    expected = (targets * yes + (1 - targets) * no).sum(-1)
    loss = losses.sigmoid_cross_entropy(jnp.array(LOGITS), targets)
    np.testing.assert_allclose(loss, expected, rtol=ROUNDING)


def by_config(**fields):
    """The function from logits and targets to losses that a config means."""
    loss = losses.LOSSES[fields["kind"]](**fields)
    parts = {"grad_accum_steps": 1, "mean": (0.5,) * 3, "std": (0.5,) * 3}
    return losses.Objective(loss=loss, num_classes=2, **parts).losses


@pytest.mark.parametrize("name", losses.LOSSES)
def test_large_logits_stay_finite_and_bfloat16_is_widened(name):
    compute, targets = by_config(kind=name), jnp.array([[0.0, 1.0]])
    loss = compute(jnp.array([[1e4, -1e4]], jnp.bfloat16), targets)
    assert loss.dtype == jnp.float32 and loss.shape == (1,) and np.isfinite(loss).all()
    exact = jnp.array([[3.0, 2.0]], jnp.bfloat16)
    assert compute(exact, targets) == pytest.approx(compute(exact.astype(jnp.float32), targets))


# --- label weights, from a list to a training step


ENTRIES = [
    {"image": "0.jpg", "labels": [0, 1], "weights": [0.5, 0.25]},
    {"image": "1.jpg", "labels": [2], "weights": [0.125]},
    {"image": "2.jpg", "labels": [3, 4]},
]
WEIGHTS = [[0.5, 0.25, 0, 0, 0], [0, 0, 0.125, 0, 0], [0, 0, 0, 1, 1]]


@pytest.fixture
def run_on(tmp_path, tiny_run):
    """`run_on(entries, "loss.kind=sigmoid", ...)`: a tiny run on a set of these entries."""

    def make(entries, *overrides):
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        for number in range(len(entries)):
            (folder / f"{number}.jpg").write_bytes(jpeg(number))
        (folder / "list.jsonl").write_text("".join(json.dumps(e) + "\n" for e in entries))
        request = CollectionRequest(str(folder), num_classes=5)
        data_set = prepared(records.collection(request), folder / "out", PrepareOptions())
        return tiny_run(
            "input.source=tfds", f"input.data_dir={data_set.folder}", "input.num_examples=none",
            "input.num_classes=none", "input.batch_size=3", "evals.own.split=train",
            "evals.own.preprocess=decode|resize(8)", *overrides,
        )  # fmt: skip

    return make


def targets(config):
    """Targets of the first training batch and of the evaluation's, on the devices."""
    source, mesh = examples.source(config.input), inputs.mesh(config.mesh)
    objective = updates.objective(config, num_classes=source.num_classes)
    classes = ModelClasses(source.num_classes, source.class_names)
    layout = inputs.batch_layout(config.input, source, mesh)
    evaluated, _ = eval_data.eval_data("own", config, classes, mesh, (8, 8)).open_feed()
    with (
        inputs.train_feed(config.input, source, layout, seed=config.seed, start_step=0) as trained,
        evaluated,
    ):
        for feed in (trained, evaluated):
            rows = np.asarray(objective.inputs(next(feed))[1])
            yield sorted(rows.tolist(), reverse=True)


def test_targets_are_the_weights(run_on):
    expected = sorted(WEIGHTS, reverse=True)
    assert list(targets(run_on(ENTRIES))) == [expected] * 2
    ones = sorted(np.sign(WEIGHTS).tolist(), reverse=True)
    assert list(targets(run_on(ENTRIES, "input.label_weights=false"))) == [ones] * 2


@pytest.mark.parametrize("kind", losses.LOSSES)
def test_means_of_classes_of_several_labels(run_on, tmp_path, quick_compilation, kind):
    """By sets of images: taken for each class of a sigmoid, else for that of the largest logit."""
    labels = np.random.default_rng(0).random((11, 5)) < 0.4
    labels[:, 0], labels[:, 4] = ~labels[:, 1:4].any(axis=1), False  # a class without images
    entries = [
        {"image": f"{i}.jpg", "labels": np.flatnonzero(x).tolist()} for i, x in enumerate(labels)
    ]
    overrides = (f"loss.kind={kind}", "evals.own.macro=true", "evals.own.batch_size=4")
    run = Run.build(run_on(entries, *overrides), epath.Path(tmp_path / "run"))
    layout, (split,) = run.parts.layout, run.eval_data["own"].parts
    normal = np.random.default_rng(1).normal
    params = jax.tree.map(lambda x: jnp.asarray(normal(size=x.shape), x.dtype), layout.state.params)
    numbers = run.evals.run(0, {"": params}, lambda *_: None, last=True)
    pairs, (feed, batches) = [], split.open_feed()
    with feed:
        for batch in (next(feed) for _ in range(batches)):
            images, targets, weight = map(np.asarray, run.parts.objective.inputs(batch))
            logits = np.asarray(nnx.merge(layout.graph, params)(images))
            pairs += zip(logits[weight > 0], targets[weight > 0] > 0, strict=True)
    logits, labels = map(np.array, zip(*pairs, strict=True))
    taken, hits = logits > 0, logits > 0
    if losses.LOSSES[kind].exclusive:
        taken = logits == logits.max(axis=1, keepdims=True)
        hits = (labels & taken).any(axis=1, keepdims=True)
    precision = (labels & taken).sum(axis=0) / np.maximum(taken.sum(axis=0), 1)
    recall = ((labels & hits).sum(axis=0) / np.maximum(labels.sum(axis=0), 1))[:4]
    assert len(labels) == 11
    assert numbers["own/macro_precision"] == pytest.approx(precision[:4].mean())
    assert numbers["own/macro_recall"] == pytest.approx(recall.mean())
    f1 = 2 * precision[:4] * recall / np.maximum(precision[:4] + recall, 1e-9)
    assert numbers["own/macro_f1"] == pytest.approx(f1.mean())


@pytest.mark.parametrize(
    ("parts", "method", "is_sum"),
    [
        (1, losses.Supervised(), False),
        (2, losses.Supervised(), True),
        (1, MAE(), False),
        (1, DINO(), True),
    ],
)
def test_gradients_are_sums_of_microbatches_or_views(parts, method, is_sum):
    objective = losses.Objective(
        loss=losses.Softmax(), num_classes=3, grad_accum_steps=parts, mean=(0.5,) * 3,
        std=(0.5,) * 3, method=method,
    )  # fmt: skip
    assert objective.sums_gradients == is_sum
