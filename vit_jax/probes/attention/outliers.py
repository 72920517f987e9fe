"""Tokens of high norm: where a ViT keeps what is not local (arXiv 2309.16588, section 2)."""

import numpy as np

# The paper's cutoff is read off each model's histogram: 150 for DINOv2 g, where most norms lie
# around 50.
RATIO_TO_MEDIAN = 3.0


def outliers(patch_norms: np.ndarray, ratio: float = RATIO_TO_MEDIAN) -> np.ndarray:
    """Norms of patch tokens at one layer, any shape -> bool of that shape: the outliers.

    An outlier's norm is above `ratio` times the median of all that are given: of the patches of
    several images, at best. Class token and registers do not belong to them.
    """
    return patch_norms > ratio * np.median(patch_norms)
