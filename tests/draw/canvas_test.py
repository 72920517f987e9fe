import numpy as np
from PIL import ImageFont

from vit_jax.draw import canvas
from vit_jax.draw.canvas import Canvas
from vit_jax.draw.scales import Axes, Scale

RED = (255, 0, 0)


def pixels(paper):
    return np.asarray(paper.finished())


def test_places_are_pixels_of_the_finished_picture():
    paper = Canvas(40, 30)
    paper.rectangle((10, 5), (20, 15), "red", "red")
    picture = pixels(paper)
    assert picture.shape == (30, 40, 3)
    assert np.abs(picture[7:13, 12:18].astype(int) - RED).max() < 10
    assert picture[:4].min() > 245 and picture[:, 23:].min() > 245


def test_a_dot_has_an_outline():
    paper = Canvas(20, 20)
    paper.dot((10, 10), 5, "white", "red")
    picture = pixels(paper)
    assert (picture[10, 10] == 255).all()
    assert picture[10, 5, 1] < 200 and picture[5, 10, 1] < 200


def test_grid_lines_are_at_their_values():
    axes = Axes(Scale(0, 1), Scale(0, 10), left=40, right=90, top=10, bottom=50)
    paper = Canvas(100, 60)
    paper.grid(axes, [0, 5], line="red", ink="black")
    is_red = (pixels(paper)[:, 70, 1] < 200).nonzero()[0]
    assert set(is_red) <= {29, 30, 31, 49, 50, 51} and {30, 50} <= set(is_red)


def test_long_texts_are_cut_and_their_endings_stay():
    font = ImageFont.load_default(14)
    cut = canvas.cut("Vulpes macrotis, the kit fox", font, 100, ": 0.700")
    assert cut.startswith("Vulpes")
    assert cut.endswith("…: 0.700")
    assert font.getlength(cut) <= 100
    assert canvas.cut("fox", font, 100, ": 0.700") == "fox: 0.700"
