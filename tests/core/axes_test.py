import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from vit_jax.core import axes
from vit_jax.dist import mesh as meshes


def test_without_rules_nothing_is_constrained():
    x = jnp.zeros((2, 3))
    assert axes.constrain(x, axes.BATCH, axes.STREAM) is x


def test_constraint_reaches_the_compiled_program():
    mesh = meshes.make_mesh(data=-1)
    f = jax.jit(lambda x: axes.constrain(x * 2, axes.BATCH, axes.STREAM))
    with jax.set_mesh(mesh), axes.use_rules(meshes.RULES):
        assert "sharding" in f.lower(jnp.zeros((2, 3))).as_text()


def test_every_axis_needs_a_name():
    mesh = meshes.make_mesh(data=-1)
    with (
        jax.set_mesh(mesh),
        axes.use_rules(meshes.RULES),
        pytest.raises(ValueError, match="2 axes"),
    ):
        axes.constrain(jnp.zeros((2, 3)), axes.BATCH)


def test_names_become_a_spec():
    names = (axes.BATCH, None, axes.WIDTH)
    assert axes.to_spec(names, meshes.RULES) == PartitionSpec("data", None, None)


def test_every_logical_axis_has_a_rule():
    assert set(meshes.RULES) == set(axes.LOGICAL_AXES)
