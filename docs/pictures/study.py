"""The two pictures of docs/study.md, from the results of its study."""

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vit_jax.tools.lab.study import page, results
from vit_jax.tools.lab.study.points import StudyPoint

FOLDER = Path(__file__).parents[1] / "study"
METRIC, LAW = "validation/accuracy", "M1"
PICTURES = tuple(FOLDER / f"{name}.png" for name in page.NOTES)


def _point(row: dict[str, str]) -> StudyPoint:
    cost: Any = SimpleNamespace(  # as in tools.lab.study.points.Cost
        family=row["family"],
        examples=int(row["examples"]),
        examples_seen=int(row["examples_seen"]),
        exaflops=float(row["exaflops"]),
        num_classes=100,
    )
    return StudyPoint({}, row["model"], cost, row["state"], {METRIC: float(row[METRIC])}, 1, 1)


def draw(file: Path) -> bytes:
    """The PNG file of one of PICTURES."""
    with (FOLDER / "results.csv").open(newline="") as lines:
        points = [_point(row) for row in csv.DictReader(lines)]
    result = results.analyse("", points, METRIC, LAW, ())
    return next(each.data for each in page.pictures(result) if each.name == file.stem)
