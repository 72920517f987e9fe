import pytest

from benchmarks.attention import parsed
from tests.messages import refused


def test_a_shape_is_read():
    assert parsed("197x16x64x8") == (8, 197, 16, 64)


@pytest.mark.parametrize("text", ["", "197x16x64", "197x16x64x0", "197*16*64*8"])
def test_anything_else_is_refused(text):
    with refused():
        parsed(text)
