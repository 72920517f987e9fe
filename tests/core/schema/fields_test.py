"""Declared fields: values of another type are refused."""

import dataclasses
import math

import pytest

from vit_jax.core.errors import UserError
from vit_jax.core.schema import fields


@dataclasses.dataclass(frozen=True)
class Section:
    """Fields that may be None."""

    rate: float | None = fields.field(None, "a number", bounds=(0, 1))
    number: int | None = fields.field(None, "a whole number", bounds=(1, 8))


@pytest.mark.parametrize(
    ("field", "value"), [("rate", "0.5"), ("rate", math.nan), ("rate", True), ("number", 2.5)]
)
def test_an_optional_field_is_none_or_of_its_type(field, value):
    fields.check(Section())
    fields.check(Section(rate=0.5, number=2))
    with pytest.raises(UserError) as raised:
        fields.check(Section(**{field: value}))
    assert f"model.{field}=" in str(raised.value) and "of type" in str(raised.value)
