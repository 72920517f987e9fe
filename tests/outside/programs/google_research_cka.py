"""CKA by the code of its authors, a Keras metric, computed in float64."""

import sys
from types import SimpleNamespace

import numpy as np
import tensorflow.compat.v2 as tf


class Metric:
    """What the metric needs of Keras 2: `add_weight`, whose first argument was the name."""

    def __init__(self):
        pass

    def add_weight(self, name, shape, initializer, dtype):
        return tf.Variable(tf.zeros(shape, dtype), name=name)


metrics, initializers = SimpleNamespace(Metric=Metric), SimpleNamespace(zeros=None)
tf.keras = SimpleNamespace(metrics=metrics, initializers=initializers)
from do_wide_and_deep_networks_learn_the_same_things import efficient_CKA  # noqa: E402

inputs = dict(np.load(sys.argv[1]))
one, other = ([inputs[f"{side}{i}"] for i in range(3)] for side in ("x", "y"))
within = efficient_CKA.MinibatchCKA(3, dtype=tf.float64)
between = efficient_CKA.MinibatchCKA(3, 3, across_models=True, dtype=tf.float64)
within.update_state(one)
between.update_state_across_models(one, other)
np.savez(sys.argv[2], within=within.result().numpy(), between=between.result().numpy())
