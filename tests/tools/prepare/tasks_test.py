"""Progress within parts, and the same data set written by Apache Beam, on its local runner."""

import io
import time

import pytest

from tests.messages import refused
from tests.tools.prepare.conftest import jpeg, tar
from tests.tools.prepare.pipeline_test import SMALL, files, prepared
from vit_jax.core.errors import UserError
from vit_jax.core.screen import Screen
from vit_jax.tools.prepare import imagenet, tasks
from vit_jax.tools.prepare.collection import Collection, CollectionRequest, Part, PrepareOptions
from vit_jax.tools.prepare.pipeline import WORK_DIR, prepare
from vit_jax.tools.prepare.tasks import beam_runner


def test_a_bar_moves_within_a_long_part(tmp_path, monkeypatch):
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


LOCAL = "--runner=FnApiRunner"
DASK = "--runner=apache_beam.runners.dask.dask_runner.DaskRunner"


@pytest.mark.parametrize(
    "beam_flags", [[LOCAL], [DASK, "--dask_partition_size=1"]], ids=["local", "dask"]
)
def test_the_same_bytes(tmp_path, imagenet21k, beam_flags):
    pytest.importorskip("distributed" if DASK in beam_flags else "apache_beam")
    collection = imagenet.imagenet21k(CollectionRequest(str(imagenet21k)))
    local = prepared(collection, tmp_path / "local")
    run = beam_runner(tmp_path / "beam" / "imagenet21k" / "1.0.0" / WORK_DIR / "beam", beam_flags)
    by_beam = prepare(collection, tmp_path / "beam", SMALL, run, Screen(io.StringIO()))
    assert local.digest == by_beam.digest and files(local.folder) == files(by_beam.folder)
    again = prepare(collection, tmp_path / "beam", SMALL, run, Screen(io.StringIO()))
    assert again.digest == local.digest  # nothing was left to do


def test_an_error_of_beam_is_in_its_own_words(tmp_path):
    pytest.importorskip("distributed")
    with pytest.raises(UserError, match=r"ValueError: .*fully qualified name") as unknown:
        beam_runner(tmp_path / "beam", ["--runner=DaskRunner"])
    assert unknown.value.field == "--beam_flags" and not list(tmp_path.iterdir())
    nowhere = ["--dask_client_address=tcp://127.0.0.1:1", "--dask_connection_timeout=1"]
    run = beam_runner(tmp_path / "beam", [DASK, *nowhere])
    with pytest.raises(UserError, match=r"127\.0\.0\.1:1 ") as unreachable:
        list(run(abs, [-1]))
    assert unreachable.value.field == "--beam_flags"


def test_an_error_of_a_task_is_raised_as_it_is(tmp_path, imagenet21k):
    pytest.importorskip("apache_beam")
    run = beam_runner(tmp_path / "beam", [LOCAL])
    with pytest.raises(ZeroDivisionError) as raised:
        list(run((1).__floordiv__, [0]))
    assert "in run_task" in raised.value.__notes__[0]
    collection = imagenet.imagenet21k(CollectionRequest(str(imagenet21k)))
    imagenet21k.write_bytes(imagenet21k.read_bytes()[:20_000])
    with refused("fall11_whole.tar", ".tar in it"):
        prepare(collection, tmp_path / "out", SMALL, run, Screen(io.StringIO()))
