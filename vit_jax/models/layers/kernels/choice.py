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
from vit_jax.models.layers.kernels.xla import Projected

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

_REQUESTED_BY_CONTEXT = contextvars.ContextVar[str | None]("requested", default=None)


class Attention(NamedTuple):
    """An attention to be computed; transforms: what acts on its logits (layers/logits.py)."""

    head_size: int
    dtype: str
    softmax_dtype: str
    transforms: frozenset[str] = frozenset()


class Kernel(NamedTuple):
    """A program besides XLA's."""

    where: str  # its devices, for messages
    runs_on: Callable[[Target], bool]  # whether it runs there
    # Why it does not serve an attention, with the cure; None if it does.
    refuses: Callable[[Attention], str | None]
    # Its function of `Projected` and the dtype of the softmax.
    attend: Callable[[Projected, np.dtype], jax.Array]
    row: str  # where its gain stands, and on which devices it was run
    test: str  # that it computes what XLA's program does
    takes: frozenset[str] = frozenset()  # names of layers/logits.py that it computes

    def declines(self, attention: Attention) -> str | None:
        """Returns why it does not serve an attention, with the cure; None if it does."""
        for name in sorted(attention.transforms - self.takes):
            return f"model.{name} acts on the logits: set model.attention=xla"
        return self.refuses(attention)


def _refuses_any(a: Attention) -> str | None:
    """The reason why no kernel serves an attention."""
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
    """Returns whether this TPU's kernels multiply bfloat16: all but those of v2 and v3 do."""
    return target.platform == "tpu" and target.kind not in ("TPU v2", "TPU v3")


def _attend_xla(projected: Projected, softmax_dtype: np.dtype) -> jax.Array:
    query, key, value, _, transforms = projected
    if not transforms and query.shape[1] >= LONG:
        return xla.attend_in_blocks(query, key, value, softmax_dtype)
    return xla.attend(query, key, value, softmax_dtype, transforms)


def _attend_fused(projected: Projected, softmax_dtype: np.dtype) -> jax.Array:
    from vit_jax.models.layers.kernels import fused

    query, key, value, qkv, _ = projected
    tokens = query.shape[1]
    if qkv is not None and fused.queries_of(tokens) == tokens:
        return fused.attend_joint(qkv)
    return fused.attend(query, key, value)


def _attend_splash(projected: Projected, softmax_dtype: np.dtype) -> jax.Array:
    from vit_jax.models.layers.kernels import splash

    return splash.attend(*projected[:3])


def _attend_cudnn(projected: Projected, softmax_dtype: np.dtype) -> jax.Array:
    from vit_jax.models.layers.kernels import cudnn

    return cudnn.attend(*projected[:3])


_TESTS = "tests/models/layers/kernels"
KERNELS: dict[str, Kernel] = {
    FUSED: Kernel(
        "a TPU from v4 on", _is_tpu, _refuses_any, _attend_fused,
        "results/attention.csv: cycles by the compiler's estimate; run on no chip",
        f"{_TESTS}/fused_test.py",
    ),
    SPLASH: Kernel(
        "a TPU from v4 on", _is_tpu, _refuses_any, _attend_splash,
        "results/attention.csv: cycles by the compiler's estimate; run on no chip",
        f"{_TESTS}/splash_test.py",
    ),
    CUDNN: Kernel(
        "an NVIDIA GPU from Ampere on", _is_nvidia, _cudnn_refuses, _attend_cudnn,
        "docs/benchmarks.md#the-step-on-a-gpu: run on an H200",
        f"{_TESTS}/cudnn_test.py",
    ),
}  # fmt: skip
_PROGRAMS = {XLA: _attend_xla} | {name: kernel.attend for name, kernel in KERNELS.items()}
# Platform -> the choice of AUTO, where that serves the model in bfloat16; else, and elsewhere, XLA.
# Only what was run on such a device and compared there stands here.
AUTO_KERNELS = {"gpu": CUDNN, "cuda": CUDNN}


def attend(requested: str, projected: Projected, softmax_dtype: np.dtype) -> jax.Array:
    """xla.attend of these, [B, N, H, K], by the program that `choose` names."""
    kernel = choose(requested, projected.query, softmax_dtype, names(projected))
    return _PROGRAMS[kernel](projected, softmax_dtype)


def attend_first(
    requested: str, projected: Projected, softmax_dtype: np.dtype, number: int
) -> jax.Array:
    """`attend` for the first `number` queries, which are cheap by any program: by XLA's."""
    choose(requested, projected.query, softmax_dtype, names(projected))
    query, key, value, _, transforms = projected.first(number)
    return xla.attend(query, key, value, softmax_dtype, transforms)


def names(projected: Projected) -> frozenset[str]:
    """Names of what acts on the logits."""
    return frozenset(transform.name for transform in projected.transforms)


def check(requested: str, attention: Attention) -> None:
    """Raises UserError if the requested kernel does not serve this, on any device."""
    reason = KERNELS[requested].declines(attention) if requested in KERNELS else None
    if reason is not None:
        raise UserError(f"model.attention={requested} is not for this model: {reason}.")


def check_devices(requested: str, target: Target) -> None:
    """Raises UserError if the requested kernel does not run on these devices."""
    if requested in KERNELS and not KERNELS[requested].runs_on(target):
        raise UserError(
            f"model.attention={requested} runs on {KERNELS[requested].where}, not on "
            f"{target.kind}: set model.attention=auto."
        )


def choose(
    requested: str,
    query: jax.Array,
    softmax_dtype: np.dtype,
    transforms: frozenset[str] = frozenset(),
) -> str:
    """The program, XLA or one of KERNELS, for queries [B, N, H, K] on the devices traced for.

    Raises UserError if the requested one is not for these devices or this model.
    """
    requested, target = _REQUESTED_BY_CONTEXT.get() or requested, axes.target()
    attention = Attention(query.shape[-1], query.dtype.name, softmax_dtype.name, transforms)
    if requested != AUTO:
        check_devices(requested, target)
        check(requested, attention)
        return requested
    name = AUTO_KERNELS.get(target.platform, XLA)
    serves = name in KERNELS and _serves(KERNELS[name], attention, target)
    return name if serves else XLA


def _serves(kernel: Kernel, attention: Attention, target: Target) -> bool:
    """Returns whether AUTO may take this program in place of XLA's."""
    in_dtype = attention.dtype == "bfloat16"
    return in_dtype and kernel.runs_on(target) and kernel.declines(attention) is None


def keeps_weights(requested: str, tokens: int, transforms: frozenset[str]) -> bool:
    """Returns whether the backward pass finds N x N weights in memory; AUTO counts as XLA."""
    return requested in (AUTO, XLA) and (bool(transforms) or tokens < LONG)


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
    token = _REQUESTED_BY_CONTEXT.set(XLA)
    try:
        yield
    finally:
        _REQUESTED_BY_CONTEXT.reset(token)
