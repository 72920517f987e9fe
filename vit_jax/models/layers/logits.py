"""What acts on attention's logits, between products and softmax: fields, formulas and their table.

One more is a field of `LogitSpec`, a class and a line of `TRANSFORMS`; everything else follows.
JAX's own program computes all of them and their gradients; others (kernels/choice.py) name those
that they take, and are not chosen, or refused, for a model with another one.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.core.schema.fields import HIDDEN, field
from vit_jax.models.layers.linear import Numerics


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LogitTransform:
    """A differentiable function of logits [B, H, N, N], in whose dtype it stays.

    Attributes:
      name: the model's field that wants it, for messages.
      function: (logits, array) -> logits; compared as jit compares static arguments.
      array: has at least two axes, and broadcasts against the logits: what is learned, or depends
        on the images.
    """

    name: str = dataclasses.field(metadata={"static": True})
    function: Callable[..., jax.Array] = dataclasses.field(metadata={"static": True})
    array: jax.Array | None = None

    def __call__(self, logits: jax.Array) -> jax.Array:
        """[B, H, N, N] -> [B, H, N, N]."""
        return self.function(logits, self.array)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogitSpec(Numerics):
    """Fields of what acts on attention's logits; a false value stands for nothing."""

    logit_cap: float = field(
        0.0,
        "bounds attention's logits: cap * tanh(logits / cap), as in Gemma 2 (arXiv 2408.00118); "
        "0: without [0]",
        bounds=(0, 1e6),
        trained=HIDDEN,
    )

    @property
    def logit_transforms(self) -> frozenset[str]:
        """Names of what acts on the logits."""
        return frozenset(name for name in TRANSFORMS if getattr(self, name, None))


@jax.custom_jvp
def _tanh(x: jax.Array) -> jax.Array:
    return jnp.tanh(x)


@_tanh.defjvp
def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Keeps one array of N x N for the gradient; JAX's own rule keeps two."""
    y = _tanh(*primals)
    return y, (1 - y * y) * tangents[0]


@dataclasses.dataclass(frozen=True)
class Cap:
    """cap * tanh(logits / cap)."""

    cap: float

    def __call__(self, logits: jax.Array, array: None) -> jax.Array:
        del array
        return self.cap * _tanh(logits / self.cap)


class LogitCap(nnx.Module):
    """A soft cap."""

    def __init__(self, spec: Any, *, rngs: nnx.Rngs):
        del rngs
        self.cap = Cap(spec.logit_cap)

    def __call__(self) -> tuple[Cap, None]:
        """(function, array) of a LogitTransform."""
        return self.cap, None


# Field -> a module made of (the model's fields, rngs=...), which gives (function, array).
TRANSFORMS: dict[str, Callable[..., Any]] = {"logit_cap": LogitCap}


def make_transforms(spec: Any, *, rngs: nnx.Rngs) -> nnx.Dict:
    """The modules of these fields by name."""
    wanted = spec.logit_transforms
    return nnx.Dict({n: make(spec, rngs=rngs) for n, make in TRANSFORMS.items() if n in wanted})


def add_bias(logits: jax.Array, bias: jax.Array) -> jax.Array:
    """Adds one of [B, H, N, N], or of [1, H, N, N], whose gradient is summed in float32."""
    return logits + jnp.broadcast_to(bias.astype(jnp.float32), logits.shape).astype(logits.dtype)


# The name of positions' bias, which is not in the table: layers/relative.py has its fields.
BIAS = "position_embedding=relative..."
