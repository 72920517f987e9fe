"""Duplicates, near duplicates and images of evaluation sets."""

import hashlib
import io

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image, ImageOps

from tests.messages import refused
from tests.tools.prepare.conftest import jpeg
from vit_jax.tools.prepare import collection, duplicates, faults, split_assignment, summary
from vit_jax.tools.prepare.collection import ImageRow, PrepareOptions
from vit_jax.tools.prepare.duplicates import EvaluationSet
from vit_jax.tools.prepare.faults import check
from vit_jax.tools.prepare.split_assignment import Splits, assign_splits

# Perceptual hashes far from each other.
A, B, C = 0x0F0F_1234_5678_9ABC, 0xF0F0_4321_8765_CBA9, 0x5A5A_1111_2222_3333


def table(*images, splits=(), mirrored=()):
    """A catalogue of images (content, look) in this order; labels are their indices."""
    columns = {name: [None] * len(images) for name in collection.SCHEMA.names}
    columns |= {
        "name": [f"{i}.jpg" for i in range(len(images))],
        "order": list(range(len(images))),
        "labels": [[i] for i in range(len(images))],
        "faults": [[] for _ in images],
        "action": ["keep"] * len(images),
        "sha256": [hashlib.sha256(content.encode()).digest() for content, _ in images],
        "look": [look for _, look in images],
    }
    columns |= {"split": list(splits)} if splits else {}
    columns |= {"mirrored": list(mirrored)} if mirrored else {}
    return pa.table(
        [pa.array(columns[f.name], f.type) for f in collection.SCHEMA], collection.SCHEMA
    )


def with_column(images, name, values):
    field = images.schema.field(name)
    place = images.schema.get_field_index(name)
    return images.set_column(place, field, pa.array(values, field.type))


def assigned(images, evaluations=(), **options):
    chosen = PrepareOptions(**options)
    splits = Splits.parse(chosen.splits or "train=rest")
    return assign_splits(images, splits, chosen, evaluations)


def test_the_first_of_equal_bytes_stays():
    images = table(("a", A), ("b", B), ("a", A), ("a", A))
    result = assigned(images)
    assert result.copies.same == {2: 0, 3: 0} and not result.copies.near and not result.left_out
    assert assigned(images, duplicates="drop").left_out == {2: "duplicate", 3: "duplicate"}
    merged = assigned(images, duplicates="merge")
    assert merged.labels == {0: (0, 2, 3)} and merged.left_out == {2: "merged", 3: "merged"}


def test_merged_labels_have_the_largest_of_their_weights():
    """Labels without weights count as 1; if no image has weights, the merged one has none."""
    images = table(*(("a", A), ("b", B)) * 3)
    images = with_column(images, "labels", [[4, 1], [0], [2], [2], [1, 4], [0]])
    images = with_column(images, "weights", [[0.5, 0.25], [], [], [], [0.75, 0.125], []])
    result = assigned(images, duplicates="merge")
    assert result.labels == {0: (1, 2, 4), 1: (0, 2)}
    assert result.weights == {0: (0.75, 1.0, 0.5)}
    rows = split_assignment.example_rows(images, np.arange(2), result)
    assert [(row.labels, row.weights) for row in rows] == [
        ((1, 2, 4), (0.75, 1.0, 0.5)),
        ((0, 2), ()),
    ]
    assert split_assignment.weighted(images, result)
    plain = images.slice(1, 3)
    assert not split_assignment.weighted(plain, assigned(plain))


def test_near_copies_are_within_near_bits():
    images = table(("a", A), ("b", A ^ 0b1111), ("c", A ^ 0b11111), ("d", B))
    assert assigned(images, near_bits=4).copies.near == {1: 0}  # 2 is near one that is dropped
    assert assigned(images, near_bits=3).copies.near == {2: 1}
    assert assigned(images, near_bits=0).copies.near == {}
    assert not assigned(images).left_out
    dropped = assigned(images, near_bits=5, near_duplicates="drop")
    assert dropped.left_out == {1: "near_duplicate", 2: "near_duplicate"}


def test_a_chain_is_not_dropped_as_a_whole():
    """Each is near the next, the ends are far apart: dropped ones are near one that stays."""
    chain = table(*((str(i), A ^ ((1 << 4 * i) - 1)) for i in range(6)))
    assert assigned(chain, near_bits=4).copies.near == {1: 0, 3: 2, 5: 4}


