"""Earlier names of fields and metrics.

They are accepted in files of earlier versions, and refused in what users write today.
"""

from collections.abc import Mapping
from typing import Any

FIELDS = {  # config fields, "section.field"; "model" also applies to checkpoints
    "loss.whole_labels": "loss.binarize_targets",
    "model.heads": "model.num_heads",
    "optim.accumulate": "optim.grad_accum_steps",
}
METRICS = {"train/shrinkage": "train/effective_weight_decay"}


def fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """A nested config, perhaps of an earlier version, with the current names."""
    renamed = dict(config)
    for before, now in FIELDS.items():
        section, name = before.split(".")
        values = renamed.get(section)
        if isinstance(values, Mapping) and name in values:
            new_name = now.removeprefix(f"{section}.")
            renamed[section] = {new_name if k == name else k: v for k, v in values.items()}
    return renamed


def metrics(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Values by metric, perhaps of an earlier version, with the current names."""
    return {METRICS.get(name, name): value for name, value in numbers.items()}
