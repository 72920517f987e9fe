"""Every fault of a split's examples, found by reading and decoding all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.data.pipeline import eval_batches
from vit_jax.data.reader import READ_EXAMPLES, Reader
from vit_jax.data.source import Source, select_examples
from vit_jax.data.streams import eval_slots

_BATCH = READ_EXAMPLES  # so that a failing read belongs to the failing batch


class Fault(NamedTuple):
    """A fault of an example.

    Attributes:
      skippable: whether a run may go on without it: a bad image, but no damaged record or label.
    """

    text: str
    skippable: bool


def bad_images(
    source: Source,
    preprocess: str,
    indices: np.ndarray,
    *,
    max_image_pixels: int,
    threads: int,
    progress: Callable[[int, int], None],
) -> Iterator[Fault]:
    """Finds the bad images among the examples at `indices` (int64 [n]): file and fault of each.

    Every file is read and its image decoded as a whole, in `threads` threads (0: one a core). A
    record that cannot be read, or whose labels are wrong, is reported likewise.
    """
    done = 0
    while done < len(indices):
        batches = eval_batches(
            select_examples(source, indices[done:]),
            preprocess,
            batch_size=_BATCH,
            on_bad_image="skip",
            max_image_pixels=max_image_pixels,
            threads=threads,
            whole_images=True,
        )
        try:
            with batches:
                for batch in batches:
                    bad = (batch["weight"] == 0) & (batch["index"] >= 0)
                    for index in batch["index"][bad].tolist():
                        yield Fault(batches.bad_image(index), skippable=True)
                    done = min(done + _BATCH, len(indices))
                    progress(done, len(indices))
        except UserError:
            # A batch that could not be read: find the faulty records, and check the others.
            stop = min(done + _BATCH, len(indices))
            readable = []
            for index in indices[done:stop].tolist():
                try:
                    Reader(source, eval_slots(np.array([index]), 1), max_image_pixels).read(0, 1)
                except UserError as error:
                    yield Fault(str(error), skippable=False)
                else:
                    readable.append(index)
            if len(readable) == stop - done:
                raise  # it was not a record that failed
            yield from bad_images(
                source,
                preprocess,
                np.array(readable, np.int64),
                max_image_pixels=max_image_pixels,
                threads=threads,
                progress=lambda *_: None,
            )
            done = stop
            progress(done, len(indices))
