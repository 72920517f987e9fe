"""The choice of a transfer, and its result: on the screen, in results.json, .csv and .html.

choice.json keeps the point of the lists that is best on the held-out part, and what led to it,
{"chosen": {field: value}, "key": "held_out/accuracy", "score": ..., "candidates": [...],
"at_edge": [...]}. Once a training of the result has begun it stands.
"""

import functools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath
from markupsafe import Markup

from vit_jax.core.errors import UserError
from vit_jax.core.metric_names import is_less_better, is_percentage, words
from vit_jax.draw import html_page
from vit_jax.draw.html_page import Picture
from vit_jax.store import workdir
from vit_jax.tools.lab.sweep import picture, progress
from vit_jax.tools.lab.sweep.grid import SEED, format_values
from vit_jax.tools.lab.sweep.progress import PointProgress
from vit_jax.tools.lab.transfer.task import CHOOSE, FINAL, NO_CHECKPOINT, Splits

CHOICE_FILE = "choice.json"
LEARNING_RATE = "optim.lr"
_COUNTS = ("examples", "_images")  # endings of numbers that are not scores


class Candidate(NamedTuple):
    values: dict[str, str]  # its values, by field
    # On the held-out part, by seed, of trainings that finished with a finite number.
    scores: dict[str, float]
    score: float | None  # their mean; None if there is none
    failures: list[str]  # why the others have none


class Choice(NamedTuple):
    chosen: dict[str, str]  # values by field; empty if there was nothing to choose
    key: str  # the number that it was chosen by, "held_out/accuracy"
    score: float | None  # its mean over seeds; None if there was nothing to choose
    candidates: Sequence[Candidate] = ()  # all of them, in the lists' order
    # Sentences about chosen numbers that are the smallest or largest of their list.
    at_edge: Sequence[str] = ()


def choose(rows: Sequence[PointProgress], key: str) -> Choice:
    """The best of the points by the mean over seeds; of equal ones that with smaller numbers."""
    candidates = _candidates(rows, key)
    scored = [candidate for candidate in candidates if candidate.score is not None]
    if not scored:
        reasons = "".join(f"\n  {reason}" for each in candidates for reason in each.failures)
        raise UserError(f"No training has a number {key}, so nothing can be chosen:{reasons}")
    sign = 1 if is_less_better(key) else -1
    best = min(scored, key=lambda each: (sign * (each.score or 0.0), _tie_break(each.values)))
    return Choice(best.values, key, best.score, candidates, _edges(best.values, candidates))


def _candidates(rows: Sequence[PointProgress], key: str) -> list[Candidate]:
    candidates = []
    for values, members in progress.group_by_values(rows):
        scores, failures = {}, []
        for row in members:
            if progress.is_scored(row, key):
                scores[row.point.all_values[SEED]] = row.numbers[key]
            else:
                reason = row.reason or ("not finite" if row.state == "finished" else row.state)
                failures.append(f"{row.point.name}: {reason}")
        # With a seed missing the mean would be one of other seeds than the others' are.
        score = None if failures else statistics.mean(scores.values())
        candidates.append(Candidate(values, scores, score, failures))
    return candidates


def _tie_break(values: Mapping[str, str]) -> tuple[float, ...]:
    fields = sorted(values, key=lambda field: field != LEARNING_RATE)
    return tuple(math.inf if (n := _parse_number(values[f])) is None else n for f in fields)


def _edges(chosen: Mapping[str, str], candidates: Sequence[Candidate]) -> list[str]:
    sentences = []
    for field, value in chosen.items():
        tried = {_parse_number(each.values[field]): each.values[field] for each in candidates}
        numbers = sorted(number for number in tried if number is not None)
        if len(tried) < 2 or None in tried:
            continue
        ends = {numbers[0]: ("smallest", "smaller"), numbers[-1]: ("largest", "larger")}
        if end := ends.get(float(value)):
            listed = ", ".join(tried[number] for number in numbers)
            which = f"{field}={value} is the {end[0]} of those tried ({listed})"
            sentences.append(f"{which}: a {end[1]} one may do better.")
    return sentences


def _parse_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def read_choice(folder: epath.Path) -> Choice | None:
    def parse(document: dict[str, Any]) -> Choice:
        candidates = [Candidate(**values) for values in document.pop("candidates")]
        return Choice(**document, candidates=candidates)

    remedy = f"Put it back from a copy; or move away both it and {folder / FINAL}."
    return workdir.read_json(folder / CHOICE_FILE, parse, remedy)


class OverSeeds(NamedTuple):
    """A number of the test over seeds; `std` is their `deviation`."""

    mean: float
    std: float | None
    values: dict[str, float]  # by seed


class TransferResult(NamedTuple):
    checkpoint: str  # what training started from, as the command gave it
    weights: str | None  # the checkpoint that it named when the transfer began; None: from scratch
    config: str  # the config file
    splits: Splits  # the parts of the training data
    # The evaluation of the test: its name, split, source and data_dir.
    tested: dict[str, str | None]
    choice: Choice  # what was chosen, and from what
    key: str  # the number of the test that stands for the result, "test/accuracy"
    # Numbers of the test by name, over the seeds of trainings that have finished.
    test: dict[str, OverSeeds]
    seeds: int  # how many trainings there are to be
    failures: Sequence[str]  # trainings of both sweeps that did not finish, and why

    @property
    def scores(self) -> dict[str, OverSeeds]:
        """The numbers of the test that are not counts."""
        return {name: n for name, n in self.test.items() if not name.endswith(_COUNTS)}

    @property
    def score(self) -> OverSeeds | None:
        return self.test.get(self.key)


