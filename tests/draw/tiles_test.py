import warnings

import pytest

from vit_jax.draw.tiles import ABSENT, CUT, fit, width_in


@pytest.mark.parametrize("lines", [1, 2, 3])
@pytest.mark.parametrize("width", [0.05, 1.0])
@pytest.mark.parametrize(
    "text",
    ["Hungarian pointer, vizsla, Magyar vizsla", "n01514668_10054.JPEG" * 4, "W" * 99, "a", ""],
)
def test_every_line_fits(text, width, lines):
    shown = fit(text, width, 8.0, lines=lines)
    assert shown.count("\n") < lines
    for line in shown.split("\n"):
        assert width_in(line, 8.0) <= max(width, width_in("W" + CUT, 8.0))
    letters = shown.replace("\n", "").replace(" ", "")
    if not letters.endswith(CUT):
        assert letters == text.replace(" ", "")


def test_short_text_stays_and_long_text_breaks_between_words():
    assert fit("tabby cat", 2, 8) == "tabby cat"
    assert (
        fit("tabby, tabby cat, Felis catus", 0.7, 8, lines=3) == "tabby,\ntabby cat,\nFelis catus"
    )
    assert fit("abc " * 40, 1, 8).endswith(CUT)


def test_what_the_font_lacks_is_a_square_and_warns_not():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit("漢字 a\nb\tc\x00", 2, 8) == f"{ABSENT}{ABSENT} a b c"
