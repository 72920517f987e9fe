"""The repository's configs and recipe cards, in a clone and in an installation without one.

setup.py copies the two folders from the top of the repository into the wheel, as _shipped/.
"""

from pathlib import Path

import vit_jax

CONFIGS, CARDS = "configs", "cards"
_IN_WHEEL = "_shipped"


def in_wheel() -> bool:
    """Whether this is a wheel's installation; otherwise it is a clone."""
    return (Path(vit_jax.__file__).parent / _IN_WHEEL).is_dir()


def folder(name: str) -> Path:
    """The folder of CONFIGS or CARDS."""
    package = Path(vit_jax.__file__).parent
    return (package / _IN_WHEEL if in_wheel() else package.parent) / name


def config_names() -> list[str]:
    """What --config takes for the file of that name, without .py; sorted."""
    return sorted(file.stem for file in folder(CONFIGS).glob("*.py"))
