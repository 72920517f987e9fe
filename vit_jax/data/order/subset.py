"""Nested parts of a data set: the first n examples of an order that never changes.

That order is a pseudo-random permutation of the split, the same for every run and every seed, so
that 1 % of the examples is a part of 10 % of them, on every machine. It is a function and takes no
memory, however many examples there are.
"""

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.data.order.label_index import Labels, by_class
from vit_jax.data.order.streams import permute
from vit_jax.data.source import SelectedSource, Source, listed

_KEY = np.uint64(0x5B5E7)  # of the one permutation; all published subsets depend on it


def size(num_examples: int, *, fraction: float | None, examples: int | None) -> int | None:
    """The number of `num_examples` that a subset has; None if no subset is requested.

    UserError that names the field if that is 0 or more than `num_examples`.
    """
    if fraction is not None:
        field, number = f"input.subset_fraction={fraction}", round(fraction * num_examples)
    elif examples is not None:
        field, number = f"input.subset_examples={examples:,}", examples
    else:
        return None
    if not 1 <= number <= num_examples:
        raise UserError(
            f"{field} means {number:,} of the {num_examples:,} examples of input.split; give at "
            "least 1 of them and at most all."
        )
    return number


def first(source: Source, num_examples: int) -> SelectedSource:
    """The first `num_examples` of `source` in the fixed order."""
    return SelectedSource(
        source,
        num_examples,
        lambda indices: _in_fixed_order(indices, source.num_examples),
        rule=f"subset of {num_examples}",
    )


def of_each_class(source: Source, number: int, labels: Labels) -> SelectedSource:
    """The first `number` examples of each class in a fixed order; all, where it has fewer.

    An example with several labels counts for each of its classes and is there once, so a class
    may have more than `number`. Nested like the others. `labels` belong to `source`.
    """
    classes, examples = by_class(labels, source.num_classes, describe=source.describe)
    sizes = np.diff(classes)
    of = np.repeat(np.arange(source.num_classes), sizes)
    order = np.lexsort((_in_fixed_order(examples.astype(np.int64), source.num_examples), of))
    rank = np.arange(len(examples)) - np.repeat(classes[:-1], sizes)
    indices = np.unique(examples[order[rank < number]]).astype(np.int64)
    return listed(source, indices)


def _in_fixed_order(places: np.ndarray, num_examples: int) -> np.ndarray:
    """The example at each place of the fixed order: int64 [n] -> int64 [n]."""
    return permute(places, num_examples=num_examples, keys=np.full(places.shape, _KEY))
