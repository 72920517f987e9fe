"""What the tests of figures ask of each: no warning, equal bytes, its text, no overlaps."""

import io
import itertools
import warnings

import numpy as np
from matplotlib.axis import Axis
from matplotlib.text import Text
from PIL import Image

from vit_jax.draw import style

LEAST_POINTS = 7.0
LONG = "Hungarian pointer, vizsla, Magyar vizsla $5 _long_ name 漢字\twith\nlines " * 3
DPI = 60  # cheaper than a page's
_drawn_twice = set()


def photos(number, height=24, width=32, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (number, height, width, 3), np.uint8)


def heat(number, rows=3, columns=4, seed=1):
    return np.random.default_rng(seed).random((number, rows, columns)).astype(np.float32)


def check(draw, *expected):
    """Calls draw(), once twice; asserts all of the above; returns the figure.

    `expected`: strings that some text of the figure contains, such as labels with units.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = draw()
        figure.set_dpi(DPI)  # texts are measured below where they were drawn
        data = style.png(figure, dpi=DPI)
        if draw.__code__ not in _drawn_twice:  # once for all parameters of a test
            _drawn_twice.add(draw.__code__)
            assert style.png(draw(), dpi=DPI) == data
    with Image.open(io.BytesIO(data)) as image:
        assert set(image.info) <= {"dpi"}
        assert image.size == tuple(int(side * DPI) for side in figure.get_size_inches())
    shown = texts(figure)
    for text in expected:
        assert any(text in one.get_text().replace("\n", " ") for one in shown), (
            text,
            [one.get_text() for one in shown],
        )
    check_places(figure, shown)
    return figure


def texts(figure):
    """Everything that is written in it."""
    return [
        text
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and text.get_alpha() != 0
    ]


def check_places(figure, shown):
    """Asserts that no two texts overlap, that none leaves the figure, and that all can be read."""
    renderer = figure.canvas.get_renderer()
    hidden = _not_drawn(figure)
    boxes = [(text, Text.get_window_extent(text, renderer)) for text in shown if text not in hidden]
    for text, box in boxes:
        assert text.get_fontsize() >= LEAST_POINTS, text
        inside = box.x0 >= -1 and box.y0 >= -1
        inside = inside and box.x1 <= figure.bbox.width + 1 and box.y1 <= figure.bbox.height + 1
        assert inside, (text, box, figure.bbox)
    for (one, box), (other, its_box) in itertools.combinations(boxes, 2):
        across = min(box.x1, its_box.x1) - max(box.x0, its_box.x0)
        up = min(box.y1, its_box.y1) - max(box.y0, its_box.y0)
        assert across <= 1 or up <= 1, (one, other)


def _not_drawn(figure):
    """Labels of ticks that are outside of their axis."""
    hidden = set()
    for axis in figure.findobj(Axis):
        low, high = sorted(axis.get_view_interval())
        for tick in (*axis.majorTicks, *axis.minorTicks):
            if not low - 1e-9 <= tick.get_loc() <= high + 1e-9:
                hidden |= {tick.label1, tick.label2}
    return hidden
