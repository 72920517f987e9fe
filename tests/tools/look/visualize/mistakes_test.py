"""Pictures of mistakes."""

import numpy as np
import pytest

from tests.draw.drawn import LONG, check, heat, photos
from vit_jax.tools.look.visualize.mistakes import draw_mistakes


@pytest.mark.parametrize("number", [1, 7])
def test_mistakes(number):
    probabilities = np.tile([0.001, 0.98], (number, 1))
    names = [LONG] * number, ["seen"] * number
    check(
        lambda: draw_mistakes(photos(number), heat(number), *names, probabilities, what="rollout"),
        "is Hungarian pointer",
        "probability of each class",
        "rollout",
    )
