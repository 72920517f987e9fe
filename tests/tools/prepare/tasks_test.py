"""The same data set written by Apache Beam, on its local runner."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from tests.messages import refused
from tests.tools.prepare.pipeline_test import SMALL, files, prepared
from vit_jax.core.screen import Screen
from vit_jax.tools.prepare import imagenet
from vit_jax.tools.prepare.collection import CollectionRequest
from vit_jax.tools.prepare.pipeline import WORK_DIR, prepare
from vit_jax.tools.prepare.tasks import beam_runner

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
