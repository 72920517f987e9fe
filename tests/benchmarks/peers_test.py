from pathlib import Path

import pytest

from benchmarks import peers, rows
from benchmarks.peers import Cell, Line

CELL = Cell("speed", "images", {"shape": "S"})


@pytest.fixture
def add(tmp_path, monkeypatch):
    """A function that adds a row to speed.csv of an empty folder."""
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    origin = {"commit": "a", "device": "cpu", "versions": "1", "who": "own", "shape": "S"}
    return lambda images, **values: rows.append("speed", origin | values | {"images": images})


def test_the_last_rows_count_and_the_median_of_those_of_one_commit(add):
    for images, commit in ((1, "a"), (5, "b"), (9, "b"), (6, "b")):
        add(images, commit=commit)
    add(100, commit="c", shape="L")
    add("", commit="d")  # such as of a contender that was left out
    assert CELL.read(None) == (6, "cpu")


def test_a_peer_is_of_the_same_device(add):
    cell = lambda who: Cell("speed", "images", {"who": who})
    line = Line("work", "images/s", cell("own"), {"timm": cell("timm"), "big_vision": cell("bv")})
    add(4, who="timm", device="gpu")
    add(200, who="timm")
    add(300, who="bv")
    add(1234.5, device="gpu")
    assert list(line.cells(None)) == [*("work", "images/s", "**1,234**", "4", "", "", "", "gpu")]


def test_a_line_without_rows_says_so(add):
    add(1)
    line = Line("work", "s", Cell("speed", "images", {"shape": "H"}), {"timm": CELL})
    assert "not measured" in list(line.cells(None))


def test_the_page_has_the_table_of_the_rows():
    page = Path(__file__).parents[2] / "docs" / "benchmarks.md"
    assert peers.table() in page.read_text(), "python -m benchmarks.peers prints today's table"
