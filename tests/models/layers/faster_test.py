from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.core.axes import Target
from vit_jax.models.layers import faster
from vit_jax.models.layers.kernels.choice import KERNELS

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("form", [*faster.TABLE.values(), *KERNELS.values()], ids=lambda f: f.row)
def test_each_form_names_where_its_gain_stands_and_its_test(form):
    page = form.row.partition("#")[0].partition(":")[0]
    assert (ROOT / page).exists() or (ROOT / "benchmarks" / page).exists()
    assert (ROOT / form.test).exists()


@pytest.mark.parametrize("shape", [(4,), (2, 4)])
def test_a_bias_on_a_gpu_is_the_plain_sum_and_has_its_gradient(shape, monkeypatch):
    """Only one of several axes is kept out of the product before it."""
    y, bias = jnp.ones((3, 2, 4)), jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape)
    monkeypatch.setattr(faster, "target", lambda: Target("gpu", "NVIDIA H200"))
    add = faster.replacing("bias", jnp.add)
    np.testing.assert_array_equal(add(y, bias), y + bias)
    np.testing.assert_array_equal(
        jax.grad(lambda b: (add(y, b) ** 2).sum())(bias),
        jax.grad(lambda b: ((y + b) ** 2).sum())(bias),
    )
    assert ("optimization_barrier" in str(jax.make_jaxpr(add)(y, bias))) == (len(shape) > 1)
    monkeypatch.undo()
    assert faster.replacing("bias", jnp.add) is jnp.add