@pytest.mark.parametrize("duplicates", ["keep", "drop", "merge"])
def test_copies_of_left_out_images_are_left_out_too(duplicates):
    """1 looks like 0; 2 has the bytes of 1, 3 those of 0."""
    images = table(("a", A), ("b", A ^ 1), ("b", A ^ 1), ("a", A))
    result = assigned(images, duplicates=duplicates, near_duplicates="drop")
    assert result.copies.near == {1: 0, 2: 0} and result.copies.same == {2: 1, 3: 0}
    why = {"keep": "near_duplicate", "drop": "duplicate", "merge": "merged"}[duplicates]
    kept = {3: why} if duplicates != "keep" else {}
    assert result.left_out == {1: "near_duplicate", 2: why} | kept
    assert result.labels == ({0: (0, 3)} if duplicates == "merge" else {})
    originals = {one["name"]: one["of"] for one in summary.left_out(images, result)}
    assert originals.keys() == {images["name"][row].as_py() for row in result.left_out}


def test_images_of_evaluation_sets_are_left_out():
    images = table(("a", A), ("b", B), ("c", B ^ 1), ("d", ~B & (2**64 - 1)), ("e", None))
    test_set = table(("x", B ^ 0b110), ("e", None), ("a", A), ("y", ~A & (2**64 - 1)), ("z", None))
    evaluation = EvaluationSet("test_set", test_set)
    result = assigned(images, evaluations=[evaluation])
    assert result.left_out == dict.fromkeys([0, 1, 2, 4], "in_evaluation:test_set")
    assert result.copies.by_look == 2 and result.copies.matched == {"test_set": 3}
    assert result.splits["train"].tolist() == [3]


def test_splits_that_are_held_out_stay_as_they_are():
    splits = ["train", "val", "train", "val", "train"]
    images = table(("a", A), ("a", A), ("b", B), ("b", B), ("c", None), splits=splits)
    result = assigned(images, duplicates="drop")
    assert result.left_out == {0: "duplicate", 2: "duplicate"}
    evaluation = EvaluationSet("mine", table(("a", A), ("z", B)))
    result = assigned(images, evaluations=[evaluation])
    assert result.left_out == dict.fromkeys([0, 2], "in_evaluation:mine")
    kept = {name: rows.tolist() for name, rows in result.splits.items()}
    assert kept == {"train": [4], "val": [1, 3]}


def test_held_out_images_get_no_labels_of_training_images():
    splits = ["train", "val", "val", "train", "train"]
    images = table(*[("a", A)] * 3, *[("b", B)] * 2, splits=splits)
    result = assigned(images, duplicates="merge")
    assert result.labels == {1: (1, 2), 3: (3, 4)}
    assert result.left_out == {0: "duplicate", 2: "merged", 4: "merged"}


def test_a_split_of_which_nothing_is_left_is_refused():
    images = table(("a", A), ("a", A), splits=["train", "val"])
    with refused("--policy"):
        assigned(images, duplicates="drop")


def test_copies_in_other_splits_are_counted_once():
    splits = ["val", "train", "train", "train"]
    images = table(("a", A), ("a", A), ("b", A ^ 1), ("c", B), splits=splits)
    result = assigned(images)
    assert summary.duplicates(result, summary.copy_pairs(images, result))["across_splits"] == 2
    dropped = assigned(images, duplicates="drop", near_duplicates="drop")
    assert summary.duplicates(dropped, summary.copy_pairs(images, dropped))["across_splits"] == 0


def test_mirrored_copies_are_separate_from_near_ones():
    """1 mirrors 0, 2 is near 1, 3 is near 0; 4 has the bytes of 1."""
    images = table(
        ("a", A), ("b", B ^ 1), ("c", B ^ 3), ("d", A ^ 1), ("b", B ^ 1), ("e", C),
        mirrored=[B, A ^ 2, A, B, A ^ 2, C],
    )  # fmt: skip
    result = assigned(images)
    assert result.copies.same == {4: 1} and result.copies.near == {2: 1, 3: 0}
    assert result.copies.mirrored == {1: 0, 2: 0, 4: 0} and not result.left_out
    assert assigned(images, near_bits=0).copies.mirrored == {2: 0}  # the same look
    dropped = assigned(images, mirrored_duplicates="drop")
    assert dropped.left_out == dict.fromkeys([1, 2, 4], "mirrored")
    both = assigned(images, near_duplicates="drop", mirrored_duplicates="drop")
    assert both.left_out == {3: "near_duplicate", 2: "near_duplicate", 1: "mirrored", 4: "mirrored"}
    originals = {one["name"]: one["of"] for one in summary.left_out(images, both)}
    assert originals == {"1.jpg": "0.jpg", "2.jpg": "1.jpg", "3.jpg": "0.jpg", "4.jpg": "0.jpg"}


