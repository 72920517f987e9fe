"""big_vision's few-shot accuracies, by its own evaluator, on given features, in float64.

It computes in float32, whose rounding decides a few of 2,000 examples otherwise.
"""

import sys
from types import SimpleNamespace

import jax
import numpy as np
from big_vision.evaluators import fewshot_lsr

jax.config.update("jax_enable_x64", True)
inputs = dict(np.load(sys.argv[1]))
train, test = ((inputs[f"{part}_x"], inputs[f"{part}_y"]) for part in ("train", "test"))
accuracies = []
for l2 in inputs["l2"]:
    # Its constructor compiles a model; the method needs these alone.
    evaluator = SimpleNamespace(
        _repr={"data": (*train, *test, int(inputs["num_classes"]))},
        shots=inputs["shots"].tolist(),
        l2_reg=float(l2),
    )
    compute = fewshot_lsr.Evaluator.compute_fewshot_metrics
    found = [compute(evaluator, None, seed, "data", "", "") for seed in range(inputs["seeds"])]
    accuracies.append([[float(jax.device_get(each[n])) for n in evaluator.shots] for each in found])
np.savez(sys.argv[2], accuracies=np.array(accuracies))
