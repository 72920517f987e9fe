"""The part of the pipeline that is Python: slots of batches to arrays of encoded examples."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.core.waiting import waiting_for
from vit_jax.data.header import UNDECODABLE, Encoded, encoded
from vit_jax.data.source import NO_LABEL, Example, Source

READ_EXAMPLES = 128  # in one call of Python
_REMEDY = "Correct the data, or set input.label_weights=false: then every label weighs 1."

# Slots, int64 [n] -> their example indices, int64 [n], and seeds, int64 [n, 2].
Choose = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class Elements(NamedTuple):
    """n examples as arrays, which tf.data takes apart and decodes."""

    data: np.ndarray  # object [n] of bytes
    size: np.ndarray  # int32 [n, 2]: height, width
    orientation: np.ndarray  # int32 [n]
    labels: np.ndarray  # int32 [n, K], NO_LABEL behind the last one
    example: np.ndarray  # int64 [n]: index in the source
    seed: np.ndarray  # int64 [n, 2]
    # float32 [n, K], 0 behind the last one. () if the source is not weighted: even a constant array
    # would take time of every example.
    label_weights: np.ndarray | tuple[()] = ()


class Reader:
    """Reads the examples of a run of slots; a slot is a place in this host's batches, from 0 on."""

    def __init__(self, source: Source, choose: Choose, max_image_pixels: int) -> None:
        self.source = source
        self.max_image_pixels = max_image_pixels
        self.failure: Exception | None = None  # tf.data would turn it into a string
        self.faults: dict[int, str] = {}  # of the bad images that were met, by their examples
        self._choose = choose

    def read(self, first: int, stop: int) -> Elements:
        """Slots [first, stop). UserError if an example cannot be read or its labels are wrong."""
        try:
            return self._read(first, stop)
        except Exception as error:
            self.failure = self.failure or error
            raise

    def _read(self, first: int, stop: int) -> Elements:
        indices, seeds = self._choose(np.arange(first, stop))
        # Checks that the source does not make: it only knows its files.
        with waiting_for(lambda: f"{self.source.name}: {self._places(indices)}"):
            examples = self.source.read(indices)
        images = [self._encoded(example) for example in examples]
        numbered = list(zip(indices, examples, strict=True))
        data = np.empty(len(images), object)  # np.array(list of bytes) drops trailing zeros
        data[:] = [image.data for image in images]
        return Elements(
            data=data,
            size=np.array([image.size for image in images], np.int32),
            orientation=np.array([image.orientation for image in images], np.int32),
            labels=np.array([self._labels(*pair) for pair in numbered], np.int32),
            example=indices,
            seed=seeds,
            label_weights=(
                np.array([self._weights(*pair) for pair in numbered], np.float32)
                if self.source.weighted
                else ()
            ),
        )

    def _places(self, indices: np.ndarray) -> str:
        """The locations of the first few of the examples."""
        few = [self.source.describe(int(index)) for index in indices[:3]]
        return ", ".join(few) + (", ..." if len(indices) > len(few) else "")

    def _encoded(self, example: Example) -> Encoded:
        image = encoded(example, self.max_image_pixels)
        return UNDECODABLE if isinstance(image, str) else image

    def header_fault(self, index: int) -> str | None:
        """The reason why the image's header forbids decoding; None if it does not."""
        image = encoded(self.source.read(np.array([index]))[0], self.max_image_pixels)
        return image if isinstance(image, str) else None

    def _labels(self, index: int, example: Example) -> list[int]:
        """The example's labels, checked and padded to K."""
        labels, source = example.labels, self.source
        if len(labels) > source.max_labels:
            raise UserError(
                f"{source.describe(index)}: {len(labels)} labels; {source.name} says that an "
                f"example has at most {source.max_labels}."
            )
        for label in labels:
            if not 0 <= label < source.num_classes:
                raise UserError(
                    f"{source.describe(index)}: label {label} is outside [0, {source.num_classes}),"
                    " the classes of the data set. Correct the data or input.num_classes."
                )
        return [*labels, *[NO_LABEL] * (source.max_labels - len(labels))]

    def _weights(self, index: int, example: Example) -> list[float]:
        """The label weights, checked, padded to K; 1 for each label if the example has none."""
        labels, weights, source = example.labels, example.weights, self.source
        if len(weights) not in (0, len(labels)):
            raise UserError(
                f"{source.describe(index)}: {len(weights)} weights of {len(labels)} labels; give "
                f"one for each label, or none. {_REMEDY}"
            )
        for weight in weights:
            if not 0 <= weight <= 1:  # NaN is not either
                raise UserError(
                    f"{source.describe(index)}: a label's weight of {weight:g} is outside [0, 1]. "
                    f"{_REMEDY}"
                )
        weights = weights or (1.0,) * len(labels)
        return [*weights, *[0.0] * (source.max_labels - len(labels))]
