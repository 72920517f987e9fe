"""The numbers of all tasks, and their means: of each group, of all 19, and of the three groups.

The benchmark's number is the mean of all 19 (arXiv 1910.04867). Papers on adapters often give the
mean of the three groups' means, which weighs the four specialized tasks as much as the eight
structured ones: it is shown beside the other, and named.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vit_jax.core.screen import aligned
from vit_jax.draw import html_page
from vit_jax.tools.lab.sweep import grid
from vit_jax.tools.lab.transfer.results import OverSeeds, as_dicts, deviation, format_mean, start
from vit_jax.tools.lab.vtab.table import GROUPS, TASKS

ALL, OF_GROUPS = "all 19 tasks", "three groups"


class TaskResult(NamedTuple):
    """The result of a task.

    Attributes:
      name: of the task.
      accuracy: on the test, over seeds; None if there is none.
      chosen: values by field.
      choices: what the number depends on, in words, by what is chosen.
      why: why there is no accuracy, or one of fewer seeds; else "".
      folder: of the transfer.
    """

    name: str
    accuracy: OverSeeds | None
    chosen: dict[str, str]
    choices: dict[str, str]
    why: str
    folder: str


class VtabSummary(NamedTuple):
    """The results of all tasks.

    Attributes:
      checkpoint: as the command gave it; weights: what it stood for.
      results: of the tasks that are done.
      names: of all tasks that are run.
    """

    checkpoint: str
    weights: str | None
    config: str
    results: list[TaskResult]
    names: Sequence[str]

    @property
    def accuracies(self) -> dict[str, OverSeeds]:
        """Those that there are, by task."""
        return {each.name: each.accuracy for each in self.results if each.accuracy}

    @property
    def left_out(self) -> list[str]:
        """Tasks of the benchmark that are not run."""
        return [name for name in TASKS if name not in self.names]

    @property
    def choices(self) -> list[str]:
        """What numbers depend on: the keys of all results' `choices`."""
        return list(dict.fromkeys(key for each in self.results for key in each.choices))

    def document(self) -> dict[str, Any]:
        """The contents of results.json."""
        return {
            "checkpoint": self.checkpoint,
            "weights": self.weights,
            "config": self.config,
            "means": as_dicts(means(self.accuracies)),
            "tasks": {
                each.name: {
                    "title": TASKS[each.name].title,
                    "group": TASKS[each.name].group,
                    **as_dicts(each),
                }
                for each in self.results
            },
            "left_out": self.left_out,
        }

    def table(self) -> list[list[Any]]:
        """Rows of results.csv: a head, each task, then each mean."""
        choices = self.choices
        rows: list[list[Any]] = [
            ["task", "group", "accuracy", "std", "seeds", "chosen", *choices, "why"]
        ]
        for each in self.results:
            chosen = " ".join(f"{field}={value}" for field, value in each.chosen.items())
            lines = [each.choices.get(name, "") for name in choices]
            group = TASKS[each.name].group
            rows.append([each.name, group, *_cells(each.accuracy), chosen, *lines, each.why])
        for name, mean in means(self.accuracies).items():
            rows.append([f"mean of {name}", "", *_cells(mean), "", *[""] * len(choices), ""])
        return rows

    def page(self, name: str) -> str:
        """The text of results.html, with what each number depends on."""
        return html_page.render(
            "tools/lab/vtab/page.html",
            title=name,
            subtitle=f"{start(self.checkpoint)} · {self.config} · VTAB-1k",
            means=[
                [what, format_accuracy(mean), self.missing_tasks(what)]
                for what, mean in means(self.accuracies).items()
            ],
            waiting=len(self.names) - len(self.results),
            left_out=[TASKS[name].title for name in self.left_out],
            groups={
                group: [_row(each) for each in self.results if TASKS[each.name].group == group]
                for group in GROUPS
            },
            choices=self.choices,
            depends=[
                [TASKS[each.name].title, *(each.choices.get(key, "") for key in self.choices)]
                for each in self.results
            ],
        )

    def lines(self) -> list[str]:
        """Returns the lines that the command prints at its end."""
        rows = [
            [
                TASKS[each.name].group,
                TASKS[each.name].title,
                format_accuracy(each.accuracy),
                each.why,
            ]
            for each in self.results
        ]
        lines = aligned(["group", "task", "accuracy", ""], rows, left=(0, 1, 3))
        rows = [
            ["mean of", name, format_accuracy(mean), self.missing_tasks(name)]
            for name, mean in means(self.accuracies).items()
        ]
        return [*lines, *aligned(["", "", "", ""], rows, left=(0, 1, 3))[1:]]

    def missing_tasks(self, name: str) -> str:
        """Why a mean is not there: "5 of 7 tasks"; "" if it is."""
        wanted = [task for task in TASKS if name not in GROUPS or TASKS[task].group == name]
        number = sum(task in self.accuracies for task in wanted)
        return "" if number == len(wanted) else f"{number} of {len(wanted)} tasks"


def means(accuracies: Mapping[str, OverSeeds]) -> dict[str, OverSeeds | None]:
    """Means of the tasks' accuracies; None for a mean that a task is missing in.

    A deviation is that of the means of each seed, where all tasks have the same seeds.
    """
    of_tasks = {
        group: [accuracies.get(name) for name, task in TASKS.items() if task.group == group]
        for group in GROUPS
    }
    group_means = {group: _mean(numbers) for group, numbers in of_tasks.items()}
    every = _mean([number for numbers in of_tasks.values() for number in numbers])
    return {**group_means, ALL: every, OF_GROUPS: _mean(list(group_means.values()))}


def _mean(numbers: Sequence[OverSeeds | None]) -> OverSeeds | None:
    available = [number for number in numbers if number is not None]
    if len(available) < len(numbers):
        return None
    seeds = list(available[0].values)
    values = {}
    if all(set(number.values) == set(seeds) for number in available):
        values = {s: statistics.mean(number.values[s] for number in available) for s in seeds}
    mean = statistics.mean(number.mean for number in available)
    return OverSeeds(mean, deviation(values), values)


def format_accuracy(number: OverSeeds | None) -> str:
    """ "72.72% ± 0.21", "-" if there is none."""
    return "-" if number is None else format_mean("accuracy", number)


def _cells(number: OverSeeds | None) -> list[Any]:
    if number is None:
        return ["", "", 0]
    return [number.mean, "" if number.std is None else number.std, len(number.values)]


def _row(each: TaskResult) -> list[str]:
    seeds = len(each.accuracy.values) if each.accuracy else 0
    values = grid.format_values(each.chosen)
    return [TASKS[each.name].title, format_accuracy(each.accuracy), str(seeds), values, each.why]
