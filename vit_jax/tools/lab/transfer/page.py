"""results.html: a transfer on one page, with the protocol that its number comes from."""

from collections.abc import Mapping, Sequence
from html import escape

from etils import epath

from vit_jax.core.files import write_text
from vit_jax.draw import html_page, scales, svg
from vit_jax.draw.scales import Axes, Scale
from vit_jax.store import workdir
from vit_jax.tools.lab.sweep import progress
from vit_jax.tools.lab.sweep.progress import PointProgress
from vit_jax.tools.lab.sweep.results import SEED
from vit_jax.tools.lab.transfer import results
from vit_jax.tools.lab.transfer.choice import Candidate, Choice
from vit_jax.tools.lab.transfer.results import TransferResult

FILE = "results.html"
WIDTH, HEIGHT, LEFT, TOP, BOTTOM, RIGHT = 760, 260, 56, 16, 36, 16  # in CSS pixels
MOST_LABELS = 12  # below the chart
CSS = """
.result { font-size: 30px; font-weight: 650; margin: 16px 0 0; }
figure { max-width: 800px; margin-bottom: 16px; overflow-x: auto; }
figure svg { min-width: 520px; }
.sentences td { white-space: normal; }
.dot { fill: var(--colour0); } .chosen { fill: var(--colour1); }
tr.chosen th, tr.chosen td { font-weight: 700; }
"""


def write(
    folder: epath.Path, result: TransferResult, rows: Mapping[str, Sequence[PointProgress]]
) -> None:
    """Writes the page; `rows`: of each sweep. UserError if it cannot."""
    try:
        write_text(folder / FILE, page(folder.name, result, rows))
    except OSError as error:
        raise workdir.unwritable(folder, error) from error


def page(name: str, result: TransferResult, rows: Mapping[str, Sequence[PointProgress]]) -> str:
    """The text of the file."""
    score = result.score
    shown = results.spell(result.key, score) if score else "no training has finished"
    body = [
        f'<main><p class="result">{escape(shown)}</p>',
        f'<p class="aside">{escape(result.key)}, on {escape(_tested(result))}</p>',
        _failures(result),
        "<h2>How it was measured</h2>",
        _table(["", ""], [[what, escape(text)] for what, text in _protocol(result)]),
        *_choice(result.choice),
        "<h2>The test</h2>",
        _test(result),
        "<h2>All trainings</h2>",
        _trainings(result, rows),
        "</main>",
    ]
    return html_page.document(
        escape(name),
        body,
        program="transfer",
        subtitle=escape(f"{result.checkpoint} · {result.config}"),
        css=CSS,
        policy="",
    )


def _tested(result: TransferResult) -> str:
    tested = result.tested
    counted = result.test.get(f"{tested['name']}/examples")
    images = f", {counted.mean:,.0f} images" if counted else ""
    return f"{tested['split']} of {tested['data_dir'] or tested['source']}{images}"


def _protocol(result: TransferResult) -> list[tuple[str, str]]:
    splits, choice = result.splits, result.choice
    done = len(result.score.values) if result.score else 0
    final = f"{done} of {result.seeds} trainings on {splits.final}, each with a seed of its own"
    steps = [("weights", result.weights or "none: from scratch")]
    if choice.chosen:
        steps += [
            ("tried on", splits.choose),
            ("chosen by", f"{choice.key} on {splits.held_out}, after the last step"),
        ]
    else:
        steps.append(("chosen", "nothing: the values are the config's own"))
    return [
        *steps,
        ("result", final),
        (
            "test",
            f"{_tested(result)}, scored after the last step of each of them, and never before",
        ),
        ("±", "standard deviation over seeds (n - 1), not of the test's size"),
    ]


def _failures(result: TransferResult) -> str:
    items = "".join(f"<li>{escape(failure)}</li>" for failure in result.failures)
    return f"<h2>Did not finish</h2><ul>{items}</ul>" if items else ""


