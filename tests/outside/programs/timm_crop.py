"""Windows of timm's RandomResizedCropAndInterpolation, from the first checkout on the path.

It imports torchvision, but draws a window from an image's size only. The stand-in here has empty
classes and takes a pair (width, height) for an image.
"""

import importlib.util
import os
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np


class Empty(ModuleType):
    """A module with a class of any name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


functional = ModuleType("torchvision.transforms.functional")
functional.get_image_size = lambda size: size
functional.InterpolationMode = type(
    "InterpolationMode",
    (),
    {n: i for i, n in enumerate(("NEAREST", "BILINEAR", "BICUBIC", "BOX", "HAMMING", "LANCZOS"))},
)
torchvision, transforms = ModuleType("torchvision"), Empty("torchvision.transforms")
torchvision.transforms, transforms.functional = transforms, functional
sys.modules |= {m.__name__: m for m in (torchvision, transforms, functional)}

file = Path(os.environ["PYTHONPATH"].split(os.pathsep)[0]) / "timm/data/transforms.py"
spec = importlib.util.spec_from_file_location("timm_transforms", file)
timm_transforms = importlib.util.module_from_spec(spec)
spec.loader.exec_module(timm_transforms)
get_params = timm_transforms.RandomResizedCropAndInterpolation.get_params

inputs = np.load(sys.argv[1])
windows = []
for height, width, area_min in inputs["cases"]:
    random.seed(0)
    size, areas = (int(width), int(height)), (float(area_min), 1.0)
    windows.append([get_params(size, areas, (3 / 4, 4 / 3)) for _ in range(int(inputs["number"]))])
np.savez(sys.argv[2], windows=np.array(windows, np.int16))
