import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.nn.norm import NORMS, norm
from vit_jax.nn.precision import FLOAT32

ROUNDING = 1e-5  # float32 of numbers of about 1


@pytest.mark.parametrize("kind", NORMS)
def test_norms(kind):
    layer = norm(kind, 8, "width", epsilon=0.1, precision=FLOAT32, rngs=nnx.Rngs(0))
    assert (getattr(layer, "bias", None) is not None) == (kind == "layer")
    assert layer.scale.get_metadata()["axes"] == ("width",)
    layer.scale[...] = jnp.arange(8.0)
    x = np.asarray(jax.random.normal(jax.random.key(0), (3, 8))) + 1
    centred = x - (0 if kind == "rms" else x.mean(-1, keepdims=True))
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 0.1) * np.arange(8)
    np.testing.assert_allclose(layer(x), expected, atol=ROUNDING)
