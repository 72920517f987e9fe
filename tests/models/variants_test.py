"""ViT fields from later papers and from the paper's appendix, and the named backbones."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.messages import refused
from tests.models.by_hand import info as info_of
from tests.models.by_hand import product_flops, vit_parameters
from vit_jax import models
from vit_jax.core import pytrees
from vit_jax.learning.optim.optimizers import kernels_only
from vit_jax.learning.state import state_layout
from vit_jax.models.vit import PLACES, PLAIN
from vit_jax.parallel.mesh import AXES

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROUNDING = 1e-5  # float32 sums in another order
AGREEMENT = 1e-5  # likewise, relative to the largest entry
TOY = {"depth": 2, "width": 16, "mlp_dim": 24, "num_heads": 2}
BACKBONES = [n for n in models.available() if n.startswith("ViT-") and n not in PLAIN]
POSITIONS = [
    {"position_embedding": kind, "position_at": place}
    for kind, places in PLACES.items()
    for place in places
]
FIELDS = [
    {"pool": "avg", "pre_logits": True},
    {"pool": "map", "pre_logits": True},
    {"registers": 3},
    {"registers": 3, "pool": "avg"},
    {"registers": 3, "pool": "cls_avg"},
    {"registers": 3, "pool": "map", "norm": "rms"},
    {"distillation_token": True},
    {"distillation_token": True, "registers": 2, "position_embedding": "relative"},
    {"mlp": "swiglu"},
    {"mlp": "geglu", "dense_bias": False},
    {"parallel": True, "norm": "layer_no_bias"},
    {"qk_norm": True},
    {"qkv_bias": "query_value"},
    {"qkv_bias": "none", "dense_bias": False},
]
ALL = [*POSITIONS, *FIELDS]


def spell(fields):
    return ",".join(f"{k}={v}" for k, v in fields.items()) if isinstance(fields, dict) else None


def toy(name="ViT-Ti/4", image_size=(8, 12), **fields):
    arguments = {"num_classes": 5, "image_size": image_size, "rngs": nnx.Rngs(0)}
    return models.create(name, **(arguments | TOY | fields))


def random_images(*shape):
    return jax.random.normal(jax.random.key(0), shape)


def params_of(model):
    return pytrees.flatten(nnx.to_pure_dict(nnx.state(model, nnx.Param)))


@pytest.mark.parametrize("fields", ALL, ids=spell)
def test_flops_are_those_of_the_matrix_products(fields):
    info = models.info("ViT-Ti/4", num_classes=5, image_size=(8, 12), **TOY, **fields)

    def run(images):
        return toy(scan=True, **fields)(images)  # where every block computes all tokens

    flops = product_flops(jax.make_jaxpr(run)(jnp.zeros((1, 8, 12, 3))).jaxpr)
    once = 2 * 16 * 16 if fields.get("pool") == "map" else 0  # the probe's query
    assert flops == info.forward_flops + once


@pytest.mark.parametrize("fields", ALL, ids=spell)
def test_parameters_by_hand(fields):
    info = models.info("ViT-Ti/4", num_classes=5, image_size=(8, 12), **TOY, **fields)
    spec = models.spec("ViT-Ti/4", **TOY, **fields)
    assert info.parameters == vit_parameters(spec, num_classes=5, image_size=(8, 12))


# --- training


def loss_and_gradients(images, **fields):
    """Loss and gradients of a model with parameters drawn by NumPy, to compile nothing else."""
    graph, shapes = nnx.split(nnx.eval_shape(lambda: toy(**fields)), nnx.Param)
    rng = np.random.default_rng(0)
    draw = lambda p: jnp.asarray(0.1 + 0.3 * rng.normal(size=p.shape), jnp.float32)
    params = jax.tree.map(draw, nnx.to_pure_dict(shapes))

    def loss(params):
        logits = nnx.merge(graph, params)(images, train=True, rngs=jax.random.key(1))
        return -jax.nn.log_softmax(logits)[:, 0].mean()

    value, grads = jax.jit(jax.value_and_grad(loss))(params)
    return value, pytrees.flatten(grads)


# Together they have every kind of parameter; the others take a minute.
QUICK = (
    {"position_embedding": "relative", "position_at": "shared", "dtype": "bfloat16"},
    {"name": "ViT-22B/14", "position_embedding": "learned_2d", "position_at": "layers"},
    {"name": "ViT-S+/16-dinov3", "dtype": "bfloat16", "scan": True},
)
# Names that coincide at toy size are trained once; scan and unrolled blocks alternate.
WAYS = ({"dtype": "float32", "scan": False}, {"dtype": "bfloat16", "scan": True})
DIFFERENT = {models.spec(name, **TOY, patch_size=16): {"name": name} for name in BACKBONES}
SLOW = [
    {**way, **fields}
    for fields, way in zip([*ALL, *DIFFERENT.values()], itertools.cycle(WAYS), strict=False)
]
TRAINED = [*QUICK, *(pytest.param(fields, marks=pytest.mark.slow) for fields in SLOW)]


@pytest.mark.parametrize("fields", TRAINED, ids=spell)
def test_one_step_of_training_moves_every_parameter(fields):
    name = fields.get("name", "ViT-Ti/4")
    patch = models.spec(name).patch_size
    size = (2 * patch, 3 * patch)
    arguments = {"name": name, "image_size": size} | fields
    loss, grads = loss_and_gradients(random_images(2, *size, 3), **arguments)
    assert np.isfinite(loss)
    for parameter, grad in grads.items():
        assert np.isfinite(grad).all(), parameter
        assert grad.any(), parameter


@pytest.mark.parametrize(
    "fields",
    [
        {"position_embedding": "relative", "position_at": "shared", "qk_norm": True},
        pytest.param(
            {"position_embedding": "learned_2d", "position_at": "layers", "registers": 2},
            marks=pytest.mark.slow,
        ),
    ],
    ids=spell,
)
def test_ways_to_run_the_blocks_agree(fields):
    images = random_images(2, 8, 12, 3)
    loss, grads = loss_and_gradients(images, **fields)
    scanned_loss, scanned = loss_and_gradients(images, scan=True, remat="full", **fields)
    np.testing.assert_allclose(scanned_loss, loss, rtol=AGREEMENT)
    for name, grad in grads.items():
        scale = float(jnp.abs(grad).max())
        np.testing.assert_allclose(scanned[name], grad, atol=AGREEMENT * scale, err_msg=name)


@pytest.mark.parametrize("fields", [*POSITIONS, {"registers": 3, "qk_norm": True}], ids=spell)
def test_only_kernels_decay_and_only_blocks_are_stacked(fields):
    params = params_of(nnx.eval_shape(lambda: toy(**fields)))
    decayed = kernels_only(params)
    for name, x in params.items():
        assert decayed[name] == name.endswith("kernel")
        assert name.startswith("blocks/block/") == (x.shape[0] == 2 and "block" in name)
    own = [name for name in params if "positions/" in name]
    place = fields.get("position_at", "input")
    assert all(name.startswith("blocks/block/") == (place == "layers") for name in own)


@pytest.mark.parametrize("name", BACKBONES)
def test_backbones_are_laid_out_over_a_mesh(name):
    size = 4 * models.spec(name).patch_size

    def make(rngs):
        return models.create(name, num_classes=8, image_size=size, rngs=rngs, scan=True)

    types = (jax.sharding.AxisType.Auto,) * len(AXES)
    mesh = jax.sharding.AbstractMesh((1, 2, 2, 2), AXES, axis_types=types)
    layout = state_layout(make, optax.identity(), mesh, ema_decay=None, shard_optimizer=False)
    for path, x in pytrees.flatten(layout.state.params).items():
        if path.endswith("kernel"):
            assert "fsdp" in str(x.sharding.spec), path
        if "mlp" in path and path.endswith("kernel"):
            assert "tensor" in str(x.sharding.spec), path


# --- what they compute


@pytest.mark.parametrize("pool", ["avg", "map"])
def test_the_head_does_not_see_registers(pool):
    model, images = toy(registers=3, pool=pool), random_images(2, 8, 12, 3)
    tokens = model.tokens(images)
    assert tokens.shape == (2, 3 + 6, 16)
    other = tokens.at[:, :3].set(7.0)
    expected = model.pooling(other) if pool == "map" else tokens[:, 3:].mean(axis=1)
    np.testing.assert_allclose(model.features(images), expected, atol=ROUNDING)


def test_registers_are_behind_the_class_token_and_change_the_others():
    model, images = toy(registers=3, depth=1), random_images(2, 8, 12, 3)
    before = model.features(images)
    entering = model.embed(images)
    np.testing.assert_array_equal(entering[:, 1:4], np.stack([model.registers[...]] * 2))
    without = toy(depth=1).embed(images)
    assert entering[:, 4:].shape == without[:, 1:].shape
    model.registers[...] = 2 * model.registers[...]
    assert float(jnp.abs(model.features(images) - before).max()) > ROUNDING


def test_without_positions_the_order_of_patches_does_not_matter():
    model, images = toy(position_embedding="none"), random_images(2, 8, 12, 3)
    other = jnp.concatenate([images[:, :, 4:], images[:, :, :4]], axis=2)
    np.testing.assert_allclose(model.features(other), model.features(images), atol=10 * ROUNDING)
    assert not any("positions" in name for name in params_of(model))


def test_a_table_in_every_layer_is_added_in_every_layer():
    """Set to zero in the second layer, it equals a table at the input; a shared one cannot."""
    fields = {"position_embedding": "learned_1d"}
    images = random_images(1, 8, 12, 3)
    own, at_input = toy(position_at="layers", **fields), toy(position_at="input", **fields)
    table = at_input.positions.embedding[...]
    own.blocks.block.positions.embedding[...] = jnp.stack([table, 0 * table])
    graph, _ = nnx.split(at_input, nnx.Param)
    theirs = nnx.to_pure_dict(nnx.state(own, nnx.Param))
    del theirs["blocks"]["block"]["positions"]
    theirs["positions"] = {"embedding": table}
    np.testing.assert_allclose(
        own.features(images), nnx.merge(graph, theirs).features(images), atol=ROUNDING
    )
    own.blocks.block.positions.embedding[...] = jnp.stack([table, table])
    shared = nnx.merge(nnx.split(toy(position_at="shared", **fields), nnx.Param)[0], theirs)
    np.testing.assert_allclose(own.features(images), shared.features(images), atol=ROUNDING)


# --- backbones

# Millions of parameters without a head, as rounded in the authors' READMEs
# (facebookresearch/dinov2, dinov3).
MILLIONS = {
    "ViT-S/14-dinov2": 21, "ViT-B/14-dinov2": 86, "ViT-L/14-dinov2": 300,
    "ViT-g/14-dinov2": 1_100, "ViT-S/16-dinov3": 21, "ViT-S+/16-dinov3": 29, "ViT-B/16-dinov3": 86,
    "ViT-L/16-dinov3": 300, "ViT-H+/16-dinov3": 840, "ViT-7B/16-dinov3": 6_716,
}  # fmt: skip


@pytest.mark.parametrize("name", MILLIONS)
def test_backbones_have_the_published_size(name):
    millions = info_of(name, num_classes=0).parameters / 1e6
    assert abs(millions / MILLIONS[name] - 1) < 0.04


def test_vit_22b_has_the_published_size():
    """Table 1 of arXiv 2302.05442: 21,743 M, counting only the matrices of its blocks."""
    s = models.spec("ViT-22B/14")
    matrices = s.depth * (4 * s.width**2 + 2 * s.width * s.mlp_dim)
    assert round(matrices / 1e6) == 21_743
    assert info_of("ViT-22B/14").parameters == pytest.approx(matrices, rel=0.03)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"position_embedding": "relative", "position_at": "input"}, "model.position_at=input"),
        ({"position_embedding": "rotary_2d", "position_at": "layers"}, "model.position_at=layers"),
        ({"position_embedding": "rotary_2d", "width": 12}, "model.width=12"),
        ({"position_embedding": "learned_2d", "width": 17, "num_heads": 1}, "model.width=17"),
        ({"position_embedding": "rotary"}, "'rotary_2d'"),
        ({"position_at": "layer"}, "'layers'"),
        ({"registers": -1}, "model.registers=-1"),
        ({"mlp": "glu"}, "model.mlp"),
        ({"norm": "rmsnorm"}, "'rms'"),
        ({"qkv_bias": "q"}, "model.qkv_bias"),
        ({"name": "ViT-B/14-dinov4"}, "'ViT-B/14-dinov2'"),
        ({"name": "ViT-Ti/14-dinov2"}, "'ViT-Ti/14-dinov2'"),
        ({"name": "R50+ViT-22B/16"}, "'R50+ViT-22B/16'"),
    ],
    ids=spell,
)
def test_impossible_fields_are_refused(fields, name):
    with refused(name):
        toy(**fields)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("ViT-Ti/16", {"width": "192"}),
        ("ViT-Ti/16", {"depth": 1.5}),
        ("ViT-Ti/16", {"registers": 1.5}),
        ("ViT-Ti/16", {"mlp_dim": True}),
        ("ViT-Ti/16", {"parallel": "yes"}),
        ("ViT-Ti/16", {"layer_scale": float("nan")}),
        ("ViT-Ti/16", {"norm_epsilon": "x"}),
        ("ViT-Ti/16", {"num_classes": -1}),
        ("ViT-Ti/16", {"image_size": (16, 16, 16)}),
        ("ViT-Ti/16", {"image_size": 16.0}),
        ("R50x1", {"units": 3}),
        ("R50x1", {"units": (1.5,)}),
        ("R50x1", {"image_size": 0}),
        ("R50x1", {"image_size": (16, -1)}),
    ],
)
def test_values_of_another_type_are_refused(name, fields):
    ((field, _),) = fields.items()
    with refused(field):
        models.info(name, **({"image_size": 16} | fields))
