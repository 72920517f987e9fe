"""The choice of the program that computes attention, by field, devices and model."""

import contextlib
import contextvars
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from vit_jax.core import axes
from vit_jax.core.axes import Target
from vit_jax.core.errors import UserError
from vit_jax.models.layers.kernels import xla

AUTO = "auto"
XLA, FUSED, SPLASH, CUDNN = "xla", "fused", "splash", "cudnn"
CHOICES = (AUTO, XLA, FUSED, SPLASH, CUDNN)

# From this number of tokens on XLA's program runs in blocks of queries: the memory of a whole one
# grows with N x N.
LONG = 1024
# cuDNN's limits on all GPUs that it serves.
MOST_HEAD_SIZE, AMPERE = 128, 8.0
# Under this flag of XLA a program with two layers whose attention cuDNN computes ends with
# "raw_hash_map<>::at" (openxla/xla, pull request 46500; so in JAX 0.11.2).
_DETERMINISTIC = "xla_gpu_deterministic_ops=true"

_PORTABLE = contextvars.ContextVar("portable", default=False)


class Attention(NamedTuple):
    """An attention to be computed: head size, dtypes, and whether logits have a bias."""

    head_size: int
    dtype: str
    softmax_dtype: str
    biased: bool


class Projected(NamedTuple):
    """What attention is computed from.

    Attributes:
      query, key, value: [B, N, H, K].
      bias: [B, H, N, N], added to the logits.
      qkv: the three in one array, [B, N, 3, H, K], if one product gave them: a kernel may read it.
    """

    query: jax.Array
    key: jax.Array
    value: jax.Array
    bias: jax.Array | None
    qkv: jax.Array | None


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
    """Why no kernel serves an attention."""
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


def _cudnn_refuses(a: Attention) -> str | None:
    if _DETERMINISTIC in os.environ.get("XLA_FLAGS", ""):
        return (
            f"with --{_DETERMINISTIC}, which deterministic=true sets, XLA loses the program of the "
            "second layer's backward pass: set model.attention=xla, or deterministic=false"
        )
    if a.dtype != "bfloat16":
        return f"it computes in bfloat16, not in model.dtype={a.dtype}: set model.dtype=bfloat16"
    if a.head_size > MOST_HEAD_SIZE:
        return (
            f"its heads have at most {MOST_HEAD_SIZE} channels, not {a.head_size}: give more "
            "model.num_heads, or set model.attention=xla"
        )
    return _refuses_any(a)


def _is_nvidia(target: Target) -> bool:
    """Whether cuDNN serves this GPU; one that is not here it does (tools/plan/topology.py)."""
    if target.platform not in ("gpu", "cuda"):
        return False
    if jax.default_backend() != "gpu":
        return True
    capability = getattr(jax.local_devices()[0], "compute_capability", "")  # AMD: "gfx90a"
    try:
        return float(capability) >= AMPERE
    except ValueError:
        return False


def _is_tpu(target: Target) -> bool:
    """Whether this TPU's kernels multiply bfloat16: all but those of v2 and v3 do."""
    return target.platform == "tpu" and target.kind not in ("TPU v2", "TPU v3")


KERNELS: dict[str, Kernel] = {
    FUSED: Kernel("a TPU from v4 on", _is_tpu, _refuses_any),
    SPLASH: Kernel("a TPU from v4 on", _is_tpu, _refuses_any),
    CUDNN: Kernel("an NVIDIA GPU from Ampere on", _is_nvidia, _cudnn_refuses),
}


def attend(
    requested: str, projected: Projected, softmax_dtype: np.dtype, num_queries: int | None = None
) -> jax.Array:
    """softmax(q k^T / sqrt(K) + bias) v, [B, N, H, K], by the program that `choose` names.

    num_queries: of the first ones alone, which are cheap by any program, so XLA's is taken.
    """
    query, key, value, bias, qkv = projected
    kernel = choose(requested, query, softmax_dtype, biased=bias is not None)
    if num_queries is not None:
        bias = None if bias is None else bias[:, :, :num_queries]
        return xla.attend(query[:, :num_queries], key, value, softmax_dtype, bias)
    if qkv is not None and (joint := joint_program(kernel, qkv.shape[1])):
        return joint(qkv)
    if kernel != XLA:
        return program(kernel)(query, key, value)
    if bias is None and query.shape[1] >= LONG:
        return xla.attend_in_blocks(query, key, value, softmax_dtype)
    return xla.attend(query, key, value, softmax_dtype, bias)


