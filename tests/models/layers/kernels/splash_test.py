"""JAX's kernel as Pallas interprets it on a CPU."""

import pytest

from tests.models.layers.kernels.fused_test import plain
from tests.models.layers.kernels.xla_test import ROUNDING, assert_close, outputs_and_gradients
from vit_jax.models.layers.kernels import splash

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize(
    ("dtype", "tokens", "head_size"), [("float32", 128, 8), ("float32", 5, 80), ("bfloat16", 9, 8)]
)
def test_equals_the_plain_program(dtype, tokens, head_size):
    of = lambda f: outputs_and_gradients(f, dtype, tokens, 2, head_size)
    assert_close(of(splash.attend), of(plain), ROUNDING[dtype])


def test_blocks_add_up(monkeypatch):
    monkeypatch.setattr(splash, "BLOCKS", (128,))
    of = lambda f: outputs_and_gradients(f, "float32", 150)
    assert_close(of(splash.attend), of(plain), ROUNDING["float32"])
