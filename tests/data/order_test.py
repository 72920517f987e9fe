import math
import tracemalloc

import numpy as np
import pytest

from vit_jax.data.streams import keys, permute, shuffled

# Mean squared deviation over its expectation; its standard deviation here is sqrt(2 / 81).
LARGEST_CHI_SQUARED_PER_DEGREE = 1 + 4 * (2 / 81) ** 0.5

# In standard deviations of chi-squared, sqrt(2 x degrees of freedom); the largest of a hundred.
MOST_DEVIATIONS = 4.5

# A dozen numbers per requested position; none per example.
MOST_BYTES_A_POSITION = 200

# In standard deviations of independent ranks' correlation, 1 / sqrt(n); the largest of 21.
LARGEST_RANK_CORRELATION = 4.0


@pytest.mark.parametrize("num_examples", [1, 2, 3, 4, 5, 7, 64, 100, 1437, 2**12, 2**12 + 1])
def test_every_epoch_is_a_permutation(num_examples):
    for epoch in (0, 1, 90):
        positions = np.arange(num_examples) + epoch * num_examples
        epochs, indices = shuffled(num_examples, seed=3)(positions)
        assert (epochs == epoch).all()
        np.testing.assert_array_equal(np.sort(indices), np.arange(num_examples))


def test_order_depends_on_seed_and_epoch_alone():
    positions = np.arange(3000)
    _, indices = shuffled(1000, seed=0)(positions)
    _, again = shuffled(1000, seed=0)(positions[1234:1300])
    np.testing.assert_array_equal(indices[1234:1300], again)
    _, other_seed = shuffled(1000, seed=1)(positions)
    assert (indices != other_seed).mean() > 0.99
    assert (indices[:1000] != indices[1000:2000]).mean() > 0.99


def test_examples_take_all_places_equally_often():
    num_examples, num_epochs = 10, 3000
    _, indices = shuffled(num_examples, seed=0)(np.arange(30_000))
    counts = np.zeros((num_examples, num_examples))
    np.add.at(counts, (np.tile(np.arange(num_examples), num_epochs), indices), 1)
    expected = num_epochs / num_examples
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    degrees = (num_examples - 1) ** 2
    assert chi_squared / degrees < LARGEST_CHI_SQUARED_PER_DEGREE


@pytest.mark.parametrize("by_epochs", [True, False])
@pytest.mark.parametrize("num_examples", range(2, 8))
def test_few_examples_take_all_orders_equally_often(num_examples, by_epochs):
    """Chi-squared over all n! orders, for one seed's epochs and for many seeds' first epochs."""
    num_orders = math.factorial(num_examples)
    num_epochs = 10 * max(num_orders, 200)
    seeds = np.zeros(num_epochs, int) if by_epochs else np.arange(num_epochs)
    epochs = np.arange(num_epochs) if by_epochs else np.zeros(num_epochs, int)
    own = keys(np.repeat(seeds, num_examples), np.repeat(epochs, num_examples))
    places = np.tile(np.arange(num_examples), num_epochs)
    orders = permute(places, num_examples=num_examples, keys=own).reshape(num_epochs, -1)
    _, counts = np.unique(orders @ num_examples ** np.arange(num_examples), return_counts=True)
    expected = num_epochs / num_orders
    missing = (num_orders - len(counts)) * expected
    chi_squared = ((counts - expected) ** 2 / expected).sum() + missing
    degrees = num_orders - 1
    assert chi_squared < degrees + MOST_DEVIATIONS * (2 * degrees) ** 0.5


@pytest.mark.parametrize("num_examples", [8, 9, 10, 13, 16, 21, 31, 32, 33])
def test_pairs_of_places_are_taken_equally_often(num_examples):
    """All n! orders are too many here; instead all n (n - 1) pairs in neighbouring places."""
    num_epochs, n = 20_000, num_examples
    _, indices = shuffled(n, seed=1)(np.arange(n * num_epochs))
    orders = indices.reshape(num_epochs, n)
    expected, degrees = num_epochs / (n * (n - 1)), n * (n - 1) - 1
    for place in range(n - 1):
        pairs = np.bincount(orders[:, place] * n + orders[:, place + 1], minlength=n * n)
        pairs = pairs.reshape(n, n)[~np.eye(n, dtype=bool)]
        chi_squared = ((pairs - expected) ** 2 / expected).sum()
        assert chi_squared < degrees + MOST_DEVIATIONS * (2 * degrees) ** 0.5


def places_by_epoch(num_examples, num_epochs):
    """Position of each example in each epoch, int64 [epochs, examples]."""
    positions = np.arange(num_epochs * num_examples)
    _, indices = shuffled(num_examples, seed=0)(positions)
    return np.argsort(indices.reshape(num_epochs, num_examples), axis=1)