def _choice(choice: Choice) -> list[str]:
    """The candidates as a chart and a table."""
    if not choice.chosen:
        return []
    fields = list(choice.chosen)
    rows, classes = [], []
    for each in choice.candidates:
        score = progress.shown_number(choice.key, each.score)
        why = "; ".join(each.failures)
        rows.append([*(escape(each.values[field]) for field in fields), score, escape(why)])
        classes.append("chosen" if each.values == choice.chosen else "")
    notes = "".join(f'<p class="aside notes">{escape(text)}</p>' for text in choice.at_edge)
    head = [*map(escape, fields), escape(choice.key), ""]
    return ["<h2>The choice</h2>", _chart(choice), _table(head, rows, classes), notes]


def _chart(choice: Choice) -> str:
    """A dot for each seed of each candidate, in the lists' order."""
    every = [score for each in choice.candidates for score in each.scores.values()]
    up = scales.fit(every, start=None, end=None, log=False)
    number = len(choice.candidates)
    axes = Axes(Scale(-0.5, number - 0.5), up, LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM)
    percent = choice.key.endswith("accuracy")
    parts = svg.grid(axes, up.ticks(5), percent=percent)
    dots = []
    for place, each in enumerate(choice.candidates):
        if number <= MOST_LABELS:
            parts.append(svg.label_below(axes, axes.x(place), escape(_short(each))))
        which = "chosen" if each.values == choice.chosen else "dot"
        for seed, score in each.scores.items():
            x, y = axes.at((place, score))
            what = f"{_short(each)}, seed {seed}: {progress.shown_number(choice.key, score)}"
            dots.append(
                f'<circle class="{which}" cx="{x:.1f}" cy="{y:.1f}" r="4">'
                f"<title>{escape(what)}</title></circle>"
            )
    picture = svg.picture(f"{choice.key} of the candidates", (WIDTH, HEIGHT), axes, parts, dots)
    caption = f"<figcaption><b>{escape(choice.key)}</b></figcaption>"
    return f"<figure>{caption}{picture}</figure>"


def _short(candidate: Candidate) -> str:
    return ", ".join(candidate.values.values())


def _test(result: TransferResult) -> str:
    seeds = list(dict.fromkeys(s for numbers in result.test.values() for s in numbers.values))
    rows = []
    for name, numbers in result.scores.items():
        shown = [progress.shown_number(name, numbers.values.get(seed)) for seed in seeds]
        rows.append([escape(name), *shown, escape(results.spell(name, numbers))])
    return _table(["", *(f"seed {escape(seed)}" for seed in seeds), "mean ± std"], rows)


def _trainings(result: TransferResult, rows: Mapping[str, Sequence[PointProgress]]) -> str:
    fields = [*result.choice.chosen, SEED]
    cells = []
    for sweep, each in rows.items():
        for row in each:
            values = row.point.common | row.point.values
            shown = [escape(values[field]) for field in fields]
            place = escape(f"{sweep}/{row.point.name}")
            cells.append([place, *shown, row.state, f"{row.step:,}"])
    return _table(["", *map(escape, fields), "state", "steps"], cells)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], classes: Sequence[str] = ()) -> str:
    """A table of cells that are escaped; the first of a row is its head."""
    tops = "".join(f"<th>{cell}</th>" for cell in head)
    lines = []
    for number, (first, *others) in enumerate(rows):
        kind = f' class="{classes[number]}"' if classes and classes[number] else ""
        cells = "".join(f"<td>{cell}</td>" for cell in others)
        lines.append(f'<tr{kind}><th scope="row">{first}</th>{cells}</tr>')
    titles = f"<thead><tr>{tops}</tr></thead>\n" if any(head) else ""
    body = f"{titles}<tbody>\n{html_page.lines(lines)}\n</tbody>"
    kind = "" if any(head) else ' class="sentences"'
    return f'<div class="wide"><table{kind}>{body}</table></div>'
