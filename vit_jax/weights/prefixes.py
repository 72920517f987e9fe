"""Prefixes that trainers put before the names of a model's arrays, as "module." and "backbone.".

They are found by the model's first array rather than by a list of them: what precedes its name.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from vit_jax.core.errors import UserError
from vit_jax.weights.files.tensors import Tensors
from vit_jax.weights.layout import Layout, pieces
from vit_jax.weights.match import Match, MisfitError, refusal

T = TypeVar("T")
MAX_SHOWN = 5


def read_without(
    path: Path, tensors: Tensors, matches: Sequence[Match], read: Callable[[Tensors], T]
) -> tuple[T, str]:
    """(what `read` makes of the arrays without their prefix, a sentence that says so)

    Args:
      matches: those of the arrays as they are, none of which fits.
      read: raises MisfitError for arrays that fit no layout.

    Raises:
      UserError: `refusal` where no prefix is found; several models, or other arrays beside one.
    """
    of_all, prefixes = matches, _prefixes([m.layout for m in matches], tensors)
    if not prefixes:
        raise refusal(path, matches)
    if len(prefixes) > 1:
        raise UserError(
            f"{path} has the arrays of several models, under the prefixes {_listed(prefixes)}. "
            + _save_alone(prefixes[-1])
        )
    (prefix,) = prefixes
    for start in _starts(prefix):
        inside = {n.removeprefix(start): x for n, x in tensors.items() if n.startswith(start)}
        others = {n: x for n, x in tensors.items() if not n.startswith(start)}
        counters = [n for n, x in others.items() if not x.shape]  # as of a moving average
        if not others.keys() - set(counters):
            counted = f"; {_listed(counters)} is left out" if counters else ""
        elif others.keys() & inside.keys() or len(others) > len(inside):
            continue
        else:  # a classifier beside a backbone, perhaps
            inside, counted = inside | others, ""
        try:
            return read(inside), f"the prefix {start!r} of its names is taken off{counted}."
        except MisfitError as misfit:
            matches = misfit.args[0]
    alone = {n.removeprefix(prefix): x for n, x in tensors.items() if n.startswith(prefix)}
    if 2 * len(alone) <= len(tensors):  # a stray name rather than a prefix
        raise refusal(path, of_all)
    try:
        read(alone)
    except MisfitError:
        pass
    else:
        names = [name for name in tensors if not name.startswith(prefix)]
        raise UserError(
            f"{path} has a model's arrays under the prefix {prefix!r}, and {len(names)} others, "
            f"{_listed(names)}. {_save_alone(prefix)}"
        )
    raise UserError(f"{refusal(path, matches)}\n(without the prefix {prefix!r} of its names)")


def _prefixes(layouts: Iterable[Layout], tensors: Tensors) -> list[str]:
    """What precedes the first array of a layout; of the layout with the fewest, if several do."""
    found = []
    for layout in layouts:
        first = "." + next(pieces(layout.rules[0], {})).name
        there = [n.removesuffix(first) + "." for n in tensors if n.endswith(first)]
        found.append([prefix for prefix in there if prefix not in layout.prefixes])
    return min(filter(None, found), key=len, default=[])


def _starts(prefix: str) -> Iterator[str]:
    """ "module.backbone." -> "module.", "module.backbone." """
    parts = prefix.split(".")[:-1]
    return (".".join(parts[: n + 1]) + "." for n in range(len(parts)))


def _save_alone(prefix: str) -> str:
    return (
        "Save those of one model alone, without the prefix, as in: "
        f"{{n.removeprefix({prefix!r}): x for n, x in arrays.items() if n.startswith({prefix!r})}}."
    )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MAX_SHOWN
    return ", ".join(name[:60] for name in names[:MAX_SHOWN]) + (
        f" and {more} more" if more > 0 else ""
    )
