"""Compares a run with the recorded one of its config: vit-jax verify --workdir DIR

A recipe card has the loss curves and final metrics of several seeds. The run may be in progress.
To record one: --record cards/NAME.json --config configs/....py --workdir A --workdir B --workdir C

Where others have published a curve of the recipe (cards/published), the run is shown beside it.
"""

import math
from collections.abc import Sequence

from absl import flags
from etils import epath

from vit_jax import config as configs
from vit_jax.core import command
from vit_jax.core.errors import UserError
from vit_jax.core.schema import config_file
from vit_jax.store.runs import RESERVED
from vit_jax.tools.verify import recipe_card
from vit_jax.tools.verify.recipe_card import Comparison, LoggedRun, PublishedCurve

MAX_SHOWN = 12  # numbers of a published curve

# Steadier than the loss where each batch is blended with another ratio.
ACCURACY = "train/accuracy"


def find_card(run: LoggedRun, folder: epath.Path) -> epath.Path:
    """The card of the run's config. UserError if there is none; it names the nearest."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise UserError(f"{folder} has no recipe card: give one by --card FILE.")
    cards = {file: recipe_card.read(file) for file in files}
    by_file = {
        file: recipe_card.differences(c.fields, c.fingerprint, run) for file, c in cards.items()
    }
    nearest, *others = sorted(files, key=lambda file: len(by_file[file]))
    if by_file[nearest]:
        more = f"\nOther cards: {', '.join(map(str, others))}" if others else ""
        raise UserError(
            f"No card in {folder} is of the config of {run.folder}. The nearest is {nearest}; "
            "there is the card, here the run:\n  " + "\n  ".join(by_file[nearest]) + more
        )
    return nearest


def find_published(run: LoggedRun, folder: epath.Path) -> PublishedCurve | None:
    """The published curve of the run's config, if there is one."""
    for file in sorted(folder.glob("*.json")):
        curve = recipe_card.read_published(file)
        fields = recipe_card.compared_fields(configs.load(str(folder.parent.parent / curve.config)))
        if not recipe_card.differences(fields, run.fingerprint, run):
            return curve
    return None


def show_published(run: LoggedRun, curve: PublishedCurve) -> None:
    """Prints the run beside the published curve."""
    section = run.fields["input"]
    steps_per_epoch = section["num_examples"] / section["batch_size"]
    points = recipe_card.compare_published(curve, run.rows, steps_per_epoch)
    print(f"curve    {curve.metric} of {curve.config}, by {curve.source}")
    if not points:
        print(f"         {run.folder} has no {curve.metric} yet to show beside it")
        return
    every = max(1, math.ceil(len(points) / MAX_SHOWN))
    print("epoch   published       found  difference")
    for point in [*points[every - 1 : -1 : every], points[-1]]:
        difference = point.ours - point.theirs
        print(f"{point.epoch:5g}  {point.theirs:10.4g}  {point.ours:10.4g}  {difference:+10.4f}")
    print("A single run was published: there is no range that this one should be in.")


def verify(run: LoggedRun, file: epath.Path) -> None:
    """Prints a table. UserError if the run is of another config, or leaves the expected ranges."""
    card = recipe_card.read(file)
    if different := recipe_card.differences(card.fields, card.fingerprint, run):
        raise _other_config(run, f"the config of {file}", "the card", different)
    compared = recipe_card.compare(card, run.rows)
    last, loss = max(run.rows, default=0), recipe_card.LOSS
    is_finished = last >= card.end
    missing = [metric for metric in card.curves if metric not in {c.metric for c in compared}]
    if not compared or (is_finished and loss in missing):
        nothing = f"no {loss}" if is_finished else "nothing yet"
        steps = card.curves[loss].steps
        raise UserError(
            f"{run.folder} has logged {nothing} to compare with {file}: its last step is {last}, "
            f"the card has losses at the steps {', '.join(map(str, steps[:3]))} ... {steps[-1]}. "
            f"{'Train anew' if is_finished else 'Let it go on'}, with log.every_steps as in the "
            "card's config."
        )
    seed, seeds = run.origin["seed"], [origin["seed"] for origin in card.runs]
    made = [
        f"jax {o['versions'].get('jax')}, {o['devices']['count']} x {o['devices']['kind']}"
        for o in (card.runs[0], run.origin)
    ]
    print(f"card     {file}: {card.config}, seeds {', '.join(map(str, seeds))}; {made[0]}")
    print(f"run      {run.folder}: seed {seed}, step {last:,} of {card.end:,}; {made[1]}")
    if seed in seeds:
        same = recipe_card.same_until(card, seed, run.rows)
        print(f"same     losses as the card's seed {seed}, all digits, up to step {same:,}")
    for line in _table(compared):
        print(line)
    if missing:
        print(f"missing  {', '.join(missing)}: not logged at the card's steps")
    outside = [c for c in compared if not c.is_within]
    if outside:
        first = outside[0]
        raise UserError(
            f"{run.folder} leaves the range of {file} at step {first.step:,}: {first.metric} "
            f"{_shown(first.value)}, expected {first.low:.4g} to {first.high:.4g}. "
            f"{len(outside)} of {len(compared)} numbers are outside."
        )
    end_of = "the finished run" if is_finished else "the run so far"
    print(f"within   all {len(compared)} numbers of {end_of} are in their ranges")


