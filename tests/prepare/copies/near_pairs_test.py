"""Pairs of hashes that differ in few bits."""

from __future__ import annotations

import numpy as np
import pytest

from vit_jax.prepare.copies import near_pairs as near


def random_hashes(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, count, np.uint64)


def flipped(hashes: np.ndarray, bits: int, seed: int = 1) -> np.ndarray:
    """The hashes with `bits` random bits flipped in each."""
    rng = np.random.default_rng(seed)
    chosen = [rng.choice(64, bits, replace=False) for _ in hashes]
    masks = [sum(1 << int(bit) for bit in bits_of_one) for bits_of_one in chosen]
    return hashes ^ np.array(masks, np.uint64)


@pytest.mark.parametrize("bits", range(1, near.MOST_BITS + 1))
def test_equals_comparing_all_with_all(bits: int) -> None:
    some = random_hashes(60)
    hashes = np.unique(np.concatenate([some, *(flipped(some, k, seed=k) for k in range(1, 11))]))
    found = near.near_pairs(hashes, bits)
    differing = np.bitwise_count(hashes[:, None] ^ hashes[None, :])
    first, second = np.nonzero(np.triu(differing <= bits, 1))
    assert len(first) > 60 * bits
    np.testing.assert_array_equal(found.first, first)
    np.testing.assert_array_equal(found.second, second)
    assert len(found.crowded) == 0


@pytest.mark.parametrize("at_once", [3, 50, 600])
def test_chunk_size_does_not_matter(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    some = random_hashes(60)
    hashes = np.unique(np.concatenate([some, *(flipped(some, k, seed=k) for k in range(1, 11))]))
    whole = near.near_pairs(hashes, 3)
    monkeypatch.setattr(near, "_AT_ONCE", at_once)
    monkeypatch.setattr(near, "_COMPARED_AT_ONCE", at_once)
    for one, other in zip(near.near_pairs(hashes, 3), whole, strict=True):
        np.testing.assert_array_equal(one, other)


def test_planted_pairs_among_many() -> None:
    hashes = random_hashes(100_000)
    planted = flipped(hashes[:500], 4)
    values = np.sort(np.concatenate([hashes, planted]))
    found = near.near_pairs(values, 4)
    pairs = set(zip(values[found.first].tolist(), values[found.second].tolist(), strict=True))
    both = np.sort(np.stack([hashes[:500], planted]), axis=0)
    assert set(map(tuple, both.T.tolist())) <= pairs and len(pairs) < 510


def test_crowds_are_bounded_and_reported() -> None:
    """Thousands of hashes that agree in 32 bits would be compared all with all."""
    hashes = np.unique(random_hashes(3000) & np.uint64(0xFFF))
    found = near.near_pairs(hashes, 2)
    assert len(found.crowded) > 1000
    differing = np.bitwise_count(hashes[found.first] ^ hashes[found.second])
    assert len(differing) and differing.max() <= 2


def test_nothing_is_near_within_no_bits() -> None:
    assert len(near.near_pairs(random_hashes(100), 0).first) == 0
    assert len(near.near_pairs(random_hashes(0), 4).first) == 0
