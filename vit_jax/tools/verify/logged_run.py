"""A run that is compared with others: its config, its data and its log."""

from typing import Any, NamedTuple

from etils import epath

from vit_jax import config as configs
from vit_jax.config import RunConfig
from vit_jax.store import runs, workdir

# Fields in which the runs of a card may differ, besides those that do not affect the numbers.
FREE_FIELDS = (*configs.FREE_FIELDS, "seed", "deterministic")


class LoggedRun(NamedTuple):
    """A run as its work directory records it.

    Attributes:
      fields: nested, those that a card has.
      origin: seed, time, versions, commit, devices.
      rows: numbers by step.
    """

    folder: epath.Path
    fields: dict[str, Any]
    fingerprint: dict[str, str]
    origin: dict[str, Any]
    rows: dict[int, dict[str, float | None]]


def read_run(folder: epath.Path) -> LoggedRun:
    """The run in a work directory. UserError if the folder is not one, or is damaged."""
    document = workdir.read_document(folder)
    logged = runs.rows_by_step(folder)
    with runs.damage_named(folder):
        config = configs.resolve(document["config"])
        started = document["runs"][-1]
        origin = {name: started[name] for name in ("time", "versions", "commit", "devices")}
        rows = {
            step: {name: None if x is None else float(x) for name, x in row.items()}
            for step, row in logged.items()
        }
    origin = {"seed": config.seed, **origin}
    return LoggedRun(folder, compared_fields(config), document["fingerprint"], origin, rows)


def compared_fields(config: RunConfig) -> dict[str, Any]:
    """Fields in which the runs of a card agree, nested."""
    fields = configs.to_dict(config)
    for name in FREE_FIELDS:
        *sections, last = name.split(".")
        nested = [fields]
        for part in sections:
            nested = [x for f in nested for x in (f.values() if part == "*" else [f[part]])]
        for section in nested:
            section.pop(last, None)  # not every method has a teacher
    return fields


def differences(fields: dict[str, Any], fingerprint: dict[str, str], run: LoggedRun) -> list[str]:
    """What differs, such as "optim.lr: 0.003 there, 0.001 here"; "there" is not the run."""
    # A field that was added after a card was recorded had its default.
    there = {"config": compared_fields(configs.resolve(fields)), "fingerprint": fingerprint}
    here = {"config": run.fields, "fingerprint": run.fingerprint}
    return list(workdir.differences(there, here).values())
