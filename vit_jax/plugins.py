"""Parts of one's own, by name: from a notebook or script, or another package (docs/plugins.md)."""

from vit_jax.core.schema import entry_points
from vit_jax.core.schema.entry_points import add

__all__ = ["add", "available"]


def available() -> dict[str, list[str]]:
    """Names that other packages and `add` give, by group; nothing is loaded."""
    return {group: entry_points.names(group) for group in entry_points.GROUPS}
