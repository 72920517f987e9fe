import jax
import numpy as np
import optax
from flax import nnx

from vit_jax import models
from vit_jax.dist import mesh as meshes
from vit_jax.state import state_layout


def layout(scan=False):
    def make(rngs):
        return models.create(
            "ViT-Ti/4", num_classes=3, image_size=8, depth=2, width=16, mlp_dim=32, heads=2,
            scan=scan, rngs=rngs,
        )  # fmt: skip

    return state_layout(
        make,
        optax.adam(1e-3),
        meshes.make_mesh(replica=1, data=-1, fsdp=1, tensor=1),
        ema_decay=None,
        shard_optimizer=False,
    )


def test_layout_is_that_of_the_state():
    made, fresh = layout(), layout().init(0)
    assert jax.tree.structure(made.state) == jax.tree.structure(fresh)
    for a, b in zip(jax.tree.leaves(made.state), jax.tree.leaves(fresh), strict=True):
        assert (a.shape, a.dtype, a.sharding) == (b.shape, b.dtype, b.sharding)


def test_seed_decides_the_parameters_and_scan_does_not():
    kernels = [
        np.asarray(x.params["blocks"]["block"]["mlp"]["fc1"]["kernel"])
        for x in (layout().init(0), layout(scan=True).init(0), layout().init(1))
    ]
    np.testing.assert_array_equal(kernels[0], kernels[1])
    assert not np.array_equal(kernels[0], kernels[2])


def test_graph_and_parameters_make_the_model():
    made = layout()
    model = nnx.merge(made.graph, made.init(0).params)
    assert model(np.zeros((1, 8, 8, 3), np.float32)).shape == (1, 3)
