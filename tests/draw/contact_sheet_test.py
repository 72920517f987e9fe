import numpy as np
import pytest
from PIL import ImageFont

from vit_jax.draw import contact_sheet, tiles
from vit_jax.draw.contact_sheet import Cell


def cells(number, height=8, width=8, **fields):
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (number, height, width, 3), dtype=np.uint8)
    return [Cell(image, [("cat", "")], "#1", **fields) for image in images]


@pytest.mark.parametrize("size", [(8, 8), (32, 48)])
@pytest.mark.parametrize("number", [1, 5])
def test_pixels_are_those_given(size, number):
    given = cells(number, *size)
    sheet = np.asarray(contact_sheet.draw(["title"], given))
    places = contact_sheet.grid(given, 1)
    assert min(places.width, places.height) >= contact_sheet.SMALLEST_SIDE
    for i, cell in enumerate(given):
        left, top = places.corner(i)
        drawn = sheet[top : top + places.height, left : left + places.width]
        assert (drawn == cell.image.repeat(places.scale, 0).repeat(places.scale, 1)).all()


def test_long_texts_are_cut_and_their_endings_stay():
    font = ImageFont.truetype(tiles.FONT_FILE, 14)
    cut = contact_sheet.one_line("Vulpes macrotis, the kit fox", font, 130, ": 0.700")
    assert cut.startswith("Vulpes")
    assert cut.endswith("…: 0.700")
    assert font.getlength(cut) <= 130
    assert contact_sheet.one_line("fox", font, 130, ": 0.700") == "fox: 0.700"
