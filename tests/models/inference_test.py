"""How many images are computed at once, and in which dtype."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax import models
from vit_jax.models import inference

FLOAT32 = np.array([[0.25, 0.75], [0.5, 0.5]], np.float32)
FIELDS = {"depth": 2, "width": 16, "mlp_dim": 16, "num_heads": 2, "image_size": 16}


def computing(values, secs=0.0):
    def compute():
        time.sleep(secs)
        return jnp.asarray(values)

    return compute


@pytest.mark.parametrize(
    ("bfloat16", "secs", "expected", "said"),
    [
        (FLOAT32 + 0.005, 0.0, "bfloat16", "differ by 5.0e-03"),
        (FLOAT32 + 0.005, 0.1, "float32", "differ by 5.0e-03"),
        (FLOAT32 + 0.02, 0.0, "float32", "differ by 2.0e-02"),
        (FLOAT32 * np.nan, 0.0, "float32", "differ by nan"),
    ],
    ids=["faster", "slower", "too far", "not finite"],
)
def test_the_faster_dtype_that_is_close_to_float32(capsys, bfloat16, secs, expected, said):
    timed = {"float32": computing(FLOAT32, 0.03), "bfloat16": computing(bfloat16, secs)}
    assert inference.fastest_dtype(timed, "weights.npz") == expected
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"--dtype=auto: weights.npz computes in {expected}; 2 images took ")
    assert line.endswith(f"{said}, of which 0.01 is the limit.")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_models_of_each_dtype_share_their_parameters(dtype):
    trained = models.create("ViT-Ti/8", num_classes=3, rngs=nnx.Rngs(0), dtype=dtype, **FIELDS)
    assert inference.in_dtypes(trained, None).popitem()[1] is trained
    made = inference.in_dtypes(trained, "auto")
    assert [model.spec.dtype for model in made.values()] == list(made) == ["float32", "bfloat16"]
    arrays = lambda model: jax.tree.leaves(nnx.state(model, nnx.Param))
    for model in made.values():
        assert all(x is y for x, y in zip(arrays(model), arrays(trained), strict=True))
    images = jax.random.normal(jax.random.key(0), (2, 16, 16, 3))
    np.testing.assert_array_equal(made[dtype](images), trained(images))
    assert list(inference.in_dtypes(trained, "bfloat16")) == ["bfloat16"]
