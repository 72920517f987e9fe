"""How trainings are run side by side: flags that sweep, transfer and vtab share."""

from typing import Any, NamedTuple

from absl import flags


class SweepOptions(NamedTuple):
    """The values of the command's flags of these names."""

    name: str = "sweep"
    slots: int = 1
    launcher: str | None = None
    follow: bool = True
    metric: str | None = None
    retry_failed: bool = False
    slot_variable: str | None = None
    max_restarts: int = 5


_SHARED = ("slots", "launcher", "slot_variable", "max_restarts", "retry_failed")


def define_flags() -> None:
    """Defines the flags that all three commands have."""
    default = SweepOptions()
    flags.DEFINE_integer(
        "slots", default.slots, "So many trainings, or launchers, at a time.", lower_bound=1
    )
    flags.DEFINE_string(
        "launcher",
        default.launcher,
        'Gives each training to this command, such as "scripts/slurm.sh --nodes=1 --gpus=8", as a '
        "job of its own; default: trains on this machine.",
    )
    flags.DEFINE_string(
        "slot_variable",
        default.slot_variable,
        "Environment variable that gets the slot's number, from 0: CUDA_VISIBLE_DEVICES gives each "
        "training a GPU of its own.",
    )
    flags.DEFINE_integer(
        "max_restarts",
        default.max_restarts,
        "So often in a row a training is started again without a newer checkpoint.",
        lower_bound=0,
    )
    flags.DEFINE_bool(
        "retry_failed", default.retry_failed, "Start trainings that have failed again."
    )


def of_flags(name: str) -> SweepOptions:
    """The options that the shared flags say."""
    given: dict[str, Any] = {field: flags.FLAGS[field].value for field in _SHARED}
    return SweepOptions(name, **given)