def test_mirrored_images_of_evaluation_sets():
    images = table(("a", A), ("b", B), ("c", C), mirrored=[B ^ 0b111, None, None])
    evaluation = EvaluationSet("test_set", table(("x", B ^ 0b1111_111), ("c", None)))
    result = assigned(images, near_bits=4, evaluations=[evaluation])
    assert result.left_out == {2: "in_evaluation:test_set"}
    assert result.copies.mirrored_in == {"test_set": 1} and result.copies.matched == {"test_set": 1}
    result = assigned(images, evaluations=[evaluation], mirrored_duplicates="drop")
    assert result.left_out == dict.fromkeys([0, 2], "in_evaluation:test_set")
    assert result.copies.by_look == 1 and result.copies.matched == {"test_set": 2}
    assert result.copies.mirrored_in == {}


def random_hashes(count, seed=0):
    return np.random.default_rng(seed).integers(0, 2**64, count, np.uint64)


def flipped(hashes, bits, seed=1):
    """The hashes with `bits` random bits flipped in each."""
    rng = np.random.default_rng(seed)
    chosen = [rng.choice(64, bits, replace=False) for _ in hashes]
    masks = [sum(1 << int(bit) for bit in bits_of_one) for bits_of_one in chosen]
    return hashes ^ np.array(masks, np.uint64)


@pytest.mark.parametrize("bits", range(1, duplicates.MOST_BITS + 1))
def test_equals_comparing_all_with_all(bits):
    some = random_hashes(60)
    hashes = np.unique(np.concatenate([some, *(flipped(some, k, seed=k) for k in range(1, 11))]))
    near = duplicates.near_pairs(hashes, bits)
    differing = np.bitwise_count(hashes[:, None] ^ hashes[None, :])
    first, second = np.nonzero(np.triu(differing <= bits, 1))
    assert len(first) > 60 * bits
    np.testing.assert_array_equal(near.first, first)
    np.testing.assert_array_equal(near.second, second)
    assert len(near.crowded) == 0


def test_planted_pairs_among_many():
    hashes = random_hashes(100_000)
    planted = flipped(hashes[:500], 4)
    values = np.sort(np.concatenate([hashes, planted]))
    near = duplicates.near_pairs(values, 4)
    pairs = set(zip(values[near.first].tolist(), values[near.second].tolist(), strict=True))
    both = np.sort(np.stack([hashes[:500], planted]), axis=0)
    assert set(map(tuple, both.T.tolist())) <= pairs and len(pairs) < 510


def test_crowds_are_bounded_and_reported():
    """Thousands of hashes that agree in 32 bits would all be compared with each other."""
    hashes = np.unique(random_hashes(3000) & np.uint64(0xFFF))
    near = duplicates.near_pairs(hashes, 2)
    assert len(near.crowded) > 1000
    differing = np.bitwise_count(hashes[near.first] ^ hashes[near.second])
    assert len(differing) and differing.max() <= 2


NO_TELL = lambda done, of: None


def test_mirrored_pairs_equal_comparing_all_with_all():
    some = random_hashes(40)
    looks = np.unique(np.concatenate([some, *(flipped(some, k, seed=k) for k in range(1, 8))]))
    rng = np.random.default_rng(3)
    turned = flipped(looks[rng.permutation(len(looks))], 1, seed=4)
    turned[::7] = looks[rng.permutation(len(looks))[: len(turned[::7])]]  # exactly another's look
    turned[::11] = turned[0]  # several images with one mirrored look
    known = rng.random(len(looks)) < 0.9
    near_and_mirrored = duplicates.search(looks, turned, known, 3, NO_TELL)
    near = np.bitwise_count(looks[:, None] ^ looks) <= 3
    in_mirror = (np.bitwise_count(looks[:, None] ^ turned) <= 3) & known
    in_mirror = (in_mirror | in_mirror.T) & ~near
    for pairs, wanted in zip(near_and_mirrored, (near, in_mirror), strict=True):
        first, second = np.nonzero(np.triu(wanted, 1))
        assert len(first) > 100
        np.testing.assert_array_equal(pairs.first, first)
        np.testing.assert_array_equal(pairs.second, second)


def test_the_mirrored_look_is_that_of_the_mirrored_image():
    policy = faults.policy([], {})
    data = jpeg(3, (120, 90), quality=95)
    out = io.BytesIO()
    ImageOps.mirror(Image.open(io.BytesIO(data))).save(out, "PNG")
    one, other = (check(ImageRow(""), each, policy, 10**8)[0] for each in (data, out.getvalue()))
    assert (one.mirrored ^ other.look).bit_count() <= 4 >= (one.look ^ other.mirrored).bit_count()
    assert (one.look ^ other.look).bit_count() > 12


def test_images_near_a_left_out_one_stay():
    """1 is near 0, which is in the evaluation set; 1 itself is not near that set."""
    images = table(("a", A), ("b", A ^ 0b1111))
    evaluation = EvaluationSet("test_set", table(("x", A ^ 0b1111_0000)))
    result = assigned(images, evaluations=[evaluation], near_duplicates="drop")
    assert result.left_out == {0: "in_evaluation:test_set"}
