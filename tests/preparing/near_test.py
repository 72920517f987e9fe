"""Pairs of hashes that differ in few bits."""

from __future__ import annotations

import numpy as np
import pytest

from vit_jax.preparing import near


def random_hashes(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, count, np.uint64)


def flipped(hashes: np.ndarray, bits: int, seed: int = 1) -> np.ndarray:
    """With so many other bits each."""
    rng = np.random.default_rng(seed)
    chosen = [rng.choice(64, bits, replace=False) for _ in hashes]
    masks = [sum(1 << int(bit) for bit in bits_of_one) for bits_of_one in chosen]
    return hashes ^ np.array(masks, np.uint64)


@pytest.mark.parametrize("bits", range(1, near.MOST_BITS + 1))
def test_finds_what_comparing_all_with_all_finds(bits: int) -> None:
    some = random_hashes(60)
    hashes = np.unique(np.concatenate([some, *(flipped(some, k, seed=k) for k in range(1, 11))]))
    found = near.near_pairs(hashes, bits)
    differing = np.bitwise_count(hashes[:, None] ^ hashes[None, :])
    first, second = np.nonzero(np.triu(differing <= bits, 1))
    assert len(first) > 60 * bits
    np.testing.assert_array_equal(found.first, first)
    np.testing.assert_array_equal(found.second, second)
    assert found.not_compared == 0


def test_planted_pairs_among_many() -> None:
    hashes = random_hashes(100_000)
    planted = flipped(hashes[:500], 4)
    found = near.near_pairs(np.concatenate([hashes, planted]), 4)
    pairs = set(zip(found.first.tolist(), found.second.tolist(), strict=True))
    assert {(i, 100_000 + i) for i in range(500)} <= pairs and len(pairs) < 510


def test_a_crowd_is_bounded_and_said() -> None:
    """Thousands of hashes that agree in 32 bits would be compared all with all."""
    hashes = np.unique(random_hashes(3000) & np.uint64(0xFFF))
    found = near.near_pairs(hashes, 2)
    assert found.not_compared > 1000
    differing = np.bitwise_count(hashes[found.first] ^ hashes[found.second])
    assert len(differing) and differing.max() <= 2


def test_nothing_is_near_within_no_bits() -> None:
    assert len(near.near_pairs(random_hashes(100), 0).first) == 0
    assert len(near.near_pairs(random_hashes(0), 4).first) == 0
