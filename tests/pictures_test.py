"""The pictures of docs/ match what the code computes; `python -m docs.pictures` redraws them."""

import io

import matplotlib
import numpy as np
import pytest
from PIL import Image

from docs.pictures import how_it_works, killed_run, png, recipe_card, study
from docs.pictures.__main__ import PICTURES
from vit_jax.draw import style

OLD_MATPLOTLIB = pytest.mark.skipif(
    tuple(map(int, matplotlib.__version__.split(".")[:2])) < (3, 11),
    reason="the pictures were drawn by Matplotlib 3.11; letters of 3.10 have other widths",
)
# Mean difference in levels from 0 to 255: versions of FreeType render letters differently.
MEAN_LEVELS = 1.0
ROUNDING = 1e-3  # of the facts; far less than a pixel


def assert_near(actual, expected):
    """Asserts that both are the same JSON, with numbers within ROUNDING."""
    if isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key, value in expected.items():
            assert_near(actual[key], value)
    elif isinstance(expected, list) and expected and isinstance(expected[0], dict | list):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_near(one, other)
    else:
        np.testing.assert_allclose(actual, expected, atol=ROUNDING)


def difference(one, other):
    """The mean one of two pictures, in levels."""
    return np.abs(np.asarray(one).astype(int) - np.asarray(other)).mean()


@pytest.mark.parametrize("picture", PICTURES.values(), ids=PICTURES)
def test_picture_shows_the_facts(picture):
    assert_near(png.read(picture.FILE)[1], picture.facts())


@OLD_MATPLOTLIB
@pytest.mark.parametrize("picture", PICTURES.values(), ids=PICTURES)
def test_picture_is_what_is_drawn_of_its_facts(picture):
    image, facts = png.read(picture.FILE)
    assert difference(image, style.pixels(picture.draw(facts))) <= MEAN_LEVELS


def test_recipe_card_is_drawn_with_all_its_runs_and_ranges():
    facts, card = recipe_card.facts(), recipe_card.recipe_card.read(recipe_card.CARD)
    assert len(facts["seeds"]) == len(card.runs) == 3
    for metric, curve in facts["curves"].items():
        assert curve["runs"] == card.curves[metric].runs
    assert [step for step, _, _ in facts["ranges"]] == facts["curves"]["test/loss"]["steps"]
    runs = np.asarray(facts["curves"]["test/loss"]["runs"])
    _, low, high = np.asarray(facts["ranges"]).T
    assert (low <= runs).all() and (runs <= high).all()


@OLD_MATPLOTLIB
@pytest.mark.parametrize("file", study.PICTURES, ids=lambda file: file.stem)
def test_pictures_of_the_study_show_its_results(file):
    stored, drawn = (Image.open(each) for each in (file, io.BytesIO(study.draw(file))))
    assert difference(stored.convert("RGB"), drawn.convert("RGB")) <= MEAN_LEVELS


def test_drawing_of_how_it_works_is_what_is_drawn_and_names_files_that_exist():
    assert how_it_works.FILE.read_text() == how_it_works.draw()
    boxes = [box for life in how_it_works.LIVES for box in life.boxes]
    for box in boxes:
        assert (how_it_works.FILE.parents[1] / "vit_jax" / box.file).is_file(), box.file
        assert all(len(line) <= 48 for line in (box.first, box.second)), box
    page = (how_it_works.FILE.parent / "how_it_works.md").read_text()
    assert all(f"](../vit_jax/{box.file})" in page for box in boxes)


def test_drawing_of_a_killed_run_is_that_of_its_rows_and_they_agree():
    straight, starts = killed_run.facts()
    assert killed_run.FILE.read_text() == killed_run.draw(straight, starts)
    assert [start.killed for start in starts] == [True, True, True, False]
    assert starts[-1].checksum == straight.checksum
    again = [{**start.losses} for start in starts]
    assert sum(map(len, again)) > len(straight.losses)  # steps after a checkpoint were repeated
    assert all(losses.items() <= straight.losses.items() for losses in again)
    assert set().union(*again) == set(straight.losses)
