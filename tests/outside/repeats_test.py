"""Repeated augmentation: epochs with input.repeats=3, against those of DeiT's own sampler."""

import numpy as np

from vit_jax.data.streams import shuffled

# A multiple of 256, to which DeiT truncates an epoch.
EXAMPLES, EPOCHS, PROCESSES = 5120, 3, 8
# Overlap of two epochs with a third of the images each, in its standard deviations.
LARGEST_DEVIATION = 4.0


def test_epochs_are_made_as_those_of_deit(theirs):
    inputs = {"examples": EXAMPLES, "epochs": EPOCHS, "processes": PROCESSES}
    expected = theirs("deit", "deit_repeats", lambda: inputs)["epochs"]
    positions = np.arange(EXAMPLES * EPOCHS)
    _, indices = shuffled(EXAMPLES, seed=0, repeats=3)(positions)
    actual = indices.reshape(EPOCHS, EXAMPLES)
    assert actual.shape == expected.shape
    for ours, of_deit in zip(actual, expected, strict=True):
        copies = [np.bincount(np.bincount(epoch, minlength=EXAMPLES)) for epoch in (ours, of_deit)]
        np.testing.assert_array_equal(*copies)
        # All copies of an image lie within a batch of two per process.
        for epoch in (ours, of_deit):
            by_image = np.argsort(epoch, kind="stable")
            is_same = epoch[by_image][1:] == epoch[by_image][:-1]
            assert np.diff(by_image)[is_same].max() < 2 * PROCESSES
    for epochs in (actual, expected):
        first, second = (np.unique(epoch) for epoch in epochs[:2])
        shared, mean = len(np.intersect1d(first, second)), EXAMPLES / 9
        assert abs(shared - mean) < LARGEST_DEVIATION * (mean * 4 / 9) ** 0.5  # hypergeometric
