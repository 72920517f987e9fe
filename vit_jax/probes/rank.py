"""RankMe (arXiv 2210.02885): how many dimensions features use, as the exponential of an entropy."""

import numpy as np
import scipy.linalg

EPSILON = 1e-7  # the paper's
MOST_EXAMPLES = 25_600  # that the paper uses


def rank_me(features: np.ndarray) -> float:
    """The effective rank of features [N, D], between 1 and min(N, D); of the first MOST_EXAMPLES.

    exp(-sum p ln p) with p = s / sum(s) + epsilon of the singular values s (equation 1).
    """
    matrix = np.asarray(features[:MOST_EXAMPLES], np.float64)
    values = scipy.linalg.svdvals(matrix, overwrite_a=True)
    shares = values / max(values.sum(), np.finfo(np.float64).tiny) + EPSILON
    return float(np.exp(-np.sum(shares * np.log(shares))))
