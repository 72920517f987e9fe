import numpy as np
import pytest

from vit_jax.probes.thresholds import choose, precision_recall


def draw(seed, number=200):
    """Probabilities, many of them equal, and whether they are right."""
    rng = np.random.default_rng(seed)
    p = np.round(rng.uniform(size=number), 2).astype(np.float32)
    return p, rng.uniform(size=number) < p


def test_a_case_by_hand():
    p, hits = np.float32([0.1, 0.9, 0.6, 0.6, 0.3]), np.array([False, True, False, True, True])
    precision, recall, thresholds = precision_recall(p, hits)
    assert thresholds.tolist() == np.float32([0.1, 0.3, 0.6, 0.9]).tolist()
    np.testing.assert_allclose(precision, [3 / 5, 3 / 4, 2 / 3, 1])
    np.testing.assert_allclose(recall, [1, 1, 2 / 3, 1 / 3])
    assert choose(p, hits) == pytest.approx((0.3, 3 / 4, 1, 6 / 7))
    assert choose(p, hits, 0.3) == pytest.approx((0.9, 1, 1 / 3, 1 / 2))
    assert choose(p, hits, 0.0) == choose(p, hits, 0.3)  # 0 is a recall too
    assert choose(p, hits, 0.5) == pytest.approx((0.3, 3 / 4, 1, 6 / 7))


@pytest.mark.parity
@pytest.mark.parametrize("seed", range(5))
def test_curves_and_choices_are_those_of_scikit_learn(seed):
    metrics = pytest.importorskip("sklearn.metrics")
    p, hits = draw(seed)
    theirs = metrics.precision_recall_curve(hits, p)
    for ours, their in zip(precision_recall(p, hits), theirs, strict=True):
        np.testing.assert_array_equal(ours, their[: len(ours)])
    best = choose(p, hits)
    f1 = [metrics.f1_score(hits, p >= t) for t in (*np.unique(p), np.float32(best.threshold))]
    assert best.f1 == pytest.approx(max(f1), abs=1e-15)
    assert best.f1 == pytest.approx(f1[-1], abs=1e-15)
    for least in (0.5, 0.9, 1.0):
        chosen = choose(p, hits, least)
        precision, recall, _ = theirs
        assert chosen.precision == precision[:-1][recall[:-1] >= least].max()
        assert chosen.recall >= least
