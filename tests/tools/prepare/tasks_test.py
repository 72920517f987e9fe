"""Progress within parts, and the same data set written by Apache Beam, on its local runner."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

import pytest

from tests.messages import refused
from tests.tools.prepare.conftest import jpeg, tar
from tests.tools.prepare.pipeline_test import SMALL, files, prepared
from vit_jax.core.screen import Screen
from vit_jax.tools.prepare import imagenet, tasks
from vit_jax.tools.prepare.collection import Collection, CollectionRequest, Part, PrepareOptions
from vit_jax.tools.prepare.pipeline import WORK_DIR, prepare
from vit_jax.tools.prepare.tasks import beam_runner


def test_a_bar_moves_within_a_long_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar({f"{i}.jpg": jpeg(i) for i in range(20)}))
    part = Part("a.tar", "tar", str(path), labels=(0,))
    monkeypatch.setattr(tasks, "EVERY_SECS", 0.02)
    monkeypatch.setattr(Screen, "BAR_AFTER_SECS", 0.0)
    monkeypatch.setattr(Screen, "PLAIN_EVERY_SECS", 0.0)
    slowly = lambda check: lambda *a: time.sleep(0.03) or check(*a)
    monkeypatch.setattr(tasks, "_checked", slowly(tasks._checked))
    out = io.StringIO()
    collection = Collection("tars", "Of this test.", ["thing"], [part])
    run = tasks.process_runner(1)
    data_set = prepare(collection, tmp_path / "out", PrepareOptions(), run, Screen(out))
    assert data_set.splits["train"].shard_lengths == [20]
    shown = [line for line in out.getvalue().splitlines() if line.startswith("checking, ")]
    assert len(shown) > 3 and all("images, % [" in line for line in shown)
    assert not list((tmp_path / "out").rglob("*.progress"))


def test_notes_of_killed_workers_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "1.progress").write_text("10 0.5")
    bar = tasks.PartsBar(Screen(io.StringIO()), "checking", tmp_path, 1, 0)
    assert bar.unfinished() == (10, 0.5)
    with bar:
        assert bar.unfinished() == (0, 0.0)
        (tmp_path / "1.progress").write_text("")  # half written
        assert bar.unfinished() == (0, 0.0)


FLAGS = ["--runner=FnApiRunner"]


def test_without_beam(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with refused("--runner"):
        beam_runner(tmp_path, [])


def test_the_same_bytes(tmp_path: Path, imagenet21k: Path) -> None:
    pytest.importorskip("apache_beam")
    collection = imagenet.imagenet21k(CollectionRequest(str(imagenet21k)))
    local = prepared(collection, tmp_path / "local")
    run = beam_runner(tmp_path / "beam" / "imagenet21k" / "1.0.0" / WORK_DIR / "beam", FLAGS)
    by_beam = prepare(collection, tmp_path / "beam", SMALL, run, Screen(io.StringIO()))
    assert local.digest == by_beam.digest and files(local.folder) == files(by_beam.folder)
    again = prepare(collection, tmp_path / "beam", SMALL, run, Screen(io.StringIO()))
    assert again.digest == local.digest  # nothing was left to do


def test_a_user_s_mistake_is_one_message(tmp_path: Path, imagenet21k: Path) -> None:
    pytest.importorskip("apache_beam")
    collection = imagenet.imagenet21k(CollectionRequest(str(imagenet21k)))
    imagenet21k.write_bytes(imagenet21k.read_bytes()[:20_000])
    run = beam_runner(tmp_path / "beam", FLAGS)
    with refused("fall11_whole.tar", ".tar in it"):
        prepare(collection, tmp_path / "out", SMALL, run, Screen(io.StringIO()))