@pytest.mark.parametrize("num_examples", [1437, 2**14, 100_003])
def test_places_in_different_epochs_are_not_related(num_examples):
    """Spearman's rank correlation for 15 pairs of epochs, and between places and indices."""
    places = places_by_epoch(num_examples, 6)
    correlations = np.corrcoef(np.concatenate([places, np.arange(num_examples)[None]]))
    of_pairs = correlations[np.triu_indices(7, k=1)]
    assert np.abs(of_pairs).max() < LARGEST_RANK_CORRELATION / num_examples**0.5


def test_shards_are_mixed():
    """With a thousand shards of a hundred examples each, every batch is a fair sample."""
    num_shards, batch_size = 1000, 1000
    _, indices = shuffled(100_000, seed=0)(np.arange(100_000))
    shards = (indices // 100).reshape(-1, batch_size)
    counts = np.stack([np.bincount(batch, minlength=num_shards) for batch in shards])
    # Almost Poisson with mean 1: the variance is 1 - batch_size / num_examples.
    assert abs(counts.var() - 0.99) < 0.03
    assert counts.max() < 12


def test_sizes_may_differ_from_place_to_place():
    """Each place behaves as if all had its size."""
    sizes = np.array([1, 2, 3, 4, 5, 1000, 2**20, 2**20 + 1, 303_000_000])
    places = sizes - 1
    permuted = permute(places, num_examples=sizes, keys=keys(0, places))
    for place, size, expected in zip(places, sizes, permuted, strict=True):
        one = np.array([place])
        assert permute(one, num_examples=int(size), keys=keys(0, one)).tolist() == [expected]


@pytest.mark.parametrize("num_examples", [1, 2, 3, 7, 11, 12, 13, 1437])
@pytest.mark.parametrize("repeats", [2, 3, 5])
def test_copies_of_an_epoch(num_examples, repeats):
    """n positions have ceil(n / repeats) examples, each equally often except the last."""
    positions = np.arange(num_examples * 4)
    rounds, indices = shuffled(num_examples, seed=0, repeats=repeats)(positions)
    assert len(set(zip(rounds, indices, strict=True))) == len(positions)  # other random numbers
    np.testing.assert_array_equal(rounds // repeats, positions // num_examples)
    for epoch in indices.reshape(4, num_examples):
        counts = np.bincount(epoch, minlength=num_examples)
        assert (counts > 0).sum() == -(-num_examples // repeats)
        assert counts.max() <= repeats
        missing = repeats - counts[counts > 0]
        assert missing.max() <= repeats // 2 or num_examples < repeats
        assert missing.sum() == -num_examples % repeats


def test_copies_lie_close_together_but_are_not_neighbours():
    _, indices = shuffled(1437, seed=0, repeats=3)(np.arange(1437))
    assert indices[:12].tolist() == [*indices[:2]] * 3 + [*indices[6:8]] * 3
    assert (indices[1:] != indices[:-1]).all()
    for index in np.unique(indices):
        places = np.flatnonzero(indices == index)
        assert np.ptp(places) < 9


def test_300_million_examples_take_no_memory():
    positions = np.arange(4096) + 10**12
    shuffled(1000, seed=0)(positions)
    tracemalloc.start()
    shuffled(303_000_000, seed=0)(positions)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes / len(positions) < MOST_BYTES_A_POSITION


def test_order_never_changes():
    """Every published run depends on these numbers."""
    _, indices = shuffled(5, seed=0)(np.arange(8))
    assert indices.tolist() == [2, 3, 0, 4, 1, 3, 2, 4]
    _, indices = shuffled(32, seed=0)(np.arange(8))  # the most that are sorted
    assert indices.tolist() == [31, 2, 21, 29, 6, 13, 19, 18]
    _, indices = shuffled(33, seed=0)(np.arange(8))
    assert indices.tolist() == [4, 3, 32, 13, 29, 5, 15, 23]
    _, indices = shuffled(1000, seed=0)(np.arange(8))
    assert indices.tolist() == [18, 993, 249, 846, 246, 623, 537, 975]
    rounds, indices = shuffled(1000, seed=0, repeats=3)(np.arange(998, 1006))
    assert rounds.tolist() == [1, 1, 3, 3, 4, 4, 5, 5]
    assert indices.tolist() == [904, 587, 597, 401, 597, 401, 597, 401]


def test_images_of_an_epoch_are_drawn_anew():
    """Over 3000 epochs, each of ten examples comes in the expected share, 4 of 10."""
    _, indices = shuffled(10, seed=0, repeats=3)(np.arange(30_000))
    epochs = indices.reshape(3000, 10)
    counts = np.array([(epochs == index).any(axis=1).sum() for index in range(10)])
    expected, deviation = 3000 * 0.4, (3000 * 0.4 * 0.6) ** 0.5
    assert np.abs(counts - expected).max() < 4 * deviation
    assert np.abs(np.bincount(indices) - 3000).max() < 4 * 3 * deviation
