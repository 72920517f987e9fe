import jax
import pytest

from tests.messages import refused
from vit_jax.parallel import mesh
from vit_jax.parallel import mesh as meshes


class Device:
    """A stand-in for another machine's device."""

    platform, device_kind, process_index, slice_index = "cpu", "cpu", 0, 0

    def __init__(self, id):
        self.id = id


EIGHT = [Device(i) for i in range(8)]


def make(replica=1, data=1, fsdp=1, tensor=1, devices=None):
    return meshes.make_mesh(
        replica=replica, data=data, fsdp=fsdp, tensor=tensor, devices=devices or EIGHT
    )


def shape(**sizes):
    return tuple(make(**sizes).shape.values())


def test_minus_one_takes_the_remaining_devices():
    assert shape(data=-1) == (1, 8, 1, 1)
    assert shape(data=-1, fsdp=2, tensor=2) == (1, 2, 2, 2)
    assert shape(fsdp=-1, replica=2) == (2, 1, 4, 1)
    assert shape(fsdp=8, data=-1) == (1, 1, 8, 1)


def test_the_devices_of_the_tensor_axis_are_neighbours():
    grid = make(data=-1, tensor=2).devices
    assert [[d.id for d in pair] for pair in grid[0, :, 0]] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_one_process_may_leave_devices_unused():
    mesh = meshes.make_mesh(replica=1, data=1, fsdp=1, tensor=1)
    assert mesh.size == 1
    assert mesh.devices.flat[0] == jax.devices()[0]


def test_unused_devices_are_reported(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    monkeypatch.setattr(jax, "devices", lambda: EIGHT)
    unused = lambda **sizes: meshes.unused(
        meshes.make_mesh(**dict.fromkeys(meshes.AXES, 1) | sizes)
    )
    assert unused(data=8) == ""
    assert unused(data=3) == " (5 of 8 unused: mesh.data=-1 takes all)"
    assert unused(fsdp=3) == " (5 of 8 unused)"


@pytest.mark.parametrize(
    "sizes",
    [{"data": 0}, {"data": -1, "fsdp": -1}, {"data": -1, "fsdp": 3}, {"data": 5, "tensor": 2}],
    ids=str,
)
def test_sizes_that_do_not_fit_are_refused(sizes):
    with refused(*(f"mesh.{name}={size}" for name, size in sizes.items())):
        make(**sizes)


def test_a_replica_is_a_slice():
    slices = [Device(i) for i in range(8)]
    for d in slices[4:]:
        d.slice_index = 1
    with refused("mesh.replica=2"):
        make(data=-1, devices=slices)


def test_a_batch_has_to_divide():
    mesh = jax.sharding.AbstractMesh((1, 24, 1, 1), meshes.AXES)
    meshes.check_batch(mesh, 48, "input.batch_size")
    with refused("input.batch_size=4096", 4080, 4104):
        meshes.check_batch(mesh, 4096, "input.batch_size")


def test_each_part_of_a_batch_has_to_divide():
    mesh = jax.sharding.AbstractMesh((2, 3, 4, 5), meshes.AXES)
    meshes.check_batch(mesh, 48, "input.batch_size", parts=2)
    with refused("input.batch_size=60", "optim.grad_accum_steps=2", 48, 96):
        meshes.check_batch(mesh, 60, "input.batch_size", parts=2)


@pytest.fixture
def asked(monkeypatch):
    """What JAX is told, on a machine of 6 cores and 64 GB."""
    told = {}
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(jax.config, "update", told.__setitem__)
    monkeypatch.setattr(mesh.machine, "cores", lambda: 6)
    monkeypatch.setattr(mesh.machine, "memory_bytes", lambda: 64 * 10**9)
    return told


@pytest.mark.parametrize(
    ("weights_bytes", "devices"), [(10**6, 6), (4 * 10**9, 4), (10**11, 1), (0, 6)]
)
def test_as_many_as_copies_of_the_weights_fit(asked, weights_bytes, devices):
    mesh.use_cores_as_devices(weights_bytes)
    assert asked == {"jax_num_cpu_devices": devices}


def test_what_jax_is_told_otherwise_holds(asked, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"--{mesh.HOST_DEVICES_FLAG}=3")
    mesh.use_cores_as_devices(1)
    assert asked == {}
