"""The choice: the point of the lists that is best on the held-out part, and what led to it.

choice.json keeps it, {"chosen": {field: value}, "key": "held_out/accuracy", "score": ...,
"candidates": [...], "at_edge": [...]}. Once a training of the result has begun it stands.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from vit_jax.core.errors import UserError
from vit_jax.core.files import parse_json, write_text
from vit_jax.store import workdir
from vit_jax.tools.lab.sweep import progress
from vit_jax.tools.lab.sweep.progress import PointProgress
from vit_jax.tools.lab.sweep.results import SEED

FILE = "choice.json"
LEARNING_RATE = "optim.lr"


class Candidate(NamedTuple):
    """One point of the lists.

    Attributes:
      values: its values, by field.
      scores: on the held-out part, by seed, of trainings that finished with a finite number.
      score: their mean; None if there is none.
      failures: why the others have none.
    """

    values: dict[str, str]
    scores: dict[str, float]
    score: float | None
    failures: tuple[str, ...] = ()


class Choice(NamedTuple):
    """What was chosen.

    Attributes:
      chosen: values by field; empty if there was nothing to choose.
      key: the number that it was chosen by, "held_out/accuracy".
      score: its mean over seeds; None if there was nothing to choose.
      candidates: all of them, in the lists' order.
      at_edge: sentences about chosen numbers that are the smallest or largest of their list.
    """

    chosen: dict[str, str]
    key: str
    score: float | None
    candidates: tuple[Candidate, ...] = ()
    at_edge: tuple[str, ...] = ()


def choose(rows: Sequence[PointProgress], key: str) -> Choice:
    """The best of the trainings' points. UserError if none has a finite number.

    The mean over seeds decides. Of equal ones it is that with the smaller learning rate, then with
    the smaller other numbers (fewer steps), then the first.
    """
    candidates = _candidates(rows, key)
    scored = [candidate for candidate in candidates if candidate.score is not None]
    if not scored:
        reasons = "".join(f"\n  {reason}" for each in candidates for reason in each.failures)
        raise UserError(f"No training has a number {key}, so nothing can be chosen:{reasons}")
    sign = -1 if progress.is_better_high(key) else 1
    best = min(scored, key=lambda each: (sign * (each.score or 0.0), _in_order(each.values)))
    return Choice(best.values, key, best.score, candidates, tuple(_edges(best.values, candidates)))


def _candidates(rows: Sequence[PointProgress], key: str) -> tuple[Candidate, ...]:
    """The points without their seeds, each with the trainings of all seeds."""
    groups: dict[tuple[tuple[str, str], ...], list[PointProgress]] = {}
    for row in rows:
        values = tuple((f, v) for f, v in row.point.values.items() if f != SEED)
        groups.setdefault(values, []).append(row)
    candidates = []
    for values, members in groups.items():
        scores, failures = {}, []
        for row in members:
            number = row.numbers.get(key, math.nan)
            if row.state == "finished" and math.isfinite(number):
                scores[row.point.values.get(SEED) or row.point.common[SEED]] = number
            else:
                reason = row.reason or ("not finite" if row.state == "finished" else row.state)
                failures.append(f"{row.point.name}: {reason}")
        # With a seed missing the mean would be one of other seeds than the others' are.
        score = None if failures else statistics.mean(scores.values())
        candidates.append(Candidate(dict(values), scores, score, tuple(failures)))
    return tuple(candidates)


def _in_order(values: Mapping[str, str]) -> tuple[float, ...]:
    """What decides between equal scores: the learning rate, then the other numbers."""
    fields = sorted(values, key=lambda field: field != LEARNING_RATE)
    return tuple(math.inf if (n := _number(values[f])) is None else n for f in fields)


def _edges(chosen: Mapping[str, str], candidates: Sequence[Candidate]) -> list[str]:
    sentences = []
    for field, value in chosen.items():
        tried = {_number(each.values[field]): each.values[field] for each in candidates}
        if len(tried) < 2 or None in tried:
            continue
        numbers = sorted(number for number in tried if number is not None)
        for edge, which in ((numbers[0], "smallest"), (numbers[-1], "largest")):
            if _number(value) == edge:
                all_of_them = ", ".join(tried[number] for number in numbers)
                better = "smaller" if which == "smallest" else "larger"
                sentences.append(
                    f"{field}={value} is the {which} of those tried ({all_of_them}): a {better} "
                    "one may do better."
                )
    return sentences


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def write(folder: epath.Path, choice: Choice) -> None:
    """Keeps the choice in the folder. UserError if it cannot."""
    document = choice._asdict() | {"candidates": [each._asdict() for each in choice.candidates]}
    try:
        write_text(folder / FILE, json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise workdir.unwritable(folder, error) from error


def read(folder: epath.Path) -> Choice | None:
    """The choice that the folder keeps; None if there is none. UserError if it is damaged."""
    try:
        document: dict[str, Any] = parse_json((folder / FILE).read_bytes())
        each = [Candidate(**values) for values in document.pop("candidates")]
        candidates = tuple(one._replace(failures=tuple(one.failures)) for one in each)
        edges = tuple(document.pop("at_edge"))
        return Choice(**document, candidates=candidates, at_edge=edges)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder / FILE} is damaged ({error}). Put it back from a copy; or delete it and "
            f"{folder / 'final'}, which scores the test once more."
        ) from error
