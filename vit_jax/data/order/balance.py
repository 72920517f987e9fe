"""A stream in which all classes are equally frequent, whatever their sizes.

With C classes that have examples, every block of C positions holds each of them once, in a seeded
order. The k-th visit of a class takes the k-th example of an endless stream over that class, which
goes through its examples epoch by epoch, each in a seeded order. An example with several labels is
visited for each of them, one without labels never.
"""

from __future__ import annotations

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.data.order import Stream, keys, permute
from vit_jax.data.order.label_index import ByClass


def balanced(by_class: ByClass, *, seed: int) -> Stream:
    """The stream; positions cost the same wherever they are. UserError without any label."""
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
