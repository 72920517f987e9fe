import numpy as np
import pytest

from tests.messages import refused
from tests.probes.few_shot_test import examples
from vit_jax.probes import neighbours


def by_hand(train, test, k, temperature):
    """Accuracy of one k, one query after the other."""
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)
    right = 0
    for query, label in zip(unit(test[0]), test[1], strict=True):
        similarity = unit(train[0]) @ query
        nearest = np.argsort(-similarity)[:k]
        votes = np.bincount(train[1][nearest], np.exp(similarity[nearest] / temperature))
        right += votes.argmax() == label
    return right / len(test[1])


@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_equals_a_vote_written_out(temperature):
    train, test = examples(30, noise=2.0), examples(270, noise=2.0, seed=1)
    found = neighbours.accuracies(train, test, num_classes=4, k=(1, 5, 40), temperature=temperature)
    assert found == {k: by_hand(train, test, k, temperature) for k in (1, 5, 40)}


def test_low_temperatures_do_not_overflow():
    train, test = examples(30, noise=2.0), examples(50, noise=2.0, seed=1)
    cold, one = (
        neighbours.accuracies(train, test, num_classes=4, k=(k,), temperature=1e-3)[k]
        for k in (10, 1)
    )
    assert cold == pytest.approx(one, abs=0.02)


def test_more_neighbours_than_examples_is_an_error():
    with refused("k=17"):
        neighbours.accuracies(examples(4), examples(4), num_classes=4, k=(17,), temperature=0.07)
    with refused("temperature=0"):
        neighbours.accuracies(examples(4), examples(4), num_classes=4, k=(1,), temperature=0.0)


def test_nearest_by_cosine():
    x = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    x *= np.arange(1, 41)[:, None]  # length does not matter
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    queries = [7, 0, 39]
    found = neighbours.nearest(x, queries, 5)
    for row, query in enumerate(queries):
        similarity = unit @ unit[query]
        expected = np.argsort(-similarity)[1:6]  # the first is the query itself
        np.testing.assert_array_equal(found.indices[row], expected)
        np.testing.assert_allclose(found.similarities[row], similarity[expected], atol=1e-5)
