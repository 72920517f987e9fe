"""Start from trained parameters instead of random ones."""

from __future__ import annotations

import jax
from etils import epath

from vit_jax.core import pytrees
from vit_jax.core.errors import UserError
from vit_jax.state import TrainState
from vit_jax.store import step_folder

PARAMS, HEAD = "params/", "head/"


def warm_start(fresh: TrainState, weights: str, *, head: str) -> TrainState:
    """`fresh` with the parameters of a checkpoint of this project.

    Args:
      fresh: a state after 0 steps.
      weights: a work directory, its checkpoints folder or a step's folder.
      head: "keep" takes the head from the checkpoint too, "reset" leaves the fresh one.

    Raises:
      UserError: no such checkpoint, or one whose parameters have other names or shapes.
    """
    folder = step_folder.find(epath.Path(weights))
    own = pytrees.flatten(fresh.params)
    wanted = {
        n: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for n, x in own.items()
    }
    if head == "reset":  # read as it is there, and left out below
        there = step_folder.read_description(folder)["arrays"]
        wanted = {n: x for n, x in wanted.items() if not n.startswith(HEAD)}
        wanted |= {
            n.removeprefix(PARAMS): jax.ShapeDtypeStruct(x["shape"], x["dtype"])
            for n, x in there.items()
            if n.startswith(PARAMS + HEAD)
        }
    try:
        loaded = pytrees.flatten(step_folder.restore_params(folder, pytrees.unflatten(wanted)))
    except UserError as error:
        raise UserError(
            f"init.weights={weights} does not fit this model. {error} A head over other classes "
            "is left out by --config.init.head=reset."
        ) from error
    kept = {n: x for n, x in loaded.items() if head == "keep" or not n.startswith(HEAD)}
    return fresh._replace(params=pytrees.unflatten(own | kept))
