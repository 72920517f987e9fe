"""Mirrored copies of images."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageOps

from tests.prepare.conftest import jpeg
from tests.prepare.copies.near_pairs_test import flipped, random_hashes
from vit_jax.prepare import faults
from vit_jax.prepare.catalogue import ImageRow
from vit_jax.prepare.check_image import check
from vit_jax.prepare.copies import mirrors

NO_TELL = lambda done, of: None


def test_equals_comparing_all_with_all() -> None:
    some = random_hashes(40)
    looks = np.unique(np.concatenate([some, *(flipped(some, k, seed=k) for k in range(1, 8))]))
    rng = np.random.default_rng(3)
    turned = flipped(looks[rng.permutation(len(looks))], 1, seed=4)
    turned[::7] = looks[rng.permutation(len(looks))[: len(turned[::7])]]  # exactly another's look
    turned[::11] = turned[0]  # several images with one mirrored look
    known = rng.random(len(looks)) < 0.9
    found = mirrors.search(looks, turned, known, 3, NO_TELL)
    near = np.bitwise_count(looks[:, None] ^ looks) <= 3
    in_mirror = (np.bitwise_count(looks[:, None] ^ turned) <= 3) & known
    in_mirror = (in_mirror | in_mirror.T) & ~near
    for pairs, wanted in ((found.near, near), (found.mirrored, in_mirror)):
        first, second = np.nonzero(np.triu(wanted, 1))
        assert len(first) > 100
        np.testing.assert_array_equal(pairs.first, first)
        np.testing.assert_array_equal(pairs.second, second)


def test_no_looks_have_no_pairs() -> None:
    none = np.zeros(0, np.uint64)
    found = mirrors.search(none, none, none.astype(bool), 4, NO_TELL)
    assert not len(found.near.first) and not len(found.mirrored.first)


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
