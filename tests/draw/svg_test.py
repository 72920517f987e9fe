from vit_jax.draw.scales import Scale
from vit_jax.draw.svg import Axes

AXES = Axes(Scale(0, 10), Scale(0.5, 1.5), size=(100, 60), left=20, right=90, top=5, bottom=45)


def test_corners_of_the_axes():
    assert (AXES.x(0), AXES.x(10)) == (20, 90)
    assert (AXES.y(0.5), AXES.y(1.5)) == (45, 5)


def test_grid_has_a_line_and_a_value_at_each_tick():
    assert AXES.grid([0.5, 1.0]) == [
        '<line class="grid" x1="20" x2="90" y1="45.0" y2="45.0"/>',
        '<text x="14" y="48.5" text-anchor="end">0.5</text>',
        '<line class="grid" x1="20" x2="90" y1="25.0" y2="25.0"/>',
        '<text x="14" y="28.5" text-anchor="end">1.0</text>',
    ]
    assert AXES.grid([0.5], percent=True)[1].endswith(">50%</text>")


def test_values_below():
    assert AXES.values_below([5]) == ['<text x="55.0" y="61" text-anchor="middle">5</text>']


def test_order_of_elements():
    picture = AXES.svg('a "title"', ["<behind/>"], ["<before/>"]).splitlines()
    assert picture[0].endswith('viewBox="0 0 100 60" role="img" aria-label="a &quot;title&quot;">')
    assert picture[1] == "<behind/>" and 'class="axis"' in picture[2]
    assert picture[3:] == ["<before/>", "</svg>"]
