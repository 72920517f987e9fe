from types import SimpleNamespace

import pytest
from etils import epath

from tests.messages import refused
from vit_jax import config as configs
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
@pytest.mark.parametrize("name", processes.TIMEOUTS)
def test_timeouts_have_bounds(monkeypatch, name, value):
    given = {**dict.fromkeys(processes.TIMEOUTS, 60.0), name: float(value)}
    monkeypatch.setattr(processes, "FLAGS", SimpleNamespace(**given))
    with refused(name):
        processes.find_cluster()
