from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import pytest

from tests.workdirs import make_workdir
from vit_jax.store.checkpoints import Checkpoints

__all__ = ["make_workdir"]

REPOSITORY = Path(__file__).parents[2]


RULES = {"keep_last": 4, "keep_every_steps": None, "best_metric": None, "best_mode": "max"}


class TrainState(NamedTuple):
    step: jax.Array
    params: dict[str, Any]
    opt_state: Any
    ema: dict[str, Any]
    first_bad_step: jax.Array
    first_bad_values: jax.Array


@pytest.fixture(scope="session")
def make_state():
    """`make_state(step)`: a small state with arrays depending on step, layers with integer keys."""

    def make(step, width=8):
        keys = jax.random.split(jax.random.key(step), 12)
        layers = {i: {"kernel": jax.random.normal(keys[i], (width, 4))} for i in range(12)}
        head = {"bias": jnp.arange(3, dtype=jnp.bfloat16) + step}
        params = {"blocks": layers, "head": head}
        optimizer = optax.chain(
            optax.clip_by_global_norm(1.0), optax.adam(1e-3, mu_dtype=jnp.bfloat16)
        )
        opt_state = jax.tree.map(lambda x: x + jnp.asarray(step, x.dtype), optimizer.init(params))
        return TrainState(
            jnp.int32(step), params, opt_state, {}, jnp.int32(-1), jnp.zeros((2,), jnp.float32)
        )

    return make


@pytest.fixture
def layout_of():
    """The abstract state passed to a restore: shapes, types and shardings."""
    return lambda state: jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )


@pytest.fixture
def open_checkpoints(tmp_path):
    """`open_checkpoints(keep_last=...)` on the same work directory each time; closed at the end."""
    opened = []

    def open_(**changes):
        opened.append(Checkpoints(tmp_path / "run" / "checkpoints", **(RULES | changes)))
        return opened[-1]

    yield open_
    for checkpoints in opened:
        checkpoints.close()
