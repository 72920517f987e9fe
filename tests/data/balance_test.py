import numpy as np

from vit_jax.data import label_index
from vit_jax.data.label_index import balanced

SIZES = [1, 0, 7, 100, 30]  # examples of each class


def stream_of(labels, seed=0):
    classes = label_index.by_class(label_index.collect(labels), len(SIZES), describe=str)
    return balanced(classes, seed=seed)


def uneven():
    return [(c,) for c, size in enumerate(SIZES) for _ in range(size)]


def test_every_block_has_each_class_once():
    labels = np.array([c for (c,) in uneven()])
    _, examples = stream_of(uneven())(np.arange(4 * 500))
    blocks = labels[examples].reshape(500, 4)
    np.testing.assert_array_equal(np.sort(blocks), [[0, 2, 3, 4]] * 500)
    assert len(np.unique(blocks, axis=0)) == 24  # all orders of four


def test_visits_of_a_class_go_through_its_examples_epoch_by_epoch():
    labels = np.array([c for (c,) in uneven()])
    _, examples = stream_of(uneven())(np.arange(4 * 700))
    for c in (0, 2, 3, 4):
        members = np.flatnonzero(labels == c)
        visits = examples[labels[examples] == c].reshape(-1)
        full = visits[: len(visits) // len(members) * len(members)].reshape(-1, len(members))
        np.testing.assert_array_equal(np.sort(full), np.tile(members, (len(full), 1)))
        assert c in (0,) or (full[0] != full[1]).any()


def test_positions_can_be_asked_for_in_any_order():
    stream = stream_of(uneven())
    _, examples = stream(np.arange(1000))
    order = np.random.default_rng(0).permutation(1000)
    np.testing.assert_array_equal(stream(order)[1], examples[order])
    _, other = stream_of(uneven(), seed=1)(np.arange(1000))
    assert (examples != other).mean() > 0.5


def test_examples_with_several_labels_or_none():
    """Example 0 has no label; 1 has two, and is the only one of either class."""
    epochs, examples = stream_of([(), (2, 4), (3,)])(np.arange(300))
    np.testing.assert_array_equal(np.bincount(examples, minlength=3), [0, 200, 100])
    pairs = np.stack([epochs, examples], axis=1)
    assert len(np.unique(pairs, axis=0)) == len(pairs), "it would be the same crop twice in a batch"


def test_the_order_never_changes():
    """Resumed runs depend on these numbers."""
    _, examples = stream_of(uneven())(np.arange(8) + 10**9)
    assert examples.tolist() == [0, 5, 109, 48, 16, 116, 6, 0]
