"""Distortions of big_vision's archived RandAugment that draw nothing, on an image that is given.

What their thresholds and shifts became under NumPy 1, numbers modulo 256, is done by hand: NumPy 2
refuses them.
"""

import json
import sys
from types import ModuleType

import numpy as np

# Of tensorflow_addons only what moves pixels would be taken, which is not asked for here.
addons = ModuleType("tensorflow_addons")
addons.image = ModuleType("image")
sys.modules["tensorflow_addons"] = addons

from big_vision.pp.archive import autoaugment  # noqa: E402

inputs = np.load(sys.argv[1])
arguments = autoaugment.level_to_arg(autoaugment.HParams(cutout_const=40, translate_const=100))
IN_8_BITS = {
    "Solarize": lambda threshold: threshold % 256,
    "Posterize": lambda bits: 8 - (8 - bits) % 256,
}
found = {}
for name in json.loads(str(inputs["names"])):
    for magnitude in inputs["magnitudes"].tolist():
        args = arguments[name](float(magnitude))
        args = [IN_8_BITS.get(name, lambda x: x)(x) for x in args]
        result = autoaugment.NAME_TO_FUNC[name](inputs["pixels"], *args)
        found[f"{name} {magnitude}"] = np.asarray(result)
np.savez(sys.argv[2], **found)
