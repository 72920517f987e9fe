"""results.html: a transfer on one page, with the protocol that its number comes from."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from vit_jax.draw import charts, html_page
from vit_jax.tools.lab.sweep import progress
from vit_jax.tools.lab.sweep.grid import SEED
from vit_jax.tools.lab.sweep.progress import PointProgress
from vit_jax.tools.lab.transfer import results
from vit_jax.tools.lab.transfer.results import Candidate, Choice, TransferResult

FILE = "results.html"
SIZE, BOX = (760, 260), (56, 744, 16, 224)  # of the chart
MOST_LABELS = 12  # below the chart


def page(name: str, result: TransferResult, rows: Mapping[str, Sequence[PointProgress]]) -> str:
    """The text of the file; `rows`: of each sweep."""
    choice, score = result.choice, result.score
    seeds = list(dict.fromkeys(s for numbers in result.test.values() for s in numbers.values))
    fields = [*choice.chosen, SEED]
    return html_page.render(
        "tools/lab/transfer/page.html",
        title=name,
        subtitle=f"{result.checkpoint} · {result.config}",
        result=result,
        score=results.spell(result.key, score) if score else "no training has finished",
        tested=_tested(result),
        protocol=_protocol(result),
        choice=choice,
        chart=_chart(choice) if choice.chosen else "",
        candidates_head=[*choice.chosen, choice.key, ""],
        candidates=[
            [
                *(each.values[field] for field in choice.chosen),
                progress.shown_number(choice.key, each.score),
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
                name,
                *(progress.shown_number(name, numbers.values.get(seed)) for seed in seeds),
                results.spell(name, numbers),
            ]
            for name, numbers in result.scores.items()
        ],
        trainings_head=["", *fields, "state", "steps"],
        trainings=[
            _training(f"{sweep}/{row.point.name}", row, fields)
            for sweep, each in rows.items()
            for row in each
        ],
    )


def _training(place: str, row: PointProgress, fields: Sequence[str]) -> list[str]:
    values = row.point.common | row.point.values
    return [place, *(values[field] for field in fields), row.state, f"{row.step:,}"]


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


@charts.styled
def _chart(choice: Choice) -> Markup:
    """A dot for each seed of each candidate, in the lists' order."""
    scores = [score for each in choice.candidates for score in each.scores.values()]
    number = len(choice.candidates)
    axes = charts.blank(SIZE, BOX)
    percent = choice.key.endswith("accuracy")
    charts.scale(axes.yaxis, *charts.limits(scores), about=5, percent=percent)
    axes.set_xlim(-0.5, number - 0.5)
    named = choice.candidates if number <= MOST_LABELS else ()
    axes.set_xticks(range(len(named)), [_short(each) for each in named])
    hints = {}
    for place, each in enumerate(choice.candidates):
        colour = charts.RUNS[each.values == choice.chosen]
        for seed, score in each.scores.items():
            name = f"dot{place}of{seed}"
            axes.plot(place, score, "o", ms=8, mew=0, color=colour, gid=name)
            hint = f"{_short(each)}, seed {seed}: {progress.shown_number(choice.key, score)}"
            hints[name] = (Markup('class="dot"'), hint)
    return charts.svg(axes, f"{choice.key} of the candidates", hints)


def _short(candidate: Candidate) -> str:
    return ", ".join(candidate.values.values())
