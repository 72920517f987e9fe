"""Colours that colour-blind people can tell apart.

Lines and points have the colours of Okabe and Ito (Color Universal Design, 2008), and markers that
tell them apart without any. Heat has matplotlib's maps whose lightness rises from end to end.
"""

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
# In the order in which they are given out: neighbours differ most. Yellow is too light on white.
SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, BLACK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple = ("-", (0, (6, 2)), (0, (1.5, 1.5)), (0, (6, 1.5, 1, 1.5)))

SIGNED = "viridis"  # for numbers from -1 to 1, as in the figures of arXiv 2010.11929
HEAT = "inferno"  # for numbers from 0 on
MISSING = "#BBBBBB"  # for NaN
MUTED = "#666666"  # text and lines that step back
GRID = "#DDDDDD"


def series(index: int) -> tuple[str, str]:
    """(colour, marker) of the series of that index, from 0; 49 combinations before they recur."""
    colour, turn = SERIES[index % len(SERIES)], index // len(SERIES)
    return colour, MARKERS[(index + turn) % len(MARKERS)]
