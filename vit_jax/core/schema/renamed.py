"""Earlier names of fields and metrics.

They are accepted in files of earlier versions, and refused in what users write today.
"""

import contextlib
import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from vit_jax.core.errors import UserError
from vit_jax.core.schema import entry_points

FIELDS = {  # config fields, "section.field"; "model" also applies to checkpoints
    "loss.whole_labels": "loss.binarize_targets",
    "model.heads": "model.num_heads",
    "optim.accumulate": "optim.grad_accum_steps",
}
# Fields of a section that every kind had, by the kind that reads them. The first is the default.
EVAL_FIELDS = {
    "classification": ("label_threshold", "calibration"),
    "pictures": ("pictures",),
    "frozen": (
        "train_split", "train_per_class", "shots", "seeds", "l2", "neighbours", "temperature",
        "probe_l2", "probe_lr", "probe_epochs",
    ),
}  # fmt: skip
SCHEDULE_FIELDS: Mapping[str, Collection[str]] = {
    "linear": (),
    "rsqrt": ("rsqrt_timescale_steps",),
    "exponential": ("exponential_factor", "exponential_epochs"),
    "cosine": (),
    "constant": (),
}
LOSS_FIELDS = {"softmax": (), "sigmoid": ("binarize_targets",)}
METRICS = {"train/shrinkage": "train/effective_weight_decay"}


def fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """A nested config, perhaps of an earlier version, with the current names."""
    renamed = dict(config)
    if isinstance(evals := renamed.get("evals"), Mapping):
        renamed["evals"] = {
            name: _drop_other_kinds(values, "evaluators", EVAL_FIELDS)
            for name, values in evals.items()
        }
    for before, now in FIELDS.items():
        section, name = before.split(".")
        values = renamed.get(section)
        if isinstance(values, Mapping) and name in values:
            new_name = now.removeprefix(f"{section}.")
            renamed[section] = {new_name if k == name else k: v for k, v in values.items()}
    if "optim" in renamed:
        renamed["optim"] = _drop_other_kinds(
            renamed["optim"], "schedules", SCHEDULE_FIELDS, by="schedule"
        )
    if "loss" in renamed:
        renamed["loss"] = _drop_other_kinds(renamed["loss"], "losses", LOSS_FIELDS)
    return renamed


def _drop_other_kinds(
    values: Any, group: str, fields: Mapping[str, Collection[str]], by: str = "kind"
) -> Any:
    """A section whose class follows from its kind, without the fields of other kinds."""
    if not isinstance(values, Mapping):
        return values
    kind = values.get(by, next(iter(fields)))
    others = {name for other, names in fields.items() if other != kind for name in names}
    if kind not in fields:  # that of a plug-in, which may have such a field of its own
        cls = None
        with contextlib.suppress(UserError):  # for one that cannot be imported any more
            cls = entry_points.find(group, kind)
        others -= {field.name for field in dataclasses.fields(cls)} if cls else set()
    return {name: value for name, value in values.items() if name not in others}


def metrics(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Values by metric, perhaps of an earlier version, with the current names."""
    return {METRICS.get(name, name): value for name, value in numbers.items()}
