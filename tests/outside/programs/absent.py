"""A stand-in for torchvision where it is missing: timm imports it but its models never call it."""

import importlib.machinery
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


INSTALLED = []
try:
    import torchvision  # noqa: F401, only to see whether it works
except (ImportError, RuntimeError):
    names = ("", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".datasets")
    for name in names:
        module = Absent(f"torchvision{name}")
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
        module.__path__ = []
        sys.modules[module.__name__] = module
        INSTALLED.append(module.__name__)
    sys.modules["torchvision"].transforms = sys.modules["torchvision.transforms"]
    sys.modules["torchvision.transforms"].functional = sys.modules[
        "torchvision.transforms.functional"
    ]
