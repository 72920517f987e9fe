"""A stand-in for torchvision where it is missing: timm imports it but its models never call it."""

import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any


class AnyClass(type):
    """A metaclass: attributes of any name, equal to that name."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class Absent(ModuleType):
    """A module with a class of any name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return AnyClass(name, (), {})


NAMES = ("", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".datasets")
if importlib.util.find_spec("torchvision") is None:
    for name in NAMES:
        module = Absent(f"torchvision{name}")
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
        module.__path__ = []
        sys.modules[module.__name__] = module
    sys.modules["torchvision"].transforms = sys.modules["torchvision.transforms"]
    sys.modules["torchvision.transforms"].functional = sys.modules[
        "torchvision.transforms.functional"
    ]
