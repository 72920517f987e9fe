"""Streams of training examples, slots of batches, and subsets, as functions without memory.

Any position costs the same, and no host needs to know what another one reads.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.data.source import SelectedSource, Source

# Permutations this small are sorted: a Feistel network on so few bits is uneven. In
# 20,000 epochs, chi-squared of the places is 27 a degree of freedom for 5 examples, 1.8 for 9, 1.4
# for 21; sorted it is about 1.
_SORTED = 32
_ROUNDS = 6  # of the Feistel network


def keys(seed: np.ndarray | int, *numbers: np.ndarray | int) -> np.ndarray:
    """Keys of permutations, a different one for each seed and each tuple of numbers, int64 [n]."""
    key = _mix(seed)
    for number in numbers:
        key = _mix(key ^ np.asarray(number).astype(np.uint64))
    return key


def permute(places: np.ndarray, *, num_examples: int | np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The image of each place under its key's pseudo-random permutation of [0, num_examples).

    int64 [n], sizes below 2^53 that may be int64 [n] as well, uint64 [n] -> int64 [n].
    """
    sizes = np.broadcast_to(num_examples, places.shape)
    few = sizes <= _SORTED
    if few.all():
        return _sorted(places, sizes, keys)
    result = np.empty(places.shape, np.int64)
    result[few] = _sorted(places[few], sizes[few], keys[few])
    result[~few] = _walked(places[~few], sizes[~few], keys[~few])
    return result


