"""Config files: finding, executing and reading them.

The repository's configs/ and cards/ are found in a clone, and in an installation without one:
setup.py copies the two folders from the top of the repository into the wheel, as _shipped/.
"""

import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_collections

from vit_jax.core import errors

CONFIGS, CARDS = "configs", "cards"
_IN_WHEEL = "_shipped"
_PACKAGE = Path(__file__).parents[2]


def read(path: str) -> Mapping[str, Any]:
    """The result of a file's get_config(arg); path: "configs/x.py" or "configs/x.py:arg".

    A path that is not there may be the name of a config in configs/, in a clone and in a wheel: "x"
    or "x:arg"; or configs/x.py of the repository, where there is no such folder.

    Raises UserError for a file that is missing, is not Python, refuses `arg`, or fails.
    """
    file_name, module, arg = _module(path)
    try:
        values = module.get_config(arg)
    except ValueError as error:  # how a config file refuses an argument
        raise errors.UserError(f"{file_name}: {error}") from error
    except (Exception, SystemExit) as error:
        raise _unusable(file_name, error) from error
    if not isinstance(values, Mapping | ml_collections.ConfigDict):
        raise errors.UserError(f"get_config of {file_name} returns {errors.safe_repr(values)}.")
    return values


def adapt(path: str) -> Callable[[Any], Mapping[str, Any]] | None:
    """The file's adapt(arg, ...), for its argument; None if it has none. Raises as `read`."""
    _, module, arg = _module(path)
    return functools.partial(module.adapt, arg) if hasattr(module, "adapt") else None


def _module(path: str) -> tuple[str, ModuleType, str | None]:
    """(name of the file, the module, the argument) of "configs/x.py:arg"."""
    if "://" in path:
        raise errors.UserError(
            f"--config={path}: configs are read from local disks: copy it there."
        )
    drive, rest = os.path.splitdrive(path)  # Windows's "C:" has a colon, too
    name, _, arg = rest.partition(":")
    file_name = f"{drive}{name}"
    file = _find(file_name)
    spec = importlib.util.spec_from_file_location(f"config_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise errors.UserError(f"--config={file_name} is not a Python file (.py).")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    try:
        spec.loader.exec_module(module)
    except ValueError as error:
        raise errors.UserError(f"{file_name}: {error}") from error
    except (Exception, SystemExit) as error:
        raise _unusable(file_name, error) from error
    return file_name, module, arg or None


def _unusable(file_name: str, error: BaseException) -> errors.UserError:
    return errors.UserError(
        f"{file_name} cannot be used; it needs a function get_config(arg=None) that returns a "
        f"ConfigDict. {type(error).__name__}: {error}"
    )


def _find(name: str) -> Path:
    """The file of that path; else the shipped config of that name, "vit_digits".

    Where no folder configs/ is there, it is that of the repository, as the pages write it.
    """
    file = Path(name)
    if file.is_file():
        return file
    if file.parent == Path(CONFIGS) and file.suffix == ".py" and not file.parent.exists():
        name = file.stem
    if name in config_names():
        return folder(CONFIGS) / f"{name}.py"
    raise errors.UserError(_missing(file))


def _missing(file: Path) -> str:
    """The reason why there is no such file, and the nearest that there is."""
    if not str(file).strip("."):
        return "--config is empty: give a name, such as vit_digits, or a file."
    there = [str(p) for p in file.parent.glob("*.py")]
    names = config_names()
    if file.name == str(file) and file.suffix != ".py" and not file.is_dir():
        return (
            f"No config {file}: it is neither a file nor a config of this package. "
            f"{errors.nearest(str(file), names)}"
        )
    if there:
        what = "is a folder" if file.is_dir() else "is not there"
        return f"No config file {file}: it {what}. {errors.nearest(str(file), there)}"
    return (
        f"No config file {file}: {file.parent.absolute()} has none. Configs of this package are "
        f"found by name, without a folder. {errors.nearest(file.stem, names)}"
    )


def in_wheel() -> bool:
    """Returns whether this is a wheel's installation; otherwise it is a clone."""
    return (_PACKAGE / _IN_WHEEL).is_dir()


def folder(name: str) -> Path:
    """The folder of CONFIGS or CARDS."""
    return (_PACKAGE / _IN_WHEEL if in_wheel() else _PACKAGE.parent) / name


def config_names() -> list[str]:
    """Names of the shipped configs, as --config takes them; sorted."""
    return sorted(file.stem for file in folder(CONFIGS).glob("*.py"))
