"""Parts of one's own, by name: from a notebook or script, or another package (docs/plugins.md)."""

from collections.abc import Collection, Mapping
from typing import Any

from vit_jax import evals
from vit_jax.core.errors import UserError
from vit_jax.core.schema import entry_points
from vit_jax.data.ops.table import OPS
from vit_jax.data.sources.table import SOURCES
from vit_jax.evals.metrics import METRICS
from vit_jax.learning.losses import LOSSES
from vit_jax.learning.methods import METHODS
from vit_jax.learning.optim.optimizers import OPTIMIZERS
from vit_jax.learning.optim.schedules import DECAYS

__all__ = ["add", "available"]

_OURS: Mapping[str, Collection[str]] = {
    "evaluators": evals.KINDS,
    "losses": LOSSES,
    "methods": METHODS,
    "metrics": METRICS,
    "ops": OPS,
    "optimizers": OPTIMIZERS,
    "schedules": DECAYS,
    "sources": SOURCES,
}


def add(group: str, name: str, part: Any) -> None:
    """Adds a part to this process; a second one of this name takes its place.

    UserError for another group, a name of ours, or a part that is not what its group takes.
    """
    if name in _OURS.get(group, ()):
        raise UserError(f"{entry_points.PREFIX}{group}: {name!r} is one of ours.")
    entry_points.add(group, name, part)


def available() -> dict[str, list[str]]:
    """Names that other packages and `add` give, by group; nothing is loaded."""
    return {group: entry_points.names(group) for group in entry_points.GROUPS}
