"""The drawing of docs/how_it_works.md: the lives of a batch, a step and a checkpoint.

It is as wide as a phone, and dark where its reader's pages are.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).parents[1] / "how_it_works.svg"


class Box(NamedTuple):
    """What happens, in two lines of up to 48 characters, and the file that does it."""

    name: str
    file: str
    first: str
    second: str


class Life(NamedTuple):
    """One column of the drawing."""

    title: str
    hue: str
    boxes: Sequence[Box]
    back: str  # what leads from its end to its beginning


LIVES = (
    Life(
        "A batch",
        "blue",
        (
            Box(
                "place",
                "data/streams.py",
                "slot k of the batch after s steps is position",
                "s x batch_size + k of an endless stream",
            ),
            Box(
                "example",
                "data/streams.py",
                "epoch = position // num_examples; a permutation",
                "by (seed, epoch) says which example it is",
            ),
            Box(
                "read",
                "data/reader.py",
                "each host reads the slots of its own devices",
                "alone, in threads, in this order",
            ),
            Box(
                "augment",
                "data/pipeline.py",
                "random numbers by (seed, epoch, example);",
                "a bad image gets weight 0, or ends the run",
            ),
            Box(
                "feed",
                "learning/feed.py",
                "copied to the devices two batches ahead,",
                "each row to the device that works on it",
            ),
        ),
        "",
    ),
    Life(
        "A step",
        "green",
        (
            Box(
                "mix",
                "learning/mixing.py",
                "pixels are normalised; mixup and CutMix draw",
                "by (seed, s)",
            ),
            Box(
                "gradients",
                "learning/step.py",
                "forward, loss and backward, in microbatches if",
                "asked for, summed over all devices",
            ),
            Box(
                "finite?",
                "learning/step.py",
                "if not, nothing changes from here on; the step",
                "is noted in the state, without waiting",
            ),
            Box(
                "update",
                "learning/optim/optimizers.py",
                "optimizer, parameters, EMA: now this is the",
                "state after s + 1 steps",
            ),
            Box(
                "row",
                "learning/loggers/__init__.py",
                "when a row, save or evaluation is due, the",
                "loop waits for the devices; else never",
            ),
        ),
        "next step",
    ),
    Life(
        "A checkpoint",
        "amber",
        (
            Box(
                "copy",
                "store/checkpoints.py",
                "the state leaves the devices; training goes on",
                "while the files are written",
            ),
            Box(
                "write",
                "store/checkpoint_dir.py",
                "into a folder of another name, with a checksum",
                "of each array and all that prediction needs",
            ),
            Box(
                "rename",
                "store/checkpoints.py",
                "complete, or not there; only then is the oldest",
                "one deleted",
            ),
            Box(
                "restore",
                "store/checkpoints.py",
                "checksums are compared; a damaged one is",
                "moved aside, and the one before it is used",
            ),
        ),
        "start again: the batch after s steps is the same",
    ),
)

WIDTH, EDGE, TOP = 360, 10, 6
TITLE, BOX, GAP = 34, 56, 12
STYLE = """
text { font: 12px system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; fill: #1d2030; }
.title { font-size: 17px; font-weight: 600; }
.name { font-size: 13px; font-weight: 600; }
.file { font: 10px ui-monospace, Menlo, Consolas, monospace; fill: #555b70; }
.back { font-size: 11px; fill: #555b70; }
rect { stroke-width: 1.2; }
.blue { fill: #e8eefb; stroke: #4a6fc3; } .green { fill: #e6f4e9; stroke: #3c8f55; }
.amber { fill: #fbf1dd; stroke: #b07a1e; }
path { fill: none; stroke: #6b7187; stroke-width: 1.4; }
.head { fill: #6b7187; stroke: none; }
@media (prefers-color-scheme: dark) {
  text { fill: #eceef6; } .file, .back { fill: #b3b8ca; }
  .blue { fill: #1f2b49; stroke: #7d9be0; } .green { fill: #1b3524; stroke: #6dbd86; }
  .amber { fill: #3b2e14; stroke: #d9a64a; }
  path { stroke: #a2a8bd; } .head { fill: #a2a8bd; }
}
"""


def draw() -> str:
    """The text of the SVG file."""
    parts, y = list[str](), TOP
    tops, bottom = list[int](), 0
    for number, life in enumerate(LIVES):
        parts.append(f'<text class="title" x="{EDGE}" y="{y + 22}">{life.title}</text>')
        y += TITLE
        tops.append(y)
        for i, box in enumerate(life.boxes):
            if i or number:
                parts.append(_arrow(WIDTH / 2 if i else WIDTH - 60, bottom, y))
            parts += _box(box, life.hue, y)
            bottom = y + BOX
            y += BOX + GAP
        if life.back:
            last = number == len(LIVES) - 1
            to = tops[0] if last else tops[-1]
            parts += _back(life.back, bottom, to, outer=last)
            y += 22
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img">',
            "<title>The lives of a batch, a step and a checkpoint</title>",
            f"<style>{STYLE}</style>",
            *parts,
            "</svg>\n",
        ]
    )


def _box(box: Box, hue: str, y: float) -> list[str]:
    left, right = EDGE + 14, WIDTH - EDGE
    return [
        f'<rect class="{hue}" x="{left}" y="{y}" width="{right - left}" height="{BOX}" rx="7"/>',
        f'<text class="name" x="{left + 9}" y="{y + 17}">{escape(box.name)}</text>',
        f'<text class="file" x="{right - 8}" y="{y + 16}" text-anchor="end">{box.file}</text>',
        *(
            f'<text x="{left + 9}" y="{y + 33 + 15 * i}">{escape(line)}</text>'
            for i, line in enumerate((box.first, box.second))
        ),
    ]


def _arrow(x: float, start: float, end: float) -> str:
    head = f'<path class="head" d="M{x - 4} {end - 6}h8l-4 6z"/>'
    return f'<path d="M{x} {start}V{end - 5}"/>{head}'


def _back(text: str, start: float, end: float, *, outer: bool) -> list[str]:
    """From below a box at `start`, along the left edge, to the box that begins at `end`."""
    x, left, into, below = 4 if outer else 14, EDGE + 14, end + BOX / 2, start + 14
    return [
        f'<path d="M{left + 60} {start}V{below}H{x}V{into}H{left - 5}"/>',
        f'<path class="head" d="M{left - 6} {into - 4}v8l6 -4z"/>',
        f'<text class="back" x="{left + 68}" y="{below + 4}">{escape(text)}</text>',
    ]


def write() -> None:
    """Writes the file."""
    FILE.write_text(draw())
