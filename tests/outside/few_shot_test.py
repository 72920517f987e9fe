"""Few-shot accuracies against those of big_vision's evaluator on the same features."""

import numpy as np

from tests.probes.few_shot_test import examples
from vit_jax.probes import few_shot

CLASSES, SHOTS, SEEDS, L2 = 10, (1, 5, 25), 3, (1.0, 1024.0)
EXAMPLES = 2000  # of the test


def features():
    """More examples than dimensions for 25 shots, fewer for 1 and 5."""
    train = examples(40, dim=96, classes=CLASSES, noise=4.0)
    return train, examples(EXAMPLES // CLASSES, dim=96, classes=CLASSES, noise=4.0, seed=1)


def test_accuracies_are_those_of_big_vision(theirs):
    train, test = features()
    inputs = {
        "train_x": train[0], "train_y": train[1], "test_x": test[0],
        "test_y": test[1], "num_classes": CLASSES, "shots": SHOTS, "seeds": SEEDS, "l2": L2,
    }  # fmt: skip
    expected = theirs("big_vision", "big_vision_few_shot", lambda: inputs)["accuracies"]
    ours = [
        [
            [
                few_shot.evaluate(
                    train, test, num_classes=CLASSES, shots=shots, seed=seed, fixed_l2=l2
                ).fixed
                for shots in SHOTS
            ]
            for seed in range(SEEDS)
        ]
        for l2 in L2
    ]
    assert np.ptp(expected) > 0.2
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-6)
