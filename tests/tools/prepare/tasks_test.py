"""The same data set written by Apache Beam, on its local runner."""

import io

import pytest

from tests.messages import refused
from tests.tools.prepare.pipeline_test import SMALL, files, prepared
from vit_jax.core.errors import UserError
from vit_jax.core.screen import Screen
from vit_jax.tools.prepare import imagenet
from vit_jax.tools.prepare.collection import CollectionRequest
from vit_jax.tools.prepare.pipeline import WORK_DIR, prepare
from vit_jax.tools.prepare.tasks import beam_runner

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
