"""CKA by the code of its authors: of all examples at once, and in minibatches.

The first is in a notebook's cell, the second a Keras metric, computed in float64.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import tensorflow.compat.v2 as tf

CHECKOUT = Path(sys.path[1])  # behind this program's folder


class Metric:
    """What the metric needs of Keras 2: `add_weight`, whose first argument was the name."""

    def __init__(self):
        pass

    def add_weight(self, name, shape, initializer, dtype):
        return tf.Variable(tf.zeros(shape, dtype), name=name)


metrics, initializers = SimpleNamespace(Metric=Metric), SimpleNamespace(zeros=None)
tf.keras = SimpleNamespace(metrics=metrics, initializers=initializers)
from do_wide_and_deep_networks_learn_the_same_things import efficient_CKA  # noqa: E402

notebook = json.loads((CHECKOUT / "representation_similarity/Demo.ipynb").read_text())
(cell,) = (
    source for source in ("".join(cell["source"]) for cell in notebook["cells"])
    if "def feature_space_linear_cka" in source
)  # fmt: skip
demo: dict = {}
exec(cell, demo)

inputs = dict(np.load(sys.argv[1]))
one, other = ([inputs[f"{side}{i}"] for i in range(3)] for side in ("x", "y"))
linear = [[demo["feature_space_linear_cka"](x, y) for y in other] for x in one]

within = efficient_CKA.MinibatchCKA(3, dtype=tf.float64)
between = efficient_CKA.MinibatchCKA(3, 3, across_models=True, dtype=tf.float64)
for start in range(0, len(one[0]), int(inputs["batch_size"])):
    part = slice(start, start + int(inputs["batch_size"]))
    within.update_state([x[part] for x in one])
    between.update_state_across_models([x[part] for x in one], [y[part] for y in other])
np.savez(
    sys.argv[2],
    linear=np.array(linear),
    within=within.result().numpy(),
    between=between.result().numpy(),
)
