"""Progress within parts."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest

from tests.tools.prepare.conftest import jpeg, tar
from vit_jax.core.screen import Screen
from vit_jax.tools.prepare.collection import Collection, Part, PrepareOptions
from vit_jax.tools.prepare.pipeline import prepare
from vit_jax.tools.prepare.tasks import progress, read_part, runners


def test_a_bar_moves_within_a_long_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar({f"{i}.jpg": jpeg(i) for i in range(20)}))
    part = Part("a.tar", "tar", str(path), labels=(0,))
    monkeypatch.setattr(progress, "EVERY_SECS", 0.02)
    monkeypatch.setattr(Screen, "BAR_AFTER_SECS", 0.0)
    monkeypatch.setattr(Screen, "PLAIN_EVERY_SECS", 0.0)
    slowly = lambda check: lambda *a: time.sleep(0.03) or check(*a)
    monkeypatch.setattr(read_part, "_checked", slowly(read_part._checked))
    out = io.StringIO()
    collection = Collection("tars", "Of this test.", ["thing"], [part])
    run = runners.in_processes(1)
    data_set = prepare(collection, tmp_path / "out", PrepareOptions(), run, Screen(out))
    assert data_set.splits["train"].shard_lengths == [20]
    shown = [line for line in out.getvalue().splitlines() if line.startswith("checking, ")]
    assert len(shown) > 3 and all("images, % [" in line for line in shown)
    assert not list((tmp_path / "out").rglob("*.progress"))


def test_notes_of_killed_workers_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "1.progress").write_text("10 0.5")
    assert progress.unfinished(tmp_path) == (10, 0.5)
    with progress.watched(tmp_path, lambda _: None):
        assert progress.unfinished(tmp_path) == (0, 0.0)
    (tmp_path / "1.progress").write_text("")  # half written
    assert progress.unfinished(tmp_path) == (0, 0.0)
