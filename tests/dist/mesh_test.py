import jax
import pytest

from vit_jax.core.errors import UserError
from vit_jax.dist import mesh as meshes


def test_all_devices_or_some():
    assert meshes.make_mesh(data=-1).size == len(jax.devices())
    assert meshes.make_mesh(data=1).shape == {"data": 1}


@pytest.mark.parametrize("data", [0, 10_000])
def test_more_devices_than_there_are(data):
    with pytest.raises(UserError, match=f"mesh.data={data}, but there are"):
        meshes.make_mesh(data=data)


def test_a_batch_has_to_divide():
    mesh = jax.sharding.AbstractMesh((24,), ("data",))
    meshes.check_batch(mesh, 48, "input.batch_size")
    with pytest.raises(UserError) as error:
        meshes.check_batch(mesh, 4096, "input.batch_size")
    expected = "input.batch_size=4096 does not divide over 24 devices; nearest: 4080, 4104."
    assert str(error.value) == expected
