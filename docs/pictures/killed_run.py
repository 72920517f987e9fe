"""A run that was killed again and again, on one that was not: losses, and what each start computed.

Drawn from the rows of `python -m benchmarks.killed_run`; dark where its reader's pages are, legible
on a phone.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "benchmarks" / "results" / "killed_run.csv"
FILE = ROOT / "docs" / "killed_run.svg"

HUES = ("blue", "amber", "green", "purple")
WIDTH, LEFT, RIGHT, LANE = 360, 52, 350, 20  # of a phone; wider screens show it larger
TOP, BOTTOM, MOST_LOSS = 6, 172, 2.9  # edges of the curves, and the loss at the upper one
STYLE = """
text { font: 12px system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; fill: #1d2030; }
.quiet { fill: #555b70; } .same { font-weight: 600; }
.grid { stroke: #d9dce6; } .straight { stroke: #c3c8d6; stroke-width: 7; }
path, line { fill: none; stroke-width: 1.3; stroke-linejoin: round; stroke-linecap: round; }
.kill { stroke: #c0392b; stroke-width: 2.2; }
.blue { stroke: #2f5fc4; } .amber { stroke: #b06f00; } .green { stroke: #1f7f43; }
.purple { stroke: #8a3ea8; } .bar { stroke-width: 7; stroke-linecap: butt; }
.again { opacity: 0.4; }
@media (prefers-color-scheme: dark) {
  text { fill: #eceef6; } .quiet { fill: #b3b8ca; }
  .grid { stroke: #3a3f52; } .straight { stroke: #555c74; } .kill { stroke: #ff7b6b; }
  .blue { stroke: #8fb0ff; } .amber { stroke: #f0b354; } .green { stroke: #74d494; }
  .purple { stroke: #d39be8; }
}
"""


Scale = Callable[[float], float]


class Start(NamedTuple):
    """One start of a run: the losses that it logged, by step, and how it ended."""

    resumed_from: int
    losses: dict[int, float]
    killed: bool
    checksum: str
    arrays: str


def facts() -> tuple[Start, list[Start]]:
    """The uninterrupted run, and the starts of the other."""
    with ROWS.open() as file:
        rows = list(csv.DictReader(file))
    starts = [
        Start(
            int(row["resumed_from"]),
            {int(k): float(v) for k, v in (pair.split(":") for pair in row["losses"].split())},
            row["ended"] == "killed",
            row["checksum"],
            row["arrays"],
        )
        for row in rows
    ]
    return starts[0], starts[1:]


def draw(straight: Start, starts: Sequence[Start]) -> str:
    """The text of the SVG file."""
    last = max(straight.losses)
    x = lambda step: round(LEFT + (RIGHT - LEFT) * step / last, 1)
    y = lambda loss: round(BOTTOM - (BOTTOM - TOP) * loss / MOST_LOSS, 1)
    bottom = BOTTOM + 14 + LANE * len(starts)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * 4 // 3}" '
        f'viewBox="0 0 {WIDTH} {bottom + 22}" role="img">',
        "<title>The losses of a killed run lie on those of one that was never stopped</title>",
        f"<style>{STYLE}</style>",
        *_curves(straight, starts, x, y),
        *_legend(len(starts) - 1),
        *_lanes(straight, starts, x),
        _text(LEFT - 14, bottom + 15, "step", "quiet", "end"),
    ]
    for step in range(0, last + 1, 200):
        parts.append(_text(x(step), bottom + 15, f"{step:,}", "quiet", "middle"))
    return "\n".join([*parts, "</svg>\n"])


def _curves(straight: Start, starts: Sequence[Start], x: Scale, y: Scale) -> Iterator[str]:
    for loss in (0, 1, 2):
        yield f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y(loss)}" y2="{y(loss)}"/>'
        yield _text(LEFT - 8, y(loss) + 4, str(loss), "quiet", "end")
    yield _text(LEFT - 8, y(1.5) + 4, "loss", "quiet", "end")
    for style, start in (("straight", straight), *zip(HUES, starts, strict=True)):
        points = "L".join(f"{x(step)} {y(loss)}" for step, loss in start.losses.items())
        yield f'<path class="{style}" d="M{points}"/>'
    for start in starts:
        if start.killed:
            yield _cross(x(max(start.losses)), y(start.losses[max(start.losses)]))


def _lanes(straight: Start, starts: Sequence[Start], x: Scale) -> Iterator[str]:
    """A bar for each start; steps that were computed before are pale."""
    computed = x(0)
    for number, (hue, start) in enumerate(zip(HUES, starts, strict=True)):
        middle = BOTTOM + 14 + LANE * (number + 0.5)
        begin, end = x(start.resumed_from), x(max(start.losses))
        yield _text(LEFT - 8, middle + 4, f"start {number + 1}", "quiet", "end")
        yield f'<path class="bar again {hue}" d="M{begin} {middle}H{computed}"/>'
        yield f'<path class="bar {hue}" d="M{computed} {middle}H{end}"/>'
        computed = end
        if start.killed:
            yield _cross(end, middle)
            words, style = f"killed after {max(start.losses):,}", ""
        elif start.checksum == straight.checksum:
            words, style = f"all {start.arrays} arrays: the same bits", "same"
        else:
            words, style = "other bits than the other run's", "same"
        right = end < 0.65 * WIDTH
        yield _text(
            end + 9 if right else begin - 9, middle + 4, words, style, "" if right else "end"
        )


def _legend(kills: int) -> list[str]:
    left = 142
    return [
        f'<path class="straight" d="M{left} 16h22"/>',
        _text(left + 32, 20, "a run that was never stopped"),
        *(
            f'<path class="{hue}" d="M{left + 5.5 * i} 37h5.5"/>'
            for i, hue in enumerate(HUES[: kills + 1])
        ),
        _text(left + 32, 41, f"the same run, killed {kills} times"),
    ]


def _cross(x: float, y: float) -> str:
    return f'<path class="kill" d="M{x - 4:g} {y - 4:g}l8 8m0 -8l-8 8"/>'


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "") -> str:
    place = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text class="{style}" x="{x:g}" y="{y:g}"{place}>{text}</text>'


def write() -> None:
    """Writes the file."""
    FILE.write_text(draw(*facts()))
