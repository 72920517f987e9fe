"""Goldens with name, shape and sharding of every parameter, to be read when they change.

After an intended change: pytest tests/models/golden_test.py --regenerate_goldens
"""

from pathlib import Path

import jax
import optax
import pytest

from vit_jax import models
from vit_jax.core import pytrees
from vit_jax.learning.state import state_layout
from vit_jax.parallel.mesh import AXES

FOLDER = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", ["ViT-B/16", "ViT-H/14"])
def test_parameters_are_those_of_the_golden(name, request):
    def make(rngs):
        return models.create(name, num_classes=1000, image_size=224, pre_logits=True, rngs=rngs)

    types = (jax.sharding.AxisType.Auto,) * len(AXES)
    mesh = jax.sharding.AbstractMesh((1, 2, 2, 2), AXES, axis_types=types)
    layout = state_layout(make, optax.identity(), mesh, ema_decay=None, shard_optimizer=False)
    rows = [
        f"{path:42} {x.shape!s:28} {tuple(x.sharding.spec)}\n"
        for path, x in pytrees.flatten(layout.state.params).items()
    ]
    file = FOLDER / f"{name.replace('/', '_')}.txt"
    if request.config.getoption("regenerate_goldens"):
        file.write_text("".join(rows))
    assert file.read_text() == "".join(rows)