def record(runs: Sequence[LoggedRun], config_file: str, output: epath.Path) -> None:
    """Writes a card. UserError if the runs are not all of this config, or cannot be recorded."""
    fields = recipe_card.compared_fields(configs.load(config_file))
    for run in runs:
        if different := recipe_card.differences(fields, runs[0].fingerprint, run):
            raise _other_config(run, config_file, "the file", different)
    last = runs[0].rows[max(runs[0].rows)] if runs[0].rows else {}
    metrics = [name for name in last if name == ACCURACY or name.partition("/")[0] not in RESERVED]
    card = recipe_card.record(config_file, fields, runs, metrics)
    card.write(output)
    print(f"recorded {output}: {len(runs)} runs of {config_file}, {card.end:,} steps")


def _other_config(run: LoggedRun, config: str, there: str, different: list[str]) -> UserError:
    lines = "\n  ".join(different)
    return UserError(
        f"{run.folder} is not a run of {config}; there is {there}, here the run:\n  {lines}"
    )


def _table(compared: Sequence[Comparison]) -> list[str]:
    """A line for each metric: the number of its values within range, and the last one."""
    by_metric: dict[str, list[Comparison]] = {}
    for comparison in compared:
        by_metric.setdefault(comparison.metric, []).append(comparison)
    width = max(map(len, by_metric))
    lines = [f"{'':{width}}    within  last to step       found      lowest     highest"]
    for metric, each in by_metric.items():
        last, within = each[-1], sum(c.is_within for c in each)
        lines.append(
            f"{metric:{width}}  {within:>3} of {len(each):<2}  {last.step:>12,}  "
            f"{_shown(last.value):>10}  {last.low:>10.4g}  {last.high:>10.4g}"
        )
    return lines


def _shown(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


FLAGS = flags.FLAGS


def main(_: list[str]) -> None:
    """The command."""
    runs = [recipe_card.read_run(epath.Path(folder).expanduser()) for folder in FLAGS.workdir]
    if FLAGS.record:
        if not FLAGS.config or FLAGS.config_override:
            raise UserError(
                "--record needs --config, the file that the runs were started with, and takes no "
                "overrides: a card is of what a file says."
            )
        record(runs, FLAGS.config, epath.Path(FLAGS.record))
        return
    if len(runs) > 1:
        raise UserError(f"Give one --workdir, not {len(runs)}; several are for --record.")
    (run,) = runs
    cards = epath.Path(config_file.folder(config_file.CARDS))
    if not FLAGS.card and (curve := find_published(run, cards / "published")):
        show_published(run, curve)
        return
    verify(run, epath.Path(FLAGS.card) if FLAGS.card else find_card(run, cards))


if __name__ == "__main__":
    command.define_config(configs.fields, required=False)
    flags.DEFINE_multi_string("workdir", None, "Of the run; of several runs to record a card.")
    flags.DEFINE_string("card", None, "The card; default: that of the run's config in cards/.")
    flags.DEFINE_string("record", None, "Writes a card to this file instead.")
    flags.mark_flag_as_required("workdir")
    command.run(main)
