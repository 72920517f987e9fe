import os
import stat
from functools import partial
from types import SimpleNamespace

import pytest
from absl import flags
from etils import epath

from tests.messages import refused
from vit_jax import config as configs
from vit_jax.cluster.members import OtherSecret
from vit_jax.core import command
from vit_jax.core.errors import UserError
from vit_jax.run import processes


def check(of_first, here, workdir="runs/a", checks=False):
    """Runs process 1's check when process 0 has the config `of_first` and trains in runs/a."""
    first = {"--workdir": "runs/a", "--check": False, **configs.to_dict(of_first)}
    values = {"config": first, "fingerprint": {}}
    peers = SimpleNamespace(
        from_first=lambda name, value: values,
        members=["process 0 (a, pid 1)", "process 1 (b, pid 2)"],
        me="process 1 (b, pid 2)",
    )
    processes.check_same(peers, here, epath.Path(workdir), {"--check": checks})


def test_processes_with_different_commands_are_refused(tiny_run):
    check(tiny_run(), tiny_run())
    with refused("process 1 (b, pid 2)", "optim.lr: 0.001", "--check: false", "--workdir: "):
        check(tiny_run(), tiny_run("optim.lr=0.5"), workdir="runs/b", checks=True)


def test_what_belongs_to_a_host_may_differ(tiny_run):
    check(tiny_run(), tiny_run("input.threads=3", "input.data_dir=/local/disk"))
    first, other = (
        tiny_run(f"input.mixture.a.data_dir={folder}", f"input.cache={folder}")
        for folder in ("/one", "/other")
    )
    check(first, other)


@pytest.mark.parametrize("value", ["inf", "nan", "0", "-3", "0.5", "1e9"])
@pytest.mark.parametrize("name", ["start", "peer", "barrier"])
def test_timeouts_have_bounds(monkeypatch, name, value):
    given = flags.FlagValues()
    monkeypatch.setattr(flags, "DEFINE_float", partial(flags.DEFINE_float, flag_values=given))
    monkeypatch.setattr(flags, "DEFINE_integer", lambda *_: None)
    monkeypatch.setattr(flags, "DEFINE_string", lambda *_: None)
    command.define_processes()
    with pytest.raises(flags.Error, match=f"{name}_timeout_secs"):
        given(["", f"--{name}_timeout_secs={value}"])
        command.check_values(given)


def test_the_secret_of_a_run_is_in_its_workdir(tmp_path, monkeypatch):
    """Process 0 writes it, only its owner reads it, and a run that starts again has the same."""
    folder = epath.Path(tmp_path / "new" / "run")
    with pytest.raises(OtherSecret, match=r"\.secret"):
        processes.run_secret(folder, create=False)
    secret = processes.run_secret(folder, create=True)
    assert len(secret) == 64
    assert processes.run_secret(folder, create=False) == secret
    assert processes.run_secret(folder, create=True) == secret
    (file,) = folder.iterdir()
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    monkeypatch.setenv("VIT_JAX_SECRET", "of all")
    assert processes.run_secret(folder, create=False) == b"of all"
    assert processes.run_secret(None, create=False) == b"of all"


def test_a_secret_that_cannot_be_read_is_replaced(tmp_path):
    folder = epath.Path(tmp_path)
    (folder / ".secret").write_text("short")
    with pytest.raises(OtherSecret):
        processes.run_secret(folder, create=False)
    assert len(processes.run_secret(folder, create=True)) == 64
    with pytest.raises(UserError):
        processes.run_secret(folder / ".secret" / "run", create=True)
