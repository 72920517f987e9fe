"""Which folders of a checkpoints folder are a step's, by their names."""

import re

from etils import epath

# As they are written: "007", "²" and digits of other scripts are somebody else's folders.
_STEP = re.compile(r"0|[1-9][0-9]{0,17}")


def step_of(name: str) -> int | None:
    """ "1000" -> 1000; None: it is not the name of a step's folder."""
    return int(name) if _STEP.fullmatch(name) else None


def steps(directory: epath.PathLike) -> list[int]:
    """The steps that have a folder in a checkpoints folder, valid or not, in rising order."""
    folder = epath.Path(directory)
    if not folder.is_dir():
        return []
    found = (step_of(child.name) for child in folder.iterdir())
    return sorted(step for step in found if step is not None)
