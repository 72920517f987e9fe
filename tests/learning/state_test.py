import io

import jax
import numpy as np
import optax
from jax.sharding import AbstractMesh

from vit_jax import models
from vit_jax.core.screen import Screen
from vit_jax.learning.state import state_layout
from vit_jax.parallel import mesh as meshes
from vit_jax.run import announce


def layout(scan=False, mesh=None, shard_optimizer=False, width=16, unstacked_steps=False):
    def make(rngs):
        return models.create(
            "ViT-Ti/4", num_classes=3, image_size=8, depth=2, width=width, mlp_dim=32, num_heads=2,
            scan=scan, rngs=rngs,
        )  # fmt: skip

    return state_layout(
        make,
        optax.adam(1e-3),
        mesh or meshes.make_mesh(replica=1, data=-1, fsdp=1, tensor=1),
        ema_decay=None,
        shard_optimizer=shard_optimizer,
        unstacked_steps=unstacked_steps,
    )


def test_layout_is_that_of_the_state():
    made, fresh = layout(), layout().init(0)
    assert jax.tree.structure(made.state) == jax.tree.structure(fresh)
    for a, b in zip(jax.tree.leaves(made.state), jax.tree.leaves(fresh), strict=True):
        assert (a.shape, a.dtype, a.sharding) == (b.shape, b.dtype, b.sharding)


def test_parameters_depend_on_the_seed_but_not_on_scan():
    kernels = [
        np.asarray(x.params["blocks"]["block"]["mlp"]["fc1"]["kernel"])
        for x in (layout().init(0), layout(scan=True).init(0), layout().init(1))
    ]
    np.testing.assert_array_equal(kernels[0], kernels[1])
    assert not np.array_equal(kernels[0], kernels[2])


def held(tree):
    """Number of elements on each device."""
    return sum(np.prod(x.sharding.shard_shape(x.shape)) for x in jax.tree.leaves(tree))


def test_matrices_of_a_sharded_state_are_divided_over_data_and_computed_with_whole():
    mesh = AbstractMesh((1, 4, 1, 1), meshes.AXES)
    plain, sharded = (layout(mesh=mesh, shard_optimizer=x, width=64) for x in (False, True))
    vectors = sum(x.size for x in jax.tree.leaves(plain.state.params) if x.ndim == 1)
    vectors += sum(x.size for x in jax.tree.leaves(plain.state.params["blocks"]) if x.ndim == 2)
    whole = held(plain.state.params)
    assert (whole - vectors) // 4 <= held(sharded.state.params) - vectors < 0.3 * (whole - vectors)
    assert held(sharded.state.opt_state) == 2 * held(sharded.state.params) + 1  # and a counter
    assert held(sharded.computed) == whole


def test_a_sharded_optimizer_is_never_larger():
    mesh = AbstractMesh((1, 2, 4, 1), meshes.AXES)
    plain, sharded = (
        layout(mesh=mesh, shard_optimizer=x, width=36).state.opt_state for x in (False, True)
    )
    assert held(sharded) < held(plain)  # 36 is not divisible by 8 devices, but by 4


def test_unsharded_arrays_are_one_line_for_each_cause():
    def announced(*shape, **options):
        screen = io.StringIO()
        mesh = AbstractMesh(shape, meshes.AXES)
        announce.unsharded(Screen(screen), layout(mesh=mesh, **options))
        return screen.getvalue()

    assert announced(1, 2, 4, 1, shard_optimizer=True, width=16) == ""
    line = announced(1, 2, 4, 1, shard_optimizer=True, width=36)
    assert line.startswith("unsharded along data=2: the state's arrays of ")
    assert line.endswith(
        ": width 36 does not divide over fsdp=4 x data=2; change model.width or mesh.data\n"
    )
    wide, many = announced(1, 1, 5, 4).splitlines()
    assert ": heads 2 does not divide over tensor=4; change model.num_heads or mesh.tensor" in many
    assert ": width 16 does not divide over fsdp=5; change model.width or mesh.fsdp" in wide


def test_a_state_apart_is_laid_out_as_said_and_takes_no_second_state():
    made = layout(unstacked_steps=True)
    whole = made.init(0)
    kept = jax.device_get(whole)
    apart = made.unstack_layers(whole)
    assert made.unstack_layers(apart) is apart
    assert whole.params["blocks"]["block"]["mlp"]["fc1"]["kernel"].is_deleted()
    assert jax.tree.structure(made.in_steps.state) == jax.tree.structure(apart)
    for a, b in zip(jax.tree.leaves(made.in_steps.state), jax.tree.leaves(apart), strict=True):
        assert (a.shape, a.dtype, a.sharding) == (b.shape, b.dtype, b.sharding)
    back = made.stack_layers(apart)
    assert apart.params["blocks"]["block[1]"]["mlp"]["fc1"]["kernel"].is_deleted()
    jax.tree.map(np.testing.assert_array_equal, back, kept)
    jax.tree.map(np.testing.assert_array_equal, made.stack_layers(made.in_steps.init(0)), kept)


def test_axes_of_a_state_apart_are_sharded_as_those_of_a_stack():
    abstract = AbstractMesh((1, 2, 4, 1), meshes.AXES)
    made = layout(unstacked_steps=True, mesh=abstract, shard_optimizer=True).in_steps
    kernel = made.state.params["blocks"]["block[1]"]["mlp"]["fc2"]["kernel"]
    assert (kernel.shape, tuple(kernel.sharding.spec)) == ((32, 16), (("tensor", "data"), "fsdp"))
    assert made.update_shardings["blocks"]["block[1]"]["mlp"]["fc2"]["kernel"] == kernel.sharding
    computed = made.computed["blocks"]["block[1]"]["mlp"]["fc2"]["kernel"]
    assert tuple(computed.sharding.spec) == ("tensor", "fsdp")
