"""Initial distributions of a ViT's parameters, as stated by the recipes' own code."""

import math

import numpy as np
import pytest
from flax import nnx

from vit_jax import models
from vit_jax.core import pytrees

pytestmark = pytest.mark.usefixtures("quick_compilation")
D, M, P = 64, 256, 8
FIELDS = {"depth": 3, "width": D, "mlp_dim": M, "num_heads": 4, "pre_logits": True, "registers": 4}
# Four standard deviations of the standard deviation estimated from n normal draws.
SAMPLING = lambda n: 4 / math.sqrt(2 * n)
PEAK = 6.0  # standard deviations: 50,000 normal draws have none beyond it


def normal(deviation):
    return deviation, PEAK * deviation


def uniform(bound):
    return bound / math.sqrt(3), bound


def lecun(inputs):
    """Flax's and JAX's: the normal is truncated at two deviations before it is scaled."""
    return 1 / math.sqrt(inputs), 2 / math.sqrt(inputs) / 0.8796


def xavier(inputs, outputs):
    return uniform(math.sqrt(6 / (inputs + outputs)))


ZERO = (0.0, 0.0)
VIT = {
    "patches/kernel": lecun(P * P * 3),
    "patches/bias": ZERO,
    "cls": ZERO,
    "registers": normal(0.02),
    "positions/embedding": normal(0.02),
    "blocks/block/attention/qkv/kernel": xavier(D, D),
    "blocks/block/attention/qkv/bias": ZERO,
    "blocks/block/attention/out/kernel": xavier(D, D),
    "blocks/block/attention/out/bias": ZERO,
    "blocks/block/mlp/fc1/kernel": xavier(D, M),
    "blocks/block/mlp/fc1/bias": normal(1e-6),
    "blocks/block/mlp/fc2/kernel": xavier(M, D),
    "blocks/block/mlp/fc2/bias": normal(1e-6),
    "pre_logits/kernel": lecun(D),
    "pre_logits/bias": ZERO,
    "head/kernel": ZERO,
    "head/bias": ZERO,
}
TABLE = dict.fromkeys(("positions/embedding", "registers"), normal(1 / math.sqrt(D)))
# (standard deviation, largest absolute value) of each parameter except the norms'.
STARTS = {
    "vit": VIT,
    "big_vision": VIT | TABLE,
    "deit": {name: ZERO if name.endswith("bias") else normal(0.02) for name in VIT}
    | {name: uniform(1 / math.sqrt(P * P * 3)) for name in ("patches/kernel", "patches/bias")},
    "vit_lite": {name: ZERO if name.endswith("bias") else normal(0.02) for name in VIT}
    | dict.fromkeys(("positions/embedding", "registers"), normal(0.2))
    | {
        "patches/kernel": normal(math.sqrt(2 / (P * P * 3))),
        "patches/bias": uniform(1 / math.sqrt(P * P * 3)),
        "cls": ZERO,
    },
    "spt": {name: ZERO if name.endswith("bias") else normal(math.sqrt(1 / D)) for name in VIT}
    | dict.fromkeys(("positions/embedding", "registers", "cls"), normal(1.0))
    | {
        "patches/kernel": normal(math.sqrt(2 / (P * P * 3 + D))),
        "blocks/block/attention/qkv/kernel": normal(math.sqrt(2 / (D + 3 * D))),
        "blocks/block/mlp/fc1/kernel": normal(math.sqrt(2 / (D + M))),
        "blocks/block/mlp/fc2/kernel": normal(math.sqrt(2 / (D + M))),
        "head/kernel": normal(math.sqrt(2 / (D + 50))),
    },
}


def started(initialization, **fields):
    model = models.create(
        "ViT-Ti/8",
        num_classes=50,
        image_size=96,
        rngs=nnx.Rngs(0),
        initialization=initialization,
        **(FIELDS | fields),
    )
    params = pytrees.flatten(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    return {name: np.asarray(p) for name, p in params.items()}


@pytest.mark.parametrize("initialization", STARTS)
def test_every_parameter_starts_as_its_code_says(initialization):
    params = started(initialization)
    norms = {name: p for name, p in params.items() if "norm" in name}
    assert params.keys() - norms.keys() == STARTS[initialization].keys()
    for name, p in norms.items():
        assert (p == float(name.endswith("scale"))).all(), name
    assert {p.dtype for p in params.values()} == {np.dtype(np.float32)}
    for name, (deviation, largest) in STARTS[initialization].items():
        values = params[name].astype(np.float64)
        assert np.abs(values).max() <= largest * (1 + 1e-6), name
        if deviation:
            assert abs(np.sqrt((values**2).mean()) / deviation - 1) < SAMPLING(values.size), name
            # A uniform distribution approaches its bound; a normal one exceeds two deviations.
            assert np.abs(values).max() > min(0.9 * largest, 2 * deviation), name


def test_hybrids_start_their_projection_and_blocks_alike():
    shapes = {"depth": 1, "width": D, "mlp_dim": M, "num_heads": 4, "root_width": 32}
    models_ = {
        name: models.create(
            "R+ViT-Ti/16", num_classes=5, image_size=32, rngs=nnx.Rngs(0),
            initialization=name, **shapes,
        )
        for name in ("vit", "deit")
    }  # fmt: skip
    inputs = 8 * 8 * 32
    kernel = models_["deit"].patches.projection.kernel[...]
    assert abs(kernel).max() == pytest.approx(1 / math.sqrt(inputs), rel=1e-3)
    assert models_["deit"].head.kernel[...].std() == pytest.approx(0.02, rel=0.2)
    assert not models_["vit"].head.kernel[...].any()


def test_specifications_written_before_the_field_get_the_default():
    fields = models.info("ViT-Ti/16").spec
    fields.pop("initialization")
    assert models.spec_of_json("ViT-Ti/16", fields).initialization == "vit"
