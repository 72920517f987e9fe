import pytest

from tests.messages import refused
from vit_jax.core import opstring


def test_names_and_literals():
    text = "decode | inception_crop((224, 192), area_min=0.1)|flip_lr"
    decode, crop, flip = opstring.parse(text, field="preprocess")
    assert (decode.name, flip.name) == ("decode", "flip_lr")
    assert crop.args == ((224, 192),)
    assert crop.kwargs == {"area_min": 0.1}
    assert crop.argument(0, "size") == (224, 192)
    assert crop.argument(1, "area_min") == 0.1


@pytest.mark.parametrize(
    "text", ["", "decode||flip_lr", "resize(x)", "a.b(1)", "resize(open('f'))"]
)
def test_text_that_is_not_an_op_is_refused(text):
    with refused("input.preprocess"):
        opstring.parse(text, field="input.preprocess")


def test_an_argument_given_twice_is_refused():
    with refused("size=8", "size=9"):
        opstring.parse("decode|resize(size=8, size=9)", field="preprocess")
