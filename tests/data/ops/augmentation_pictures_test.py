"""docs/augmentation.md shows what the code does; python -m docs.pictures draws its pictures."""

import numpy as np
import pytest
from PIL import Image

from docs.pictures import augmentation
from docs.pictures.augmentation import CELL_PX, FOLDER, PICTURES, SCENE, SHRINK

# Other processors may round exp and sin differently.
MEAN_LEVELS = 0.05


def test_scene_is_what_is_drawn():
    drawn, stored = np.asarray(augmentation.draw_scene()), np.asarray(Image.open(SCENE))
    assert np.abs(drawn.astype(int) - stored).mean() <= MEAN_LEVELS


@pytest.mark.parametrize("name", PICTURES)
def test_picture_shows_what_the_code_does(name):
    function, _ = PICTURES[name]
    images = function(np.asarray(Image.open(SCENE)))
    picture = Image.open(FOLDER / f"{name}.png")
    shown = []
    for row, corners in zip(images.values(), augmentation.cells(len(images)), strict=True):
        for image, (left, top) in zip(row, corners, strict=True):
            cell = np.asarray(picture.crop((left, top, left + CELL_PX, top + CELL_PX)))
            expected = np.asarray(Image.fromarray(image).reduce(SHRINK)).astype(int)
            assert np.abs(cell - expected).mean() <= MEAN_LEVELS
            shown.append(cell.tobytes())
    assert len(set(shown)) > len(shown) / 2  # else the picture would show nothing
