"""Windows of random_resized_crop, against those drawn by timm's own code."""

import numpy as np

from tests.data.ops.crops_test import (
    CASES,
    LARGEST_DISTANCE,
    NUM_WINDOWS,
    distance,
    drawn,
    features,
)


def test_windows_are_distributed_as_those_of_timm(theirs):
    inputs = {"cases": np.array(CASES), "number": NUM_WINDOWS}
    windows = theirs("pytorch-image-models", "timm_crop", lambda: inputs)["windows"]
    for (height, width, area_min), of_timm in zip(CASES, windows, strict=True):
        both = (drawn(height, width, area_min), of_timm.astype(int))
        for pair in zip(*(features(w, height, width).T.round(9) for w in both), strict=True):
            assert distance(*pair) < LARGEST_DISTANCE
