from pathlib import Path

import pytest

from vit_jax.core.errors import UserError
from vit_jax.draw.html_page import Findings, Picture, Section
from vit_jax.tools.look.visualize import page


def write(folder, *names):
    pictures = [Picture(name, name, "A note.", b"data of " + name.encode()) for name in names]
    page.write(folder, "ViT", "of a test", [Findings(Section("One", pictures), {"share": 0.5})])


def files(folder):
    return {file.name for file in folder.iterdir()}


def test_pictures_that_the_page_before_had_alone_are_removed(tmp_path):
    (tmp_path / "mine.png").touch()
    write(tmp_path, "filters", "heads_of_layer_1")
    write(tmp_path, "filters", "heads_of_layer_2")
    assert files(tmp_path) == {"mine.png", "index.html", "filters.png", "heads_of_layer_2.png"}
    assert (tmp_path / "filters.png").read_bytes() == b"data of filters"


def test_a_page_of_something_else_is_not_replaced(tmp_path):
    (tmp_path / "index.html").write_text("<title>My site</title>")
    for use in (page.check_folder, lambda folder: write(folder, "filters")):
        with pytest.raises(UserError, match=r"an index\.html that this command did not write"):
            use(tmp_path)
    assert files(tmp_path) == {"index.html"}


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "filters.png").mkdir()
    with pytest.raises(UserError, match=r"--output=.* cannot be written: Is a directory"):
        write(tmp_path, "filters")
    with pytest.raises(UserError, match="cannot be written"):
        page.check_folder(Path("/dev/null/x"))
