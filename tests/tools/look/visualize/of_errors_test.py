"""Pictures of mistakes."""

import numpy as np
import pytest

from tests.draw.drawn import LONG, check, heat, photos
from vit_jax.tools.look.visualize.of_errors import draw_mistakes


@pytest.mark.parametrize(("number", "seen"), [(1, True), (7, True), (2, False)])
def test_mistakes(number, seen):
    probabilities = np.tile([0.001, 0.98], (number, 1))
    maps = heat(number) if seen else None
    check(
        lambda: draw_mistakes(
            photos(number), maps, [LONG] * number, ["seen"] * number, probabilities
        ),
        "is Hungarian pointer",
        "probability of each class",
        *(["rollout"] if seen else []),
    )
