"""Metrics by name: balanced accuracy as others have it, and metrics of plug-ins."""

import dataclasses
import functools

import numpy as np
import pytest

from tests.messages import refused
from vit_jax import config as configs
from vit_jax import plugins
from vit_jax.core.schema import entry_points
from vit_jax.core.schema.fields import field
from vit_jax.evals.metrics import BalancedAccuracy, Metric
from vit_jax.learning.losses import top_k_correct
from vit_jax.run.parts import evaluations
from vit_jax.train import train


def drawn():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 200) % 3 + (rng.random(200) < 0.1)  # of six classes two are absent
    return labels, rng.normal(size=(200, 6)).astype(np.float32) + 2 * np.eye(6)[labels]


def balanced(labels, logits):
    metric = BalancedAccuracy()
    return metric.of_split(jax_to_numpy(metric.of_batch(logits, np.eye(6, dtype=bool)[labels])))


def jax_to_numpy(arrays):
    return {name: np.asarray(x) for name, x in arrays.items()}


def test_balanced_accuracy_by_hand():
    labels, logits = drawn()
    predicted = logits.argmax(-1)
    recalls = [np.mean(predicted[labels == k] == k) for k in np.unique(labels)]
    assert balanced(labels, logits) == pytest.approx(np.mean(recalls), rel=1e-12)


@pytest.mark.parity
def test_balanced_accuracy_is_that_of_scikit_learn():
    theirs = pytest.importorskip("sklearn.metrics")
    labels, logits = drawn()
    expected = theirs.balanced_accuracy_score(labels, logits.argmax(-1))
    assert balanced(labels, logits) == pytest.approx(expected, rel=1e-12)


@dataclasses.dataclass(frozen=True)
class TopK(Metric):
    k: int = field(3, "of the highest logits", bounds=(1, 100))

    def of_batch(self, logits, labels):
        return {"correct": top_k_correct(logits, labels, self.k)}

    def of_split(self, arrays):
        return float(arrays["correct"].mean())


class Further(TopK):
    """One that extends another."""


def test_a_metric_has_fields_of_its_own(monkeypatch, tiny_run, tmp_path):
    monkeypatch.setattr(entry_points, "_added", {})
    plugins.add("metrics", "topk_accuracy", TopK)
    evaluation = (
        "evals.test.split=train", "evals.test.preprocess=decode|resize(8)",
        "evals.test.metrics=balanced_accuracy,topk_accuracy",
    )  # fmt: skip
    make = functools.partial(tiny_run, *evaluation)
    config = make("evals.test.k=4", "checkpoint.best_metric=test/balanced_accuracy")
    assert configs.resolve(configs.to_dict(config)) == config
    evaluations.check_evals(config)
    # Twice, or with one that extends another: once, and its fields.
    plugins.add("metrics", "further_accuracy", Further)
    names = "topk_accuracy,further_accuracy,topk_accuracy"
    assert make(f"evals.test.metrics={names}", "evals.test.k=2").evals["test"].k == 2
    train(config, tmp_path)
    row = (tmp_path / "metrics.jsonl").read_text().splitlines()[-1]
    assert '"test/topk_accuracy": 1.0' in row and '"test/balanced_accuracy"' in row
    with refused("'k'"):
        make("evals.test.kk=4")
    with refused("evals.test.k"):
        make("evals.test.k=400")
    with refused("'balanced_accuracy'", "installed"):
        tiny_run(*evaluation[:2], "evals.test.metrics=balance_accuracy")
    with refused("metrics", "evals.test.kind=classification"):
        make("evals.test.kind=frozen")