def _sorted(places: np.ndarray, sizes: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The number at each place when [0, size) is sorted by a random number for each."""
    numbers = np.arange(sizes.max(initial=1))
    drawn = _mix(keys[:, None] ^ _mix(numbers))
    # Places outside come last; the numbers of the others differ, since _mix is one to one.
    drawn[numbers >= sizes[:, None]] = np.iinfo(np.uint64).max
    order = np.argsort(drawn, axis=1, kind="stable")
    return np.take_along_axis(order, places[:, None], axis=1)[:, 0]


def _walked(places: np.ndarray, sizes: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Permutes by a Feistel network, which takes no memory for the other places.

    A number that comes out too large goes in again (cycle walking: Black and Rogaway, 2002).
    """
    bits = np.frexp(sizes - 1.0)[1].astype(np.uint64)
    result = _feistel(places.astype(np.uint64), keys, bits)
    while (outside := result >= sizes).any():
        result[outside] = _feistel(result[outside], keys[outside], bits[outside])
    return result.astype(np.int64)


def _feistel(x: np.ndarray, keys: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """An unbalanced Feistel network on numbers of `bits` bits: uint64 [n], all three."""
    low_bits = bits // np.uint64(2)
    high_bits = bits - low_bits
    for round_number in range(_ROUNDS):
        low = x & ((np.uint64(1) << low_bits) - np.uint64(1))
        high = x >> low_bits
        masked = _mix(keys + np.uint64(round_number) ^ _mix(low)) >> (np.uint64(64) - high_bits)
        # The halves change places, and with them their widths.
        x = (low << high_bits) | (high ^ masked)
        low_bits, high_bits = high_bits, low_bits
    return x


def _mix(x: np.ndarray | int) -> np.ndarray:
    """Scatters 64 bits over 64 bits, one to one: SplitMix64's finaliser (Steele et al., 2014)."""
    z = np.asarray(x).astype(np.uint64)
    with np.errstate(over="ignore"):
        z = z + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


# Positions of the stream, int64 [n] -> (rounds, example indices), int64 [n] each. The same example
# has other random numbers in another round: its epoch, or one of its copies there.
Stream = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

# Slots of a host's batches, int64 [n] -> their example indices, int64 [n], and seeds, int64 [n, 2].
Choose = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def shuffled(num_examples: int, *, seed: int, repeats: int = 1) -> Stream:
    """Streams every example once an epoch, in a new order each epoch; or `repeats` copies of some.

    With repeats, an epoch of n positions has the first n / `repeats` examples of its order, each as
    often: repeated augmentation (Hoffer et al., arXiv 1901.09335) as DeiT counts its epochs. All
    copies are within 2 `repeats` positions (3 at the end of an epoch).
    """

    def stream(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        epochs, places = np.divmod(positions, num_examples)
        places, copies = _taking_turns(places, -(-num_examples // repeats), repeats)
        indices = permute(places, num_examples=num_examples, keys=keys(seed, epochs))
        return epochs * repeats + copies, indices

    return stream


def _taking_turns(
    places: np.ndarray, num_images: int, repeats: int
) -> tuple[np.ndarray, np.ndarray]:
    """Places of an epoch -> (which of its images, which copy), int64 [n] each: a b a b a b c d ...

    Two by two, the last of an odd number three together: copies that were neighbours would be
    mixed with each other by mixup.
    """
    pairs = np.minimum(places // (2 * repeats), max(num_images // 2 - 1, 0))
    together = np.where(num_images - 2 * pairs < 4, num_images - 2 * pairs, 2)
    copies, pair_place = np.divmod(places - pairs * 2 * repeats, together)
    return 2 * pairs + pair_place, copies


def train_slots(stream: Stream, rows: np.ndarray, batch_size: int, seed: int) -> Choose:
    """Chooses the example and the seed of each slot of a host that makes `rows` of a batch."""

    def choose(slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        steps, places = np.divmod(slots, len(rows))
        rounds, indices = stream(steps * batch_size + rows[places])
        return indices, _seeds(seed, rounds, indices)

    return choose


def eval_slots(rows: np.ndarray, batch_size: int) -> Choose:
    """Like `train_slots`, for batches that hold the examples in order."""
    in_order: Stream = lambda positions: (np.zeros_like(positions), positions)
    return train_slots(in_order, rows, batch_size, seed=0)


def eval_counts(num_examples: int, rows: np.ndarray, batch_size: int) -> tuple[int, int]:
    """(slots with an example of the host that makes `rows`, batches of every host)."""
    num_full, num_last = divmod(num_examples, batch_size)
    return num_full * len(rows) + int(np.sum(rows < num_last)), num_full + (num_last > 0)


def _seeds(seed: int, rounds: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """A seed for each example of each round, int64 [n, 2]; leaves room for the positions of ops."""
    return np.stack([seed * 2**32 + rounds, indices * 2**8], axis=1)


# Subsets are the first n examples of an order that never changes: a pseudo-random permutation of
# the split, the same for every run and every seed, so that 1 % of the examples is a part of 10 % of
# them, on every machine. This is its key; all published subsets depend on it.
_SUBSET_KEY = np.uint64(0x5B5E7)


def subset_size(num_examples: int, *, fraction: float | None, examples: int | None) -> int | None:
    """The number of `num_examples` that a subset has; None if no subset is requested."""
    if fraction is not None:
        field, number = f"input.subset_fraction={fraction}", round(fraction * num_examples)
    elif examples is not None:
        field, number = f"input.subset_examples={examples:,}", examples
    else:
        return None
    if not 1 <= number <= num_examples:
        rule = f"means {number:,} examples, not 1 to the {num_examples:,} of input.split."
        raise UserError(rule, field=field)
    return number


def first_examples(source: Source, num_examples: int) -> SelectedSource:
    """The first `num_examples` of `source` in the fixed order."""
    return SelectedSource(
        source,
        num_examples,
        lambda indices: in_fixed_order(indices, source.num_examples),
        rule=f"subset of {num_examples}",
    )


def in_fixed_order(places: np.ndarray, num_examples: int) -> np.ndarray:
    """The example at each place of the fixed order: int64 [n] -> int64 [n]."""
    return permute(places, num_examples=num_examples, keys=np.full(places.shape, _SUBSET_KEY))
