"""Fits of curves by the authors' own estimators M1 to M4, set up as in their notebook.

Of each estimator and curve: the error on its held-out points, as their get_error computes it, the
objective, and the parameters.
"""

import importlib
import sys

import numpy as np

# scikit-learn looks whether pandas is there, and would take the stub for it.
sys.path = [path for path in sys.path if not path.endswith("stubs")]

inputs = dict(np.load(sys.argv[1]))
curves = [inputs[f"curve{number}"] for number in range(int(inputs["curves"]))]
OPTIONS = {"m4": {"err_inf": None, "err_0": 1.0, "update_err_0": True, "up_bound": 1.0}}
found = []
for name in ("m1", "m2", "m3", "m4"):
    module = importlib.import_module(f"revisiting_neural_scaling_laws.methods.{name}")
    for x, loss, is_fitted in curves:
        to_fit, held_out = is_fitted == 1, is_fitted == 0
        law = module.Estimator(
            dict(zip(x[to_fit], loss[to_fit], strict=True)), **OPTIONS.get(name, {})
        )
        law.estimate_scaling_params(verbose=0, max_iterations=10_000)
        predicted = np.array([law.predict_loss(each) for each in x[held_out]])
        error = np.sqrt(np.mean((np.log(predicted) - np.log(loss[held_out])) ** 2))
        found.append(
            [error, law._get_objt(), law.beta, law.c, law.err_inf, law.err_0, law.alpha, law.gamma]
        )
found = np.reshape(found, (4, len(curves), -1))
names = ("error", "objective", "beta", "c", "err_inf", "err_0", "alpha", "gamma")
np.savez(sys.argv[2], **{each: found[..., k] for k, each in enumerate(names)})
