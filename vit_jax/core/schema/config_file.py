"""Config files: finding, executing and reading them."""

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_collections

import vit_jax
from vit_jax.core import errors


def read(path: str) -> Mapping[str, Any]:
    """The result of the file's get_config(arg); path: "configs/x.py" or "configs/x.py:arg".

    Raises UserError for a file that is missing, is not Python, refuses `arg`, or fails.
    """
    file_name, _, arg = path.partition(":")
    file = Path(file_name)
    if not file.is_file():
        raise errors.UserError(_missing(file))
    spec = importlib.util.spec_from_file_location(f"config_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise errors.UserError(f"--config={file_name} is not a Python file (.py).")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    try:
        spec.loader.exec_module(module)
        values = module.get_config(arg or None)
    except ValueError as error:  # how a config file refuses an argument
        raise errors.UserError(f"{file_name}: {error}") from error
    except (Exception, SystemExit) as error:
        raise errors.UserError(
            f"{file_name} cannot be used; it needs a function get_config(arg=None) that returns a "
            f"ConfigDict. {type(error).__name__}: {error}"
        ) from error
    if not isinstance(values, Mapping | ml_collections.ConfigDict):
        raise errors.UserError(
            f"get_config of {file_name} returns {values!r}; it has to return a ConfigDict."
        )
    return values


def _missing(file: Path) -> str:
    """The reason why there is no such file, and where config files are."""
    if not str(file).strip("."):
        return "--config is empty: give a file, such as configs/vit_digits.py in a clone."
    there = [str(p) for p in file.parent.glob("*.py")]
    if there:
        what = "is a folder" if file.is_dir() else "is not there"
        return f"No config file {file}: it {what}. {errors.nearest(str(file), there)}"
    said = f"No config file {file}: {file.parent.absolute()} has none"
    of_clone = Path(vit_jax.__file__).parents[1] / "configs"
    if (of_clone / file.name).is_file():
        return f"{said}. Did you mean {str(of_clone / file.name)!r}?"
    if of_clone.is_dir():
        names = [path.name for path in of_clone.glob("*.py")]
        return f"{said}; {of_clone} has. {errors.nearest(file.name, names)}"
    return (
        f"{said}. The files in configs/ come with a clone of the repository, not with the package: "
        "run the command in a clone, give the whole path of a file in one, or write your own "
        "(docs/config.md there)."
    )
