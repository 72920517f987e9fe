"""Config files: finding, executing and reading them.

The repository's configs/ and cards/ are found in a clone, and in an installation without one:
setup.py copies the two folders from the top of the repository into the wheel, as _shipped/.
"""

import contextlib
import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping
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
    """
    file_name, module, arg = _module(path)
    with _using(file_name):
        values = module.get_config(arg)
    if not isinstance(values, Mapping | ml_collections.ConfigDict):
        raise errors.UserError(f"get_config of {file_name} returns {errors.safe_repr(values)}.")
    return values


def adapt(path: str) -> Callable[[Any], Mapping[str, Any]] | None:
    """The file's adapt(arg, ...), for its argument; None if it has none. Raises as `read`."""
    _, module, arg = _module(path)
    return functools.partial(module.adapt, arg) if hasattr(module, "adapt") else None


def _module(path: str) -> tuple[str, ModuleType, str | None]:
    drive, rest = os.path.splitdrive(path)  # Windows's "C:" has a colon, too
    name, _, arg = rest.partition(":")
    file_name = f"{drive}{name}"
    file = _find(file_name)
    spec = importlib.util.spec_from_file_location(f"config_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise errors.UserError(f"--config={file_name} is not a Python file (.py).")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    with _using(file_name):
        spec.loader.exec_module(module)
    return file_name, module, arg or None


@contextlib.contextmanager
def _using(file_name: str) -> Iterator[None]:
    try:
        yield
    except (Exception, SystemExit) as error:
        rule = f"cannot be used, by get_config(arg=None): {type(error).__name__}: {error}"
        if isinstance(error, ValueError):  # how a config file refuses an argument
            rule = f"says: {error}"
        raise errors.UserError(rule, field=file_name) from error


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
    there = [] if file.name == str(file) else [str(p) for p in file.parent.glob("*.py")]
    near = errors.nearest(str(file), there) or errors.nearest(file.stem, config_names())
    raise errors.UserError(f"is neither a file nor a name. {near}", field="--config", value=name)


def in_wheel() -> bool:
    """Returns whether this is a wheel's installation; otherwise it is a clone."""
    return (_PACKAGE / _IN_WHEEL).is_dir()


def folder(name: str) -> Path:
    """The folder of CONFIGS or CARDS."""
    return (_PACKAGE / _IN_WHEEL if in_wheel() else _PACKAGE.parent) / name


def config_names() -> list[str]:
    """Names of the shipped configs, as --config takes them; sorted."""
    return sorted(file.stem for file in folder(CONFIGS).glob("*.py"))
