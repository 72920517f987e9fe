from pathlib import Path

import pytest

from tests.models.by_hand import info
from vit_jax.models.__main__ import table

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_has_the_row_of_a_small_model(monkeypatch):
    monkeypatch.setattr("vit_jax.models.__main__.available", lambda: ["ViT-Ti/16"])
    assert list(table())[-1] in (DOCS / "models.md").read_text().splitlines()


@pytest.mark.slow
def test_the_page_matches_the_table_of_names(monkeypatch):
    monkeypatch.setattr("vit_jax.models.__main__.info", info)
    written = (DOCS / "models.md").read_text()
    assert written.endswith("\n\n" + "\n".join(table()) + "\n"), "vit-jax models prints it anew"
