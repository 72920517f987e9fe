"""A fake trainer, whose trainings end as prescribed, for sweeps and the commands that run them."""

import sys
from pathlib import Path

import pytest

from vit_jax.tools.lab.sweep import slots

REPOSITORY = Path(__file__).parents[3]
FAKE = [sys.executable, "-S", str(Path(__file__).parent / "fake_train.py")]
DIGITS = str(REPOSITORY / "configs" / "vit_digits.py")


class Fate:
    """`fate("optim.lr=1e-3,seed=0", "75 0")`: outcomes of a training's first two starts."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()

    def __call__(self, name, words):
        (self.folder / name).write_text(words)

    def starts(self):
        """Names started, in order."""
        file = self.folder / "starts"
        return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def fate(tmp_path, monkeypatch):
    made = Fate(tmp_path / "fate")
    monkeypatch.setenv("FATE", str(made.folder))
    monkeypatch.setattr(slots, "POLL_SECS", 0.02)
    return made
