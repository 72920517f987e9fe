import os

from vit_jax.parallel import mesh as meshes
from vit_jax.run import environment


def test_deterministic_adds_to_the_flags_given(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    environment.deterministic()
    flags = os.environ["XLA_FLAGS"].split()
    assert flags == ["--xla_dump_to=x", *environment.DETERMINISTIC_FLAGS]


def test_xla_knows_the_flags(run_python):
    flags = " ".join(environment.DETERMINISTIC_FLAGS)
    done = run_python("-c", "import jax; jax.devices()", XLA_FLAGS=flags)
    assert done.returncode == 0, done.stderr  # XLA aborts on an unknown flag


def test_a_run_is_described():
    run = environment.describe(meshes.make_mesh(replica=1, data=1, fsdp=1, tensor=1))
    assert run["devices"] == {"count": 1, "kind": "cpu"}
    assert {"vit_jax", "python", "jax", "flax", "optax"} <= set(run["versions"])
