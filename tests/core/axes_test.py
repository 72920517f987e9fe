import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from vit_jax.core import axes
from vit_jax.parallel import mesh as meshes


def test_constraint_reaches_the_compiled_program():
    mesh = meshes.make_mesh(replica=1, data=-1, fsdp=1, tensor=1)
    f = jax.jit(lambda x: axes.constrain(x * 2, axes.BATCH, axes.STREAM))
    with jax.set_mesh(mesh), axes.use_rules(meshes.RULES):
        assert "sharding" in f.lower(jnp.zeros((2, 3))).as_text()


def test_names_become_a_spec():
    names = (axes.BATCH, None, axes.HEADS)
    mesh_shape = {"replica": 1, "data": 2, "fsdp": 4, "tensor": 2}
    spec = axes.to_spec(names, (16, 3, 12), meshes.RULES, mesh_shape)
    assert spec == PartitionSpec(("replica", "data", "fsdp"), None, "tensor")


def test_an_indivisible_axis_stays_unsharded_and_is_reported():
    names, shape = (axes.WIDTH, axes.HEADS), (6, 3)
    mesh_shape = {"replica": 1, "data": 1, "fsdp": 2, "tensor": 2}
    assert axes.to_spec(names, shape, meshes.RULES, mesh_shape) == PartitionSpec("fsdp", None)
    (unsharded,) = axes.unsharded(names, shape, meshes.RULES, mesh_shape)
    assert unsharded == axes.UnshardedAxis("heads", 3, over=("tensor",), replicated=("tensor",))


@pytest.mark.parametrize(
    ("size", "divided", "whole"),
    [(8, ("fsdp", "data"), ()), (36, ("fsdp",), ("data",)), (6, (), ("fsdp", "data"))],
)
def test_several_axes_divide_as_far_as_they_can(size, divided, whole):
    rules, mesh_shape = meshes.SHARDED_STATE_RULES, {"data": 2, "fsdp": 4}
    spec = axes.to_spec((axes.WIDTH,), (size,), rules, mesh_shape)
    assert spec == PartitionSpec(divided or None)
    unsharded = axes.unsharded((axes.WIDTH,), (size,), rules, mesh_shape)
    assert [x.replicated for x in unsharded] == [whole] * bool(whole)


@pytest.mark.parametrize(
    ("shape", "spec", "left"),
    [
        ((16, 64), ("fsdp", "data"), []),
        ((64, 16), (("fsdp", "data"), None), []),
        ((16, 33), (("fsdp", "data"), None), []),
        ((12, 33), ("fsdp", None), ["width", "mlp"]),
    ],
)
def test_a_mesh_axis_divides_the_axis_with_the_longest_parts(shape, spec, left):
    names, mesh_shape = (axes.WIDTH, axes.MLP), {"data": 2, "fsdp": 4, "tensor": 1}
    rules = {axes.WIDTH: ("fsdp", "data"), axes.MLP: ("data",)}
    made = axes.to_spec(names, shape, rules, mesh_shape)
    assert made == PartitionSpec(*spec)
    assert [x.name for x in axes.unsharded(names, shape, rules, mesh_shape)] == left


@pytest.mark.parametrize(("platform", "pinned"), [("gpu", True), ("tpu", False), ("cpu", False)])
def test_a_layout_is_pinned_on_gpus_alone(monkeypatch, platform, pinned):
    monkeypatch.setattr(axes, "target", lambda: axes.Target(platform, ""))
    f = jax.jit(
        jax.grad(lambda x: jnp.sum(axes.pin_activation_layout(x, axes.BATCH, None, None) ** 2))
    )
    x = jnp.ones((2, 3, 4))
    assert "LayoutConstraint" not in f.lower(x).as_text()  # without a mesh it may run anywhere
    jax.clear_caches()
    with jax.set_mesh(jax.make_mesh((1,), ("data",))):
        assert ("LayoutConstraint" in f.lower(x).as_text()) == pinned
