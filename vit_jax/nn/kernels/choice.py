"""Which program computes attention: by the field `attention`, the devices, and what each serves.

Configs are read without JAX: it is imported with what computes.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from vit_jax.core.errors import UserError

if TYPE_CHECKING:
    import jax
    import numpy as np

    from vit_jax.core.axes import Target

AUTO = "auto"
XLA, FUSED = "xla", "fused"
CHOICES = (AUTO, XLA, FUSED)

# From this number of tokens on XLA's program runs in blocks of queries: the memory of a whole one
# grows with N x N.
LONG = 1024

_PORTABLE = contextvars.ContextVar("portable", default=False)


class Attention(NamedTuple):
    """An attention to be computed: head size, dtypes, and whether logits have a bias."""

    head_size: int
    dtype: str
    softmax_dtype: str
    biased: bool


class Kernel(NamedTuple):
    """A program besides XLA's.

    Attributes:
      where: its devices, for messages.
      runs_on: whether it runs there.
      refuses: why it does not serve an attention, with the cure; None if it does.
    """

    where: str
    runs_on: Callable[[Target], bool]
    refuses: Callable[[Attention], str | None]


def _refuses_any(a: Attention) -> str | None:
    """What no kernel serves."""
    if a.biased:
        return (
            "model.position_embedding=relative adds a matrix of N x N to the logits: set "
            "model.attention=xla"
        )
    if a.softmax_dtype != "float32":
        return (
            f"its softmax computes in float32, not in model.softmax_dtype={a.softmax_dtype}: leave "
            "that out, or set model.attention=xla"
        )
    return None


_is_tpu = lambda target: target.platform == "tpu"
KERNELS: dict[str, Kernel] = {
    FUSED: Kernel("a TPU", _is_tpu, _refuses_any),
}


def check(asked: str, attention: Attention) -> None:
    """Raises UserError if the kernel that was asked for does not serve this, on any device."""
    reason = KERNELS[asked].refuses(attention) if asked in KERNELS else None
    if reason is not None:
        raise UserError(f"model.attention={asked} is not for this model: {reason}.")


def choose(asked: str, query: jax.Array, softmax_dtype: np.dtype, *, biased: bool) -> str:
    """The program, XLA or one of KERNELS, for queries [B, N, H, K] on the devices traced for.

    Raises UserError if another than AUTO was asked for and is not for these devices or this model.
    """
    from vit_jax.core import axes

    attention = Attention(query.shape[-1], query.dtype.name, softmax_dtype.name, biased)
    target = axes.target()
    if _PORTABLE.get():
        return XLA
    if asked == AUTO:
        return _best(attention, target) if axes.can_divide() else XLA
    if asked in KERNELS and not KERNELS[asked].runs_on(target):
        raise UserError(
            f"model.attention={asked} runs on {KERNELS[asked].where}, not on {target.kind}: set "
            "model.attention=auto, which takes what the devices have."
        )
    check(asked, attention)
    return asked


def _best(attention: Attention, target: Target) -> str:
    """The choice of AUTO, from benchmarks/results/attention.csv."""
    if attention.dtype != "bfloat16":
        return XLA
    for kernel in (FUSED,):
        own = KERNELS[kernel]
        if own.runs_on(target) and own.refuses(attention) is None:
            return kernel
    return XLA


def elsewhere(spec: object) -> dict[str, str]:
    """The change of a model's fields for the devices here, if its kernel is not for them."""
    from vit_jax.core import axes

    asked = getattr(spec, "attention", AUTO)
    runs = asked not in KERNELS or KERNELS[asked].runs_on(axes.target())
    return {} if runs else {"attention": AUTO}


@contextlib.contextmanager
def portable() -> Iterator[None]:
    """Context in which XLA is chosen for all, for programs that run on several platforms."""
    token = _PORTABLE.set(True)
    try:
        yield
    finally:
        _PORTABLE.reset(token)
