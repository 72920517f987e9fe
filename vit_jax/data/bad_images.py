"""Bad images in the pipeline: a second attempt confirms that they are bad, and explains why."""

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.data.header import Encoded
from vit_jax.data.host_tf import tf
from vit_jax.data.ops.table import Preprocess
from vit_jax.data.reader import READ_EXAMPLES, Elements, Reader


def pixels_of(e: Elements, reader: Reader, preprocess: Preprocess) -> tf.Tensor:
    """The image of one example, uint8 [H, W, 3]."""
    return preprocess(
        Encoded(e.data, tf.convert_to_tensor(e.size), e.orientation),
        tf.convert_to_tensor(e.seed),
        max_image_pixels=reader.max_image_pixels,
    )


def _fault(e: Elements, reader: Reader, preprocess: Preprocess) -> str | None:
    """The fault of an example's image, found by a second attempt; None if it has none."""
    try:
        pixels_of(e, reader, preprocess)
    except tf.errors.ResourceExhaustedError:
        raise
    except tf.errors.OpError as error:
        return reader.header_fault(int(e.example)) or _sentence(error)
    return None


def zero_if_bad(e: Elements, reader: Reader, preprocess: Preprocess) -> np.float32:
    """The weight of a bad image, whose fault is noted; MemoryError if the image is good."""
    index = int(e.example)
    try:
        fault = _fault(e, reader, preprocess)
        if fault is None:
            raise MemoryError(
                f"{reader.source.describe(index)} failed once, but is a good image: "
                "memory ran short. Fewer input.threads need less of it."
            )
        reader.faults.setdefault(index, fault)  # the image comes again in each epoch
    except Exception as error:
        reader.failure = reader.failure or error
        raise
    return np.float32(0)


def first_bad_image(
    reader: Reader, preprocess: Preprocess, first: int, stop: int
) -> UserError | None:
    """The first of the slots [first, stop) whose image fails in a second attempt, as an error."""
    for start in range(first, stop, READ_EXAMPLES):
        elements = reader.read(start, min(start + READ_EXAMPLES, stop))
        for arrays in zip(*tf.nest.flatten(elements), strict=True):
            e = Elements(*arrays)
            fault = _fault(e, reader, preprocess)
            if fault is not None:
                return UserError(
                    f"{reader.source.describe(int(e.example))} is a bad image: {fault}. Replace "
                    'it, or set input.on_bad_image="skip" to give such images weight 0.'
                )
    return None


def _sentence(error: tf.errors.OpError) -> str:
    """The first line, without the names that TensorFlow puts around it."""
    return error.message.split("}}")[-1].split("[Op:")[0].split("\n")[0].strip(" .")
