"""Pairs of hashes that differ in few bits, also for mirrored images."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.tools.prepare.conftest import jpeg
from vit_jax.tools.prepare import faults, near_pairs
from vit_jax.tools.prepare.catalogue import ImageRow
from vit_jax.tools.prepare.check_image import check


def random_hashes(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, count, np.uint64)


def flipped(hashes: np.ndarray, bits: int, seed: int = 1) -> np.ndarray:
    """The hashes with `bits` random bits flipped in each."""
    rng = np.random.default_rng(seed)
    chosen = [rng.choice(64, bits, replace=False) for _ in hashes]
    masks = [sum(1 << int(bit) for bit in bits_of_one) for bits_of_one in chosen]
    return hashes ^ np.array(masks, np.uint64)


@pytest.mark.parametrize("bits", range(1, near_pairs.MOST_BITS + 1))
def test_equals_comparing_all_with_all(bits: int) -> None:
    some = random_hashes(60)
    hashes = np.unique(np.concatenate([some, *(flipped(some, k, seed=k) for k in range(1, 11))]))
    near = near_pairs.near_pairs(hashes, bits)
    differing = np.bitwise_count(hashes[:, None] ^ hashes[None, :])
    first, second = np.nonzero(np.triu(differing <= bits, 1))
    assert len(first) > 60 * bits
    np.testing.assert_array_equal(near.first, first)
    np.testing.assert_array_equal(near.second, second)
    assert len(near.crowded) == 0


@pytest.mark.parametrize("at_once", [3, 50, 600])
def test_chunk_size_does_not_matter(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    some = random_hashes(60)
    hashes = np.unique(np.concatenate([some, *(flipped(some, k, seed=k) for k in range(1, 11))]))
    whole = near_pairs.near_pairs(hashes, 3)
    monkeypatch.setattr(near_pairs, "_AT_ONCE", at_once)
    monkeypatch.setattr(near_pairs, "_COMPARED_AT_ONCE", at_once)
    for one, other in zip(near_pairs.near_pairs(hashes, 3), whole, strict=True):
        np.testing.assert_array_equal(one, other)


def test_planted_pairs_among_many() -> None:
    hashes = random_hashes(100_000)
    planted = flipped(hashes[:500], 4)
    values = np.sort(np.concatenate([hashes, planted]))
    near = near_pairs.near_pairs(values, 4)
    pairs = set(zip(values[near.first].tolist(), values[near.second].tolist(), strict=True))
    both = np.sort(np.stack([hashes[:500], planted]), axis=0)
    assert set(map(tuple, both.T.tolist())) <= pairs and len(pairs) < 510


def test_crowds_are_bounded_and_reported() -> None:
    """Thousands of hashes that agree in 32 bits would all be compared with each other."""
    hashes = np.unique(random_hashes(3000) & np.uint64(0xFFF))
    near = near_pairs.near_pairs(hashes, 2)
    assert len(near.crowded) > 1000
    differing = np.bitwise_count(hashes[near.first] ^ hashes[near.second])
    assert len(differing) and differing.max() <= 2


def test_within_0_bits_nothing_is_near() -> None:
    assert len(near_pairs.near_pairs(random_hashes(100), 0).first) == 0
    assert len(near_pairs.near_pairs(random_hashes(0), 4).first) == 0


NO_TELL = lambda done, of: None


def test_mirrored_pairs_equal_comparing_all_with_all() -> None:
    some = random_hashes(40)
    looks = np.unique(np.concatenate([some, *(flipped(some, k, seed=k) for k in range(1, 8))]))
    rng = np.random.default_rng(3)
    turned = flipped(looks[rng.permutation(len(looks))], 1, seed=4)
    turned[::7] = looks[rng.permutation(len(looks))[: len(turned[::7])]]  # exactly another's look
    turned[::11] = turned[0]  # several images with one mirrored look
    known = rng.random(len(looks)) < 0.9
    result = near_pairs.search(looks, turned, known, 3, NO_TELL)
    near = np.bitwise_count(looks[:, None] ^ looks) <= 3
    in_mirror = (np.bitwise_count(looks[:, None] ^ turned) <= 3) & known
    in_mirror = (in_mirror | in_mirror.T) & ~near
    for pairs, wanted in ((result.near, near), (result.mirrored, in_mirror)):
        first, second = np.nonzero(np.triu(wanted, 1))
        assert len(first) > 100
        np.testing.assert_array_equal(pairs.first, first)
        np.testing.assert_array_equal(pairs.second, second)


def test_no_looks_have_no_pairs() -> None:
    none = np.zeros(0, np.uint64)
    result = near_pairs.search(none, none, none.astype(bool), 4, NO_TELL)
    assert not len(result.near.first) and not len(result.mirrored.first)


def test_the_mirrored_look_is_that_of_the_mirrored_image() -> None:
    policy = faults.policy([], {})
    data = jpeg(3, (120, 90), quality=95)
    out = io.BytesIO()
    ImageOps.mirror(Image.open(io.BytesIO(data))).save(out, "PNG")
    one, other = (check(ImageRow(""), each, policy, 10**8)[0] for each in (data, out.getvalue()))
    assert one.look is not None and one.mirrored is not None
    assert other.look is not None and other.mirrored is not None
    assert (one.mirrored ^ other.look).bit_count() <= 4 >= (one.look ^ other.mirrored).bit_count()
    assert (one.look ^ other.look).bit_count() > 12
