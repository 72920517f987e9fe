"""Numbers of evaluations for people: their names in words, and what is better."""

import math
import re
from collections.abc import Iterable

from vit_jax.core.screen import format_percent

# Words of numbers that had better be small; of all others more is better.
LESS_IS_BETTER = frozenset(("loss", "error", "ece", "nll", "brier", "deviation", "rmse", "rel"))


def is_score(metric: str) -> bool:
    """Returns whether a number, such as "test/top5_accuracy", is a share of what is right."""
    return metric.endswith(("accuracy", "precision", "recall", "f1"))


def is_percentage(metric: str) -> bool:
    """Returns whether a number, such as "test/top5_accuracy", is shown as a percentage."""
    return is_score(metric) or metric.endswith(("_share", "_explained", "_row_plus_column"))


def readable(metric: str, value: float, column: Iterable[float | None] = ()) -> str:
    """A number for people: "98.06%" of "test/accuracy", "0.09990" of "loss", "1,610" images.

    Of four digits; in a column of a table it has as many decimals as the largest number there.
    """
    if metric.endswith(("examples", "_images")):
        return f"{value:,.0f}"
    if is_percentage(metric):
        return format_percent(value)
    largest = max((abs(each) for each in column if each and math.isfinite(each)), default=0)
    if 1e-4 <= largest < 1e3:
        return f"{value:z.{3 - math.floor(math.log10(largest))}f}"
    return f"{value:z#.4g}".removesuffix(".")


# Of names of numbers: "5shot_accuracy" is read as "accuracy, 5-shot".
_PHRASES = (
    (r"top(\d+)_(.+)", r"\2, top \1"),
    (r"(\d+)shot_(.+)", r"\2, \1-shot"),
    (r"knn(\d+)_(.+)", r"\2, \1 nearest neighbours"),
    (r"macro_(.+)", r"\1, mean of classes"),
    (r"scaled_(.+)", r"\1, scaled by temperature"),
    (r"sgd_probe_(.+)", r"\1, linear probe by SGD"),
    (r"probe_(.+)", r"\1, linear probe"),
)
_WORDS = {
    "ece": "expected calibration error", "nll": "negative log-likelihood", "brier": "Brier score",
    "f1": "F1", "l2": "L2", "lr": "learning rate", "rank_me": "rank of features (RankMe)",
    "chosen_l2_accuracy": "accuracy with chosen L2", "examples": "images",
    "filters_explained": "variance in the filters shown",
    "positions_row_plus_column": "variance of positions by row and column",
    "first_distance_px": "attention distance in layer 1, in pixels",
    "last_distance_px": "attention distance in the last layer, in pixels",
    "high_norm_share": "patches of high norm",
}  # fmt: skip


def words(metric: str) -> str:
    """The name of a number in words: "test: accuracy, top 5" of "test/top5_accuracy"."""
    evaluation, slash, number = metric.partition("/")
    if slash:
        return f"{evaluation}: {words(number)}"
    for pattern, phrase in _PHRASES:
        if match := re.fullmatch(pattern, metric):
            name, _, detail = match.expand(phrase).partition(", ")
            return f"{words(name)}, {detail}"
    return _WORDS.get(metric, metric.replace("_", " "))


def best_mode(metric: str | None, mode: str | None) -> str:
    """`mode`, "max" or "min", of the best value of a number; None: what is better of it."""
    return mode or ("min" if metric and is_less_better(metric) else "max")


def is_less_better(metric: str) -> bool:
    """Returns whether smaller values of a number, such as "test/scaled_ece", are better."""
    return not LESS_IS_BETTER.isdisjoint(metric.rpartition("/")[2].split("_"))
