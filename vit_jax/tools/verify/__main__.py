"""Compares a run with the recorded one of its config: vit-jax verify --workdir DIR

A recipe card has the loss curves and final metrics of several seeds. The run may be in progress.
To record one: --record cards/NAME.json --config configs/....py --workdir A --workdir B --workdir C
"""

from collections.abc import Sequence

from absl import flags
from etils import epath

from vit_jax import config as configs
from vit_jax.core import command
from vit_jax.core.errors import UserError
from vit_jax.core.schema import config_file
from vit_jax.core.screen import aligned
from vit_jax.store.metrics import evaluation
from vit_jax.tools.verify import recipe_card
from vit_jax.tools.verify.recipe_card import Comparison, LoggedRun

# Steadier than the loss where each batch is blended with another ratio.
ACCURACY = "train/accuracy"


def find_card(run: LoggedRun, folder: epath.Path) -> epath.Path:
    """The card of the run's config; without one the error names the nearest."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise UserError("has no recipe card.", field=str(folder), cure="Give one by --card.")
    cards = (recipe_card.read(file) for file in files)
    different = [recipe_card.differences(card.fields, card.fingerprint, run) for card in cards]
    fewest, nearest = min(zip(different, files, strict=True), key=lambda pair: len(pair[0]))
    _refuse(run, f"a card in {folder}. The nearest is {nearest}", fewest)
    return nearest


def verify(run: LoggedRun, file: epath.Path) -> None:
    """Compares a run with a card, and prints a table."""
    card = recipe_card.read(file)
    different = recipe_card.differences(card.fields, card.fingerprint, run)
    _refuse(run, f"the config of {file}", different)
    compared = recipe_card.compare(card, run.rows)
    last, loss = max(run.rows, default=0), recipe_card.LOSS
    is_finished = last >= card.end
    missing = [metric for metric in card.curves if metric not in {c.metric for c in compared}]
    if not compared or (is_finished and loss in missing):
        steps = ", ".join(map(str, card.curves[loss].steps[:3]))
        rule = f"has no {loss} up to its last step, {last}; {file} has those at {steps} ..."
        raise UserError(rule, field=str(run.folder), cure="See log.every_steps.")
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
    print(*_table(compared), sep="\n")
    if missing:
        print(f"missing  {', '.join(missing)}: not logged at the card's steps")
    outside = [c for c in compared if not c.is_within]
    if outside:
        first = outside[0]
        where = f"at step {first.step:,}: {first.metric} {_shown(first.value)}"
        rule = f"leaves the range of {file} {where}, not {first.low:.4g} to {first.high:.4g}."
        cure = f"{len(outside)} of {len(compared)} numbers are outside."
        raise UserError(rule, field=str(run.folder), cure=cure)
    end_of = "the finished run" if is_finished else "the run so far"
    print(f"within   all {len(compared)} numbers of {end_of} are in their ranges")


def record(runs: Sequence[LoggedRun], config_file: str, output: epath.Path) -> None:
    """Writes a card of runs that are all of this config."""
    fields = recipe_card.compared_fields(configs.load(config_file))
    for run in runs:
        _refuse(run, config_file, recipe_card.differences(fields, runs[0].fingerprint, run))
    last = runs[0].rows[max(runs[0].rows)] if runs[0].rows else {}
    metrics = [name for name in last if name == ACCURACY or evaluation(name)]
    card = recipe_card.record(config_file, fields, runs, metrics)
    card.write(output)
    print(f"recorded {output}: {len(runs)} runs of {config_file}, {card.end:,} steps")


def _refuse(run: LoggedRun, config: str, different: list[str]) -> None:
    if different:
        lines = "\n  ".join(different)
        rule = f"is not a run of {config}, which has (there; the run: here):\n  {lines}"
        raise UserError(rule, field=str(run.folder))


def _table(compared: Sequence[Comparison]) -> list[str]:
    """A line for each metric: the number of its values within range, and the last one."""
    rows = []
    for metric in dict.fromkeys(comparison.metric for comparison in compared):
        each = [comparison for comparison in compared if comparison.metric == metric]
        last, within = each[-1], f"{sum(c.is_within for c in each)} of {len(each)}"
        ends = [f"{last.low:.4g}", f"{last.high:.4g}"]
        rows.append([metric, within, f"{last.step:,}", _shown(last.value), *ends])
    head = ["", "within", "last to step", "found", "lowest", "highest"]
    return aligned(head, rows, left={0})


def _shown(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


FLAGS = flags.FLAGS


def main(_: list[str]) -> None:
    without = not FLAGS.config or FLAGS.config_override
    command.refuse_flags("record", when=without, rule="needs --config, without overrides.")
    several = not FLAGS.record and len(FLAGS.workdir) > 1
    command.refuse_flags("workdir", when=several, rule="is given several times without --record.")
    runs = [recipe_card.read_run(epath.Path(folder)) for folder in FLAGS.workdir]
    if FLAGS.record:
        record(runs, FLAGS.config, epath.Path(FLAGS.record))
        return
    (run,) = runs
    cards = epath.Path(config_file.folder(config_file.CARDS))
    verify(run, epath.Path(FLAGS.card) if FLAGS.card else find_card(run, cards))


if __name__ == "__main__":
    command.define_config(configs.fields, required=False)
    flags.DEFINE_multi_string("workdir", None, "Of the run; may be repeated for --record.")
    flags.DEFINE_string("card", None, "Recipe card; default: that of the run's config in cards/.")
    flags.DEFINE_string("record", None, "File to write a new card to, instead of comparing.")
    flags.mark_flag_as_required("workdir")
    command.run(main)
