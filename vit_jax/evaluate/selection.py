"""The choice of images for pseudo-labels: filtered by confidence, balanced by class."""

import numpy as np


def choose(
    classes: np.ndarray,
    confidence: np.ndarray,
    *,
    at_least: float,
    per_class: int | None,
    num_classes: int,
) -> np.ndarray:
    """How often each image is to be trained on, int32 [N]; 0: not at all.

    Images below the confidence are left out. With `per_class` each class then has the most
    confident of its images, so many; where it has fewer, these are duplicated, all equally often
    but for the most confident, which are there once more. A class without images stays without.
    Images of equal confidence are taken in their order.

    Noisy Student (arXiv 1911.04252), which duplicates images at random.

    Args:
      classes: int [N], the most probable class of each image.
      confidence: float32 [N], its probability.
    """
    copies = np.zeros(len(classes), np.int32)
    sure = np.flatnonzero(confidence >= at_least)
    if per_class is None:
        copies[sure] = 1
        return copies
    order = sure[np.lexsort((sure, -confidence[sure], classes[sure]))]
    of = classes[order]
    sizes = np.bincount(of, minlength=num_classes)
    rank = np.arange(len(order)) - (np.cumsum(sizes) - sizes)[of]
    copies[order] = per_class // sizes[of] + (rank < per_class % sizes[of])
    return copies
