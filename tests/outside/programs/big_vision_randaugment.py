"""Distortions of big_vision's archived RandAugment that draw nothing, on a given image.

Their thresholds and shifts wrapped modulo 256 under NumPy 1, done by hand here: NumPy 2 refuses.
"""

import json
import sys
from types import ModuleType

import numpy as np

# Only ops that move pixels use tensorflow_addons; none is requested here.
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
outputs = {}
for name in json.loads(str(inputs["names"])):
    for magnitude in inputs["magnitudes"].tolist():
        args = arguments[name](float(magnitude))
        args = [IN_8_BITS.get(name, lambda x: x)(x) for x in args]
        result = autoaugment.NAME_TO_FUNC[name](inputs["pixels"], *args)
        outputs[f"{name} {magnitude}"] = np.asarray(result)
np.savez(sys.argv[2], **outputs)
