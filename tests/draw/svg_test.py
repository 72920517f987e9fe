from vit_jax.draw import svg
from vit_jax.draw.scales import Axes, Scale

AXES = Axes(Scale(0, 10), Scale(0.5, 1.5), left=20, right=90, top=5, bottom=45)


def test_corners_of_the_axes():
    assert (AXES.x(0), AXES.x(10)) == (20, 90)
    assert (AXES.y(0.5), AXES.y(1.5)) == (45, 5)
    assert AXES.at((5, 1.0)) == (55, 25)


def test_grid_has_a_line_and_a_value_at_each_tick():
    assert svg.grid(AXES, [0.5, 1.0]) == [
        '<line class="grid" x1="20" x2="90" y1="45.0" y2="45.0"/>',
        '<text x="14" y="48.5" text-anchor="end">0.5</text>',
        '<line class="grid" x1="20" x2="90" y1="25.0" y2="25.0"/>',
        '<text x="14" y="28.5" text-anchor="end">1.0</text>',
    ]
    assert svg.grid(AXES, [0.5], percent=True)[1].endswith(">50%</text>")


def test_values_below():
    assert svg.values_below(AXES, [5]) == ['<text x="55.0" y="61" text-anchor="middle">5</text>']


def test_order_of_elements():
    lines = svg.picture('a "title"', (100, 60), AXES, ["<behind/>"], ["<before/>"]).splitlines()
    assert lines[0].endswith('viewBox="0 0 100 60" role="img" aria-label="a &quot;title&quot;">')
    assert lines[1] == "<behind/>" and 'class="axis"' in lines[2]
    assert lines[3:] == ["<before/>", "</svg>"]
