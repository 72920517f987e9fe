"""The numbers of the log that are drawn, with their titles and kinds of axes."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from vit_jax.store.runs import RESERVED, Run, Series

# Layers and blocks have hundreds of curves: TensorBoard shows them.
TOO_MANY = ("gradients", "activations")


class Style(NamedTuple):
    """The style in which a number is drawn.

    Attributes:
      title: the title, with {} for the evaluation's name.
      percent: a share of 1, shown in percent.
      start: lower end of the axis, if no value is lower.
      end: upper end of the axis, if no value is higher.
      log: whether the axis is logarithmic if the values differ by a large factor.
      exact: without noise, so that means of neighbouring values would only blunt it.
      only_if_any: not drawn where all values are 0.
    """

    title: str
    percent: bool = False
    start: float | None = None
    end: float | None = None
    log: bool = False
    exact: bool = False
    only_if_any: bool = False


class Panel(NamedTuple):
    """A picture: one number of one or several runs.

    Attributes:
      key: in metrics.jsonl.
      lines: by the position of the run.
    """

    key: str
    title: str
    style: Style
    lines: dict[int, Series]


_NUMBER = re.compile(r"(?<!_l)\d+")  # but for that of l2
OTHER = "Other results"
EVALUATION = "*"  # instead of an evaluation's name

# In the order of the page. "#" is any number.
SECTIONS: dict[str, dict[str, Style]] = {
    "Loss": {
        "train/loss": Style("training loss", log=True),
        "*/loss": Style("{}: loss", log=True),
    },
    "Accuracy": {
        "train/accuracy": Style("training accuracy", percent=True),
        "*/accuracy": Style("{}: accuracy", percent=True),
        "*/top#_accuracy": Style("{}: top-# accuracy", percent=True),
        "*/ece": Style("{}: expected calibration error", percent=True, start=0.0),
    },
    "Features": {
        "*/#shot_accuracy": Style("{}: #-shot accuracy", percent=True),
        "*/#shot_chosen_l2_accuracy": Style("{}: #-shot accuracy, l2 chosen", percent=True),
        "*/knn#_accuracy": Style("{}: accuracy of # neighbours", percent=True),
        "*/probe_accuracy": Style("{}: accuracy of a linear probe", percent=True),
        "*/sgd_probe_accuracy": Style("{}: accuracy of a linear probe by SGD", percent=True),
        "*/rank_me": Style("{}: rank of features (RankMe)", start=0.0),
    },
    "Optimisation": {
        "train/learning_rate": Style("learning rate", start=0.0, exact=True),
        "train/grad_norm": Style("gradient norm", start=0.0, log=True),
        "train/effective_weight_decay": Style("effective weight decay", start=0.0, exact=True),
    },
    "Speed and input": {
        "speed/images_per_second": Style("images per second", start=0.0),
        "speed/input_wait": Style("input wait", percent=True, start=0.0, end=1.0),
        "speed/mfu": Style("MFU", percent=True, start=0.0),
        "input/skipped_images": Style("skipped images", start=0.0, only_if_any=True),
        "*/skipped_images": Style("{}: skipped images", start=0.0, only_if_any=True),
        "*/unlabelled_images": Style("{}: unlabelled images", start=0.0, only_if_any=True),
    },
    OTHER: {},
}
NOT_DRAWN = ("*/examples", "*/#shot_deviation", "*/probe_l2", "*/sgd_probe_lr")


def evaluation(key: str) -> str | None:
    """The evaluation's name in a key, if it has one: test/accuracy -> test."""
    name, slash, _ = key.partition("/")
    return name if slash and name not in RESERVED else None


def evaluations(runs: Sequence[Run]) -> list[str]:
    """The evaluations of all runs, in order of first appearance."""
    names = (evaluation(key) for run in runs for key in run.series)
    return list(dict.fromkeys(name for name in names if name))


def arrange(runs: Sequence[Run]) -> dict[str, list[Panel]]:
    """Section -> its panels, for all that any run has logged; sections without one are left out."""
    keys = list(dict.fromkeys(key for run in runs for key in run.series))
    arranged: dict[str, list[Panel]] = {}
    for section, styles in SECTIONS.items():
        for pattern, style in styles.items():
            matching = [key for key in keys if _pattern(key) == pattern]
            arranged.setdefault(section, []).extend(_panels(matching, style, runs))
    known = {pattern for styles in SECTIONS.values() for pattern in styles} | set(NOT_DRAWN)
    rest = [key for key in keys if _pattern(key) not in known and not _is_too_many(key)]
    for key in rest:
        arranged.setdefault(OTHER, []).extend(_panels([key], Style(key, log=True), runs))
    return {section: panels for section, panels in arranged.items() if panels}


def left_out(runs: Sequence[Run]) -> int:
    """The number of keys of layers and blocks that are not drawn."""
    return len({key for run in runs for key in run.series if _is_too_many(key)})


def _is_too_many(key: str) -> bool:
    return key.partition("/")[0] in TOO_MANY


def _pattern(key: str) -> str:
    name = evaluation(key)
    if name is None:
        return key
    number = key.removeprefix(name)
    return EVALUATION + _NUMBER.sub("#", number)


def _panels(keys: Sequence[str], style: Style, runs: Sequence[Run]) -> list[Panel]:
    result = []
    for key in keys:
        lines = {i: run.series[key] for i, run in enumerate(runs) if key in run.series}
        if style.only_if_any and not any(any(line.values) for line in lines.values()):
            continue
        # Not str.format: the rest of a title may be a key with braces.
        number = _NUMBER.search(key.partition("/")[2])
        title = style.title.replace("#", number[0]) if number else style.title
        title = title.replace("{}", evaluation(key) or "")
        result.append(Panel(key, title, style, lines))
    return result


def finite(panel: Panel) -> list[float]:
    """All values of a panel that can be drawn."""
    return [v for line in panel.lines.values() for v in line.values if not math.isnan(v)]
