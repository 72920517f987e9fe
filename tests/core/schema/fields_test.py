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


@dataclasses.dataclass(frozen=True)
class Plain:
    """Fields without a declaration, as a plug-in may have, and tuples of numbers."""

    power: float = 1.0
    either: int | str | None = None
    rates: tuple[float, ...] = fields.field((0.5,), bounds=(0, 1))
    sizes: tuple[int, ...] = (1,)


def test_plain_fields_and_tuples_are_of_their_type():
    fields.check(Plain())
    fields.check(Plain(2, "two", (0.1, 0), (3, 4)))
    assert fields.trained(Plain) == () and fields.without_a_place(Plain(2), "timm") == []
    for wrong in ({"power": "1"}, {"rates": (0.1, "x")}, {"rates": (2.0,)}, {"sizes": (0.5,)}):
        with pytest.raises(UserError, match=f"model.{next(iter(wrong))}="):
            fields.check(Plain(**wrong))


@pytest.mark.parametrize(
    ("field", "value"), [("rate", "0.5"), ("rate", math.nan), ("rate", True), ("number", 2.5)]
)
def test_an_optional_field_is_none_or_of_its_type(field, value):
    fields.check(Section())
    fields.check(Section(rate=0.5, number=2))
    with pytest.raises(UserError) as raised:
        fields.check(Section(**{field: value}))
    assert f"model.{field}=" in str(raised.value) and "of type" in str(raised.value)
