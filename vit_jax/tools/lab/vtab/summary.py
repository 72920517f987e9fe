"""The numbers of all tasks, and their means: of each group, of all 19, and of the three groups.

The benchmark's number is the mean of all 19 (arXiv 1910.04867). Papers on adapters often give the
mean of the three groups' means, which weighs the four specialized tasks as much as the eight
structured ones: it is shown beside the other, and named.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vit_jax.core.screen import aligned
from vit_jax.core.tables import for_json
from vit_jax.draw import html_page
from vit_jax.tools.lab.sweep import grid
from vit_jax.tools.lab.transfer.results import OverSeeds, deviation, format_mean, start
from vit_jax.tools.lab.vtab.table import GROUPS, TASKS

ALL, OF_GROUPS = "all 19 tasks", "three groups"


class TaskResult(NamedTuple):
    name: str  # of the task
    accuracy: OverSeeds | None  # on the test, over seeds; None if there is none
    chosen: dict[str, str]  # values by field
    choices: dict[str, str]  # what the number depends on, in words, by what is chosen
    why: str  # why there is no accuracy, or one of fewer seeds; else ""
    folder: str  # of the transfer


class VtabSummary(NamedTuple):
    checkpoint: str  # as the command gave it
    weights: str | None  # what it stood for
    config: str
    results: list[TaskResult]  # of the tasks that are done
    names: Sequence[str]  # of all tasks that are run

    @property
    def accuracies(self) -> dict[str, OverSeeds]:
        """Accuracies of the tasks that have one."""
        return {task.name: task.accuracy for task in self.results if task.accuracy}

    @property
    def failures(self) -> list[str]:
        return [f"{task.name}: {task.why}" for task in self.results if task.why]

    @property
    def left_out(self) -> list[str]:
        """Tasks of the benchmark that are not run."""
        return [name for name in TASKS if name not in self.names]

    @property
    def choices(self) -> list[str]:
        """Keys of all results' `choices`."""
        return list(dict.fromkeys(key for task in self.results for key in task.choices))

    def document(self) -> dict[str, Any]:
        document = {"checkpoint": self.checkpoint, "weights": self.weights, "config": self.config}
        tasks = {}
        for result in self.results:
            title, group = TASKS[result.name].title, TASKS[result.name].group
            tasks[result.name] = {"title": title, "group": group, **for_json(result)}
        of_all = {"means": for_json(means(self.accuracies)), "left_out": self.left_out}
        return document | of_all | {"tasks": tasks}

    def table(self) -> list[list[Any]]:
        """Rows of results.csv: a head, each task, then each mean."""
        rows = [["task", "group", "accuracy", "std", "seeds", "chosen", *self.choices, "why"]]
        for result in self.results:
            chosen = " ".join(f"{field}={value}" for field, value in result.chosen.items())
            lines = [result.choices.get(name, "") for name in self.choices]
            group = TASKS[result.name].group
            rows.append([result.name, group, *_cells(result.accuracy), chosen, *lines, result.why])
        for name, mean in means(self.accuracies).items():
            rows.append([f"mean of {name}", "", *_cells(mean), *[""] * (len(self.choices) + 2)])
        return rows

    def page(self, name: str) -> str:
        """The text of results.html, with what each number depends on."""
        return html_page.render(
            "tools/lab/vtab/page.html",
            title=name,
            subtitle=f"{start(self.checkpoint)} · {self.config} · VTAB-1k",
            means=[
                [name, format_accuracy(mean), self.missing_tasks(name)]
                for name, mean in means(self.accuracies).items()
            ],
            waiting=len(self.names) - len(self.results),
            left_out=[TASKS[name].title for name in self.left_out],
            groups={group: [row for of, *row in self.rows() if of == group] for group in GROUPS},
            choices=self.choices,
            depends=[
                [TASKS[result.name].title, *(result.choices.get(key, "") for key in self.choices)]
                for result in self.results
            ],
        )

    def rows(self) -> list[list[str]]:
        """Group, title, accuracy, seeds, chosen values and what is wrong, of each task."""
        rows = []
        for result in self.results:
            accuracy, seeds = format_accuracy(result.accuracy), str(_cells(result.accuracy)[-1])
            title, group = TASKS[result.name].title, TASKS[result.name].group
            chosen = grid.format_values(result.chosen)
            rows.append([group, title, accuracy, seeds, chosen, result.why])
        return rows

    def lines(self) -> list[str]:
        rows = [
            ["mean of", name, format_accuracy(mean), "", "", self.missing_tasks(name)]
            for name, mean in means(self.accuracies).items()
        ]
        head = ["group", "task", "accuracy", "seeds", "chosen", ""]
        return aligned(head, [*self.rows(), *rows], left=(0, 1, 4, 5))

    def missing_tasks(self, name: str) -> str:
        """ "" for a mean that is there, else "5 of 7 tasks"."""
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
