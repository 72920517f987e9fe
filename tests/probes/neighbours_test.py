import functools

import jax
import numpy as np
import pytest

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


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(neighbours, "_ROWS", 16)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_most_similar_is_scikit_learns(small_blocks, dtype):
    sklearn = pytest.importorskip("sklearn.neighbors")
    x = np.random.default_rng(0).normal(size=(70, 6)).astype(dtype)
    x *= np.arange(1, 71)[:, None] % 9 + 1
    queries = np.random.default_rng(1).normal(size=(5, 6)).astype(np.float32)
    found = neighbours.most_similar(queries, x, 9)
    model = sklearn.NearestNeighbors(n_neighbors=9, metric="cosine").fit(x.astype(np.float64))
    distances, indices = model.kneighbors(queries.astype(np.float64))
    np.testing.assert_array_equal(found.indices, indices)
    np.testing.assert_allclose(found.similarities, 1 - distances, atol=1e-6)


def copies_by_hand(x, threshold):
    """(row, original) of every copy, one row after the other."""
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosines, kept, found = unit @ unit.T, [], []
    for row in range(len(x)):
        near = [k for k in kept if cosines[row, k] >= threshold]
        if near:
            found.append((row, max(near, key=lambda k: cosines[row, k])))
        else:
            kept.append(row)
    return found


@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.99])
def test_copies_equal_a_search_written_out(small_blocks, threshold):
    x = np.random.default_rng(0).normal(size=(70, 4)).astype(np.float32)
    x[[9, 20, 40, 69]] = 3 * x[[2, 19, 3, 40]]
    found = neighbours.copies(x, threshold)
    assert list(zip(found.rows.tolist(), found.originals.tolist(), strict=True)) == (
        copies_by_hand(x, threshold)
    )
    assert (found.similarities >= threshold).all() and len(found.rows) >= 4


def test_votes_of_many_classes_take_no_memory_for_each_neighbour():
    queries, k, num_classes = 64, 50, 2_000
    shapes = (
        jax.ShapeDtypeStruct(shape, dtype)
        for shape, dtype in (((500, 4), "f4"), ((500,), "i4"), ((queries, 4), "f4"), ((), "f4"))
    )
    vote = functools.partial(neighbours._vote, k=(1, k), num_classes=num_classes)
    memory = jax.jit(vote).lower(*shapes).compile().memory_analysis()
    assert memory.temp_size_in_bytes < queries * k * num_classes


def test_low_temperatures_do_not_overflow():
    train, test = examples(30, noise=2.0), examples(50, noise=2.0, seed=1)
    cold, one = (
        neighbours.accuracies(train, test, num_classes=4, k=(k,), temperature=1e-3)[k]
        for k in (10, 1)
    )
    assert cold == pytest.approx(one, abs=0.02)
