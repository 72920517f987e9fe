"""Names of the steps' folders in a checkpoints folder."""

import re

from etils import epath

# Exactly as they are written: "007", "²" and digits of other scripts are not steps' folders.
_STEP = re.compile(r"0|[1-9][0-9]{0,17}")


def step_of(name: str) -> int | None:
    """The step of a folder's name, "1000" -> 1000; None: not the name of a step's folder."""
    return int(name) if _STEP.fullmatch(name) else None


def steps(directory: epath.PathLike) -> list[int]:
    """The steps that have a folder in a checkpoints folder, valid or not, in ascending order."""
    folder = epath.Path(directory)
    if not folder.is_dir():
        return []
    found = (step_of(child.name) for child in folder.iterdir())
    return sorted(step for step in found if step is not None)
