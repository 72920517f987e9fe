"""Streams of training examples: the example at each position, as functions without state.

Any position costs the same, so training starts as fast at step 1,000,000 as at step 0, and no host
needs to know what another one reads.
"""

from collections.abc import Callable, Mapping

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.data.order.label_index import ByClass
from vit_jax.data.order.permutation import keys, permute

# Positions of the stream, int64 [n] -> (rounds, example indices), int64 [n] each. The same example
# has other random numbers in another round: its epoch, or one of its copies there.
Stream = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

_BLOCK = 1000  # positions of a block of a mixture, at most
_BLOCK_KEY = 2**32  # distinguishes the orders of blocks from the components', which count from 0


def shuffled(num_examples: int, *, seed: int, repeats: int = 1) -> Stream:
    """Streams every example once an epoch, in a new order each epoch; or `repeats` copies of some.

    Position p is in epoch p // n; a seeded permutation of the n examples gives the example.
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
    copies, of_pair = np.divmod(places - pairs * 2 * repeats, together)
    return 2 * pairs + of_pair, copies


def balanced(by_class: ByClass, *, seed: int) -> Stream:
    """Streams all classes equally often, whatever their sizes. UserError without any label.

    With C classes that have examples, every block of C positions holds each of them once, in a
    seeded order. The k-th visit of a class takes the k-th example of an endless stream over that
    class, which goes through its examples epoch by epoch, each in a seeded order. An example with
    several labels is visited for each of them, one without labels never.
    """
    sizes = np.diff(by_class.offsets)
    classes = np.flatnonzero(sizes)
    if not len(classes):
        raise UserError('input.balance="class": no example has a label. Set input.balance=none.')

    def stream(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        blocks, places = np.divmod(positions, len(classes))
        order = permute(places, num_examples=len(classes), keys=keys(seed, blocks))
        visited = classes[order]
        epochs, places = np.divmod(blocks, sizes[visited])
        of_class = keys(seed, epochs, visited)
        members = permute(places, num_examples=sizes[visited], keys=of_class)
        examples = by_class.examples[by_class.offsets[visited] + members].astype(np.int64)
        return blocks, examples  # an example in several classes is another one at each visit

    return stream


def mixed(sizes: np.ndarray, quota_by_name: Mapping[str, int], *, seed: int) -> Stream:
    """Blocks in which each component of a mixture has its quota of positions.

    `sizes`: examples of each component, int64 [n], by the order of names.

    Proportions are exact over every block. Which positions a component has is a seeded order of the
    block; each component has epochs and orders of its own.
    """
    of_block = np.array([quota_by_name[name] for name in sorted(quota_by_name)], np.int64)
    ends = np.cumsum(of_block)
    firsts = np.cumsum(sizes) - sizes

    def stream(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        blocks, places = np.divmod(positions, ends[-1])
        order = keys(seed, blocks, _BLOCK_KEY)
        places = permute(places, num_examples=int(ends[-1]), keys=order)
        parts = np.searchsorted(ends, places, side="right")
        own_positions = blocks * of_block[parts] + places - (ends - of_block)[parts]
        epochs, places = np.divmod(own_positions, sizes[parts])
        own_order = keys(seed, epochs, parts)
        indices = permute(places, num_examples=sizes[parts], keys=own_order)
        return epochs, firsts[parts] + indices

    return stream


def quotas(weights: Mapping[str, float]) -> dict[str, int]:
    """Positions of each component in a block of a mixture, from the components' weights.

    Exact for whole numbers that sum to 1,000 or less; others are rounded to thousandths, so that
    they sum to a block (largest remainders). UserError if nothing is left of a component.
    """
    total = sum(weights.values())
    if total <= _BLOCK and all(float(weight).is_integer() for weight in weights.values()):
        result = {name: int(weight) for name, weight in weights.items()}
    else:
        exact = {name: weight / total * _BLOCK for name, weight in weights.items()}
        result = {name: int(quota) for name, quota in exact.items()}
        by_remainder = sorted(weights, key=lambda name: (result[name] - exact[name], name))
        for name in by_remainder[: _BLOCK - sum(result.values())]:
            result[name] += 1
    for name, quota in result.items():
        if not quota:
            raise UserError(
                f"input.mixture.{name}.weight={weights[name]:g} of {total:g} in all is less than "
                "one in 1,000 positions. Raise it, or remove the component by "
                f"input.mixture.{name}=none."
            )
    return result