def over_seeds(rows: Sequence[PointProgress], evaluation: str) -> dict[str, OverSeeds]:
    """The test's numbers of the trainings that have finished, by name."""
    by_name: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.state != "finished":
            continue
        for name, number in row.numbers.items():
            if name.startswith((f"{evaluation}/", f"{evaluation}_ema/")) and math.isfinite(number):
                by_name.setdefault(name, {})[row.point.all_values[SEED]] = number
    return {
        name: OverSeeds(statistics.mean(values.values()), deviation(values), values)
        for name, values in by_name.items()
    }


def deviation(values: Mapping[str, float]) -> float | None:
    """The sample's standard deviation (n - 1) over seeds; None for fewer than two."""
    return statistics.stdev(values.values()) if len(values) > 1 else None


def table(result: TransferResult, rows: Mapping[str, Sequence[PointProgress]]) -> list[list[Any]]:
    """Rows of results.csv: a head, then sweep, values, seed, state and numbers of each training."""
    axes = list(result.choice.chosen)
    every = [row for each in rows.values() for row in each]
    evaluated = [result.choice.key.partition("/")[0], result.key.partition("/")[0]]
    names = dict.fromkeys(name for row in every for name in row.numbers)
    numbers = [name for name in names if name.partition("/")[0] in evaluated]
    head, *lines = progress.csv_lines(every, [*axes, SEED], numbers)
    sweeps = [sweep for sweep, each in rows.items() for _ in each]
    return [["sweep", *head], *([sweep, *line] for sweep, line in zip(sweeps, lines, strict=True))]


def format_mean(key: str, number: OverSeeds) -> str:
    """ "97.21% ± 0.15", or without a deviation where there is one seed."""
    mean = progress.format_number(key, number.mean)
    if number.std is None:
        return mean
    return f"{mean} ± " + (f"{100 * number.std:.2f}" if is_percentage(key) else f"{number.std:.2g}")


def format_score(key: str, number: OverSeeds) -> str:
    """ "97.21% ± 0.15 (3 seeds)"."""
    return f"{format_mean(key, number)} ({progress.count_of(len(number.values), 'seed')})"


def lines(result: TransferResult) -> Iterable[str]:
    """Yields the lines that the command prints at its end: the choice, then the test."""
    choice = result.choice
    if choice.chosen:
        shown = f"{choice.key} {progress.format_number(choice.key, choice.score)}"
        yield f"chosen   {format_values(choice.chosen)}, by {shown} on {result.splits.held_out}"
        yield from (f"note     {sentence}" for sentence in choice.at_edge)
    else:
        yield "chosen   nothing: there were no lists of values, so the config's own were used"
    for name, numbers in result.scores.items():
        yield f"test     {name} {format_score(name, numbers)}"
    if not result.test:
        yield "test     no training has finished"


def page(name: str, result: TransferResult, rows: Mapping[str, Sequence[PointProgress]]) -> str:
    """The text of results.html, with the protocol that its number comes from."""
    choice, score = result.choice, result.score
    seeds = list(dict.fromkeys(s for numbers in result.test.values() for s in numbers.values))
    fields = [*choice.chosen, SEED]
    column = [each.score for each in choice.candidates]
    number = progress.format_number
    shown = []
    if choice.chosen:
        axis, curves = picture.curves(rows[CHOOSE], choice.key)
        draw = functools.partial(picture.draw, axis, curves, choice.key)
        shown.append(Picture("", picture.title(axis, choice.key), "", draw))
    return html_page.render(
        "tools/lab/transfer/page.html",
        title=name,
        subtitle=f"{start(result.checkpoint)} · {result.config}",
        result=result,
        key=words(result.key),
        score=format_score(result.key, score) if score else "no training has finished",
        tested=_describe_test(result),
        protocol=_protocol(result),
        choice=choice,
        shown=shown,
        candidates_head=[*choice.chosen, words(choice.key), "why not"],
        candidates=[
            [
                *map(each.values.get, choice.chosen),
                number(choice.key, each.score, column),
                "; ".join(each.failures),
            ]
            for each in choice.candidates
        ],
        chosen=[
            Markup('class="chosen"') if each.values == choice.chosen else ""
            for each in choice.candidates
        ],
        test_head=["", *(f"seed {seed}" for seed in seeds), "mean ± std"],
        test=[
            [
                words(name),
                *(number(name, over.values.get(s)) for s in seeds),
                format_score(name, over),
            ]
            for name, over in result.scores.items()
        ],
        trainings_head=["sweep", *fields, "state", "steps"],
        trainings=[
            [sweep, *(row.point.all_values[f] for f in fields), row.state, f"{row.step:,}"]
            for sweep, each in rows.items()
            for row in each
        ],
    )


def start(checkpoint: str) -> str:
    return "from scratch" if checkpoint == NO_CHECKPOINT else checkpoint


def _describe_test(result: TransferResult) -> str:
    tested = result.tested
    counted = result.test.get(f"{tested['name']}/examples")
    images = f", {counted.mean:,.0f} images" if counted else ""
    return f"{tested['split']} of {tested['data_dir'] or tested['source']}{images}"


def _protocol(result: TransferResult) -> list[tuple[str, str]]:
    splits, choice = result.splits, result.choice
    done = len(result.score.values) if result.score else 0
    final = f"{done} of {result.seeds} trainings on {splits.final}, each with a seed of its own"
    chosen = [("chosen", "nothing: the values are the config's own")]
    if choice.chosen:
        by = f"{words(choice.key)}; {splits.held_out}, after the last step"
        chosen = [("tried on", splits.choose), ("chosen by", by)]
    return [
        ("weights", result.weights or start(NO_CHECKPOINT)),
        *chosen,
        ("result", final),
        ("test", f"{_describe_test(result)}, scored after the last step of each, and never before"),
        ("±", "standard deviation over seeds (n - 1), not of the test's size"),
    ]
