"""Every name trains at toy size on eight devices, sharded by the rules table."""

import dataclasses
import json

import numpy as np
import pytest

from vit_jax import models

# Relative to the largest of a run's three steps: a gradient that nearly vanishes has the rounding
# of its parts. float32: sums in another order. bfloat16: its three digits, through all layers.
AGREEMENT = {"float32": 2e-4, "bfloat16": 5e-3}
TOY = {"depth": 2, "width": 32, "mlp_dim": 64, "num_heads": 2, "units": (1, 2), "root_width": 32}
SMALL = {"width_coefficient": 0.25, "depth_coefficient": 0.3, "dropout": 0.2}  # an EfficientNet
STEPS = 3  # the head begins at zero, so only it has a gradient in the first step
# One of each kind; the others differ from it only in patch size.
KINDS = (
    "ViT-B/16", "R50+ViT-B/16", "R+ViT-Ti/16", "R50x1", "Axial-ViT-B/16", "AxialResNet-50",
    "EfficientNet-B0",
)  # fmt: skip

TRAIN = """
import json, sys
sys.path.insert(0, "tests/learning")
import jax
jax.config.update("jax_disable_most_optimizations", True)
from step_test import Trainer
from vit_jax import models
from vit_jax.core import pytrees

MESHES = {"1": {"data": 1}, "8": {"data": 2, "fsdp": 2, "tensor": 2}}
steps, runs = sys.argv[1:]
for name, toy, devices in json.loads(runs):
    side = models.info(name).stride
    if name.startswith("EfficientNet"):
        side *= 2  # batch norms over fewer positions make 2e-4 of float32's rounding
    trainer = Trainer(
        batch_size=8, model=name, toy=toy, size=(side, 2 * side), mesh=MESHES[devices]
    )
    rows = [trainer.step(trainer.batch(i)) for i in range(int(steps))]
    params = pytrees.flatten(trainer.state.params)
    outcome = {
        "numbers": [[float(row["train/" + n]) for row in rows] for n in ("loss", "grad_norm")],
        "divided": {n: [axis or "" for axis in x.sharding.spec] for n, x in params.items()},
    }
    print(json.dumps([name, devices, outcome]))
"""


def toy(name, **fields):
    """The toy's fields that this model has; one without stages drops them all."""
    own = models.spec(name)
    known = {f.name for f in dataclasses.fields(own)}
    small = SMALL if "width_coefficient" in known else {}
    fields = {k: v for k, v in (TOY | small | fields).items() if k in known}
    return fields | ({} if getattr(own, "units", True) else {"units": ()})


def one_of_each():
    """Names that differ at toy size; every other name equals one of them there."""
    # Except for the patch size.
    side = lambda name: {"patch_size": 16} if name.startswith(("ViT-", "Axial-ViT-")) else {}
    specs = {models.spec(n, **toy(n), **side(n)): n for n in (*models.available(), *KINDS)}
    return list(specs.values())


def outcomes(run_python, runs):
    """Losses, gradient norms and sharding of parameters, by (name, number of devices)."""
    done = run_python("-c", TRAIN, str(STEPS), json.dumps(runs), devices=8, timeout_secs=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return {(name, devices): outcome for name, devices, outcome in lines}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", AGREEMENT)
def test_models_train_on_eight_devices_as_on_one(run_python, dtype):
    """Every name in bfloat16, one of each kind in both dtypes."""
    # Batch norms over 16 positions make 3 % of the loss of bfloat16's rounding.
    exempt = {"EfficientNet-B0"} if dtype == "bfloat16" else set()
    compared = [name for name in KINDS if name not in exempt]
    names = {"1": compared, "8": one_of_each() if dtype == "bfloat16" else KINDS}
    assert set(KINDS) <= set(names["8"])
    runs = [(name, toy(name, dtype=dtype), n) for n in names for name in names[n]]
    results = outcomes(run_python, runs)
    for name in names["8"]:
        assert np.isfinite(results[name, "8"]["numbers"]).all(), name
    for name in compared:
        alone, together = (np.array(results[name, devices]["numbers"]) for devices in ("1", "8"))
        assert np.ptp(alone[0]) > 1e-4, name  # the loss has changed
        largest = alone.max(axis=1, keepdims=True)
        np.testing.assert_allclose(
            together / largest, alone / largest, rtol=0, atol=AGREEMENT[dtype], err_msg=name
        )
    divided = results["R50x1", "8"]["divided"]
    of_hybrid = results["R50+ViT-B/16", "8"]["divided"]
    unit = "resnet/stage2/rest/block"
    assert divided[f"{unit}/conv2/kernel"] == ["", "", "", "fsdp", "tensor"]
    assert divided[f"{unit}/conv3/kernel"] == ["", "", "", "tensor", "fsdp"]
    of_efficient = results["EfficientNet-B0", "8"]["divided"]
    assert of_efficient["stage6/rest/block/expand/kernel"] == ["", "fsdp", "tensor"]
    assert of_efficient["stage6/rest/block/norm2/running_mean"] == ["", "tensor"]
    assert of_hybrid[f"patches/{unit}/conv3/kernel"] == divided[f"{unit}/conv3/kernel"]
