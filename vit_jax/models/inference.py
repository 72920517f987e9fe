"""How trained models compute images: how many at once, and in which dtype.

`vit-jax predict` and `vit-jax evaluate` ask here, so that both do the same.
"""

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils

from vit_jax import models
from vit_jax.core import axes
from vit_jax.core.errors import UserError, nearest
from vit_jax.models.layers.kernels import choice
from vit_jax.models.layers.linear import DTYPES

CPU_EXAMPLES = 8
AUTO = "auto"
DTYPE_HELP = (
    "Of the computation: float32, bfloat16, or auto, which times both on the first batch and takes "
    "the faster whose probabilities are those of float32 to 1e-2; default: as trained."
)
TOLERANCE = 1e-2  # of a probability: bfloat16 has 8 bits, and a ViT's logits sum many products
_TURNS, _ENOUGH_SECS = 3, 1.0  # of timing: batches of seconds are timed once


def examples_at_once() -> int | None:
    """How many examples a device computes at once; None: as many as it is given.

    On a CPU activations of a few stay in the caches: up to twice as fast as larger batches.
    """
    return CPU_EXAMPLES if axes.target().platform == "cpu" else None


def check_dtype(dtype: str | None) -> None:
    """UserError unless it is a value of --dtype; None: as trained."""
    if dtype is not None and dtype not in (*DTYPES, AUTO):
        raise UserError(f"--dtype={dtype}. {nearest(dtype, (*DTYPES, AUTO))}")


def graph_in(model: Any, dtype: str) -> nnx.GraphDef:
    """The graph that merges with the model's parameters to the one that computes in `dtype`."""
    changes = {"dtype": dtype, **choice.elsewhere(model.spec, dtype=dtype)}

    def make() -> Any:
        return models.build(
            dataclasses.replace(model.spec, **changes),
            num_classes=model.num_classes,
            image_size=model.preprocess.image_size,
            preprocess=model.preprocess,
            rngs=nnx.Rngs(0),
        )

    graph, _ = nnx.split(nnx.eval_shape(make), nnx.Param)
    return graph


def in_dtypes(model: Any, dtype: str | None) -> dict[str, Any]:
    """The model by the dtype that it computes in: as --dtype says, with "auto" in each of them.

    They share the arrays of their parameters.
    """
    if dtype is None:
        return {"as trained": model}
    params = nnx.state(model, nnx.Param)
    return {
        d: nnx.merge(graph_in(model, d), params) for d in (DTYPES if dtype == AUTO else [dtype])
    }


def fastest_dtype(probabilities: Mapping[str, Callable[[], jax.Array]], origin: str) -> str:
    """The dtype that computes the first batch fastest, within TOLERANCE of float32; stderr says it.

    All processes take what the first one measures.

    Args:
      probabilities: by dtype, a function that computes those of the batch, [B, C]. It is called
        once to compile it, then in turns.
      origin: the weights, for the line on stderr.
    """
    values = {dtype: np.asarray(compute()) for dtype, compute in probabilities.items()}
    secs = dict.fromkeys(probabilities, float("inf"))
    for turns in range(1, _TURNS + 1):
        for dtype, compute in probabilities.items():
            started = time.perf_counter()
            jax.block_until_ready(compute())
            secs[dtype] = min(secs[dtype], time.perf_counter() - started)
        if _broadcast_from_first(turns * sum(secs.values()) > _ENOUGH_SECS):
            break
    differences = {d: float(np.abs(x - values["float32"]).max()) for d, x in values.items()}
    close = [dtype for dtype, difference in differences.items() if difference <= TOLERANCE]
    chosen = min([*close, "float32"], key=secs.__getitem__)  # float32 that is not finite: itself
    chosen = DTYPES[_broadcast_from_first(DTYPES.index(chosen))]
    if jax.process_index() == 0:
        times = ", ".join(f"{dtype} {1000 * s:,.1f} ms" for dtype, s in secs.items())
        others = " and ".join(
            f"those of {dtype} differ by {difference:.1e}"
            + (f", more than {TOLERANCE:g}" if dtype not in close else "")
            for dtype, difference in differences.items()
            if dtype != "float32"
        )
        print(
            f"--dtype=auto: {origin} computes in {chosen}; {len(values['float32'])} images took "
            f"{times}; probabilities: {others}.",
            file=sys.stderr,
        )
    return chosen


def _broadcast_from_first(number: int) -> int:
    """The number that the first process has, in all of them."""
    return int(multihost_utils.broadcast_one_to_all(np.int32(number)))