def check(requested: str, attention: Attention) -> None:
    """Raises UserError if the requested kernel does not serve this, on any device."""
    reason = KERNELS[requested].refuses(attention) if requested in KERNELS else None
    if reason is not None:
        raise UserError(f"model.attention={requested} is not for this model: {reason}.")


def check_devices(requested: str, target: Target) -> None:
    """Raises UserError if the requested kernel does not run on these devices."""
    if requested in KERNELS and not KERNELS[requested].runs_on(target):
        raise UserError(
            f"model.attention={requested} runs on {KERNELS[requested].where}, not on "
            f"{target.kind}: set model.attention=auto, which takes what the devices have."
        )


def choose(requested: str, query: jax.Array, softmax_dtype: np.dtype, *, biased: bool) -> str:
    """The program, XLA or one of KERNELS, for queries [B, N, H, K] on the devices traced for.

    Raises UserError if the requested one is not for these devices or this model.
    """
    attention = Attention(query.shape[-1], query.dtype.name, softmax_dtype.name, biased)
    target = axes.target()
    if _PORTABLE.get():
        return XLA
    if requested == AUTO:
        return _best(attention, target)
    check_devices(requested, target)
    check(requested, attention)
    return requested


def _best(attention: Attention, target: Target) -> str:
    """The choice of AUTO, from benchmarks/results/attention.csv."""
    kernel = CUDNN if target.platform in ("gpu", "cuda") else FUSED
    serves = KERNELS[kernel].runs_on(target) and KERNELS[kernel].refuses(attention) is None
    # XLA divides what cuDNN computes, but not a kernel of Pallas.
    divided = kernel == CUDNN or axes.can_divide()
    return kernel if serves and divided and attention.dtype == "bfloat16" else XLA


def program(kernel: str) -> Callable[..., jax.Array]:
    """The function of (query, key, value) of one of KERNELS; they are slow to import."""
    if kernel == SPLASH:
        from vit_jax.models.layers.kernels import splash

        return splash.attend
    if kernel == CUDNN:
        from vit_jax.models.layers.kernels import cudnn

        return cudnn.attend
    from vit_jax.models.layers.kernels import fused

    return fused.attend


def joint_program(kernel: str, tokens: int) -> Callable[[jax.Array], jax.Array] | None:
    """The same as a function of one array [B, N, 3, H, K], if the kernel has one for N tokens."""
    if kernel != FUSED:
        return None
    from vit_jax.models.layers.kernels import fused

    return fused.attend_joint if fused.queries_of(tokens) == tokens else None


def keeps_weights(requested: str, tokens: int, *, biased: bool) -> bool:
    """Whether the backward pass finds N x N weights in memory; AUTO counts as XLA."""
    return requested in (AUTO, XLA) and (biased or tokens < LONG)


def elsewhere(spec: Any, *, dtype: str | None = None) -> dict[str, str]:
    """Changes to a model's fields where its kernel does not run on the devices here.

    Likewise for a `dtype` of the computation that the model was not trained in.
    """
    if not hasattr(spec, "attention"):
        return {}
    requested = spec.attention
    runs = requested not in KERNELS or KERNELS[requested].runs_on(axes.target())
    return {} if runs and dtype in (None, getattr(spec, "dtype", None)) else {"attention": AUTO}


@contextlib.contextmanager
def portable() -> Iterator[None]:
    """Chooses XLA everywhere within the context, for programs that run on several platforms."""
    token = _PORTABLE.set(True)
    try:
        yield
    finally:
        _PORTABLE.reset(token)
