"""What holds for models of every kind: names, sizes, FLOPs, refusals, and that all of it trains."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.messages import refused
from tests.models.by_hand import info, loss_and_gradients, random_images, random_parameters
from vit_jax import models
from vit_jax.core import pytrees
from vit_jax.learning.optim.optimizers import kernels_only
from vit_jax.models.vit import PLACES, PLAIN

pytestmark = pytest.mark.usefixtures("quick_compilation")
AGREEMENT = 2e-4  # gradients: float32 sums in another order, relative to the largest entry
VIT = {"depth": 2, "width": 16, "mlp_dim": 24, "num_heads": 2}
RESNET = {"units": (1, 2), "root_width": 32}
# A small model of each kind.
TOYS = {
    "ViT-Ti/4": VIT,
    "Axial-ViT-Ti/4": VIT,
    "R50x1": RESNET,
    "AxialResNet-50": RESNET | {"num_heads": 4},
    "EfficientNet-0.25x0.1": {},
    "R50+ViT-B/16": VIT | RESNET | {"units": (1, 1)},
}

# Of 1000 classes, at 224 px unless a name says otherwise. ViTs: the table of models; Ti, S: arXiv
# 2012.12877; no paper counts So400m, g and G with a class token and such a head: by their sizes.
# All others were counted by timm 1.0.31 on torch.device("meta"): resnetv2_*_bit or
# _create_resnetv2_bit(..., layers=units, width_factor=factor); vit_*_r*_* or the last of them with
# backbone=_resnetv2(units), embed_dim=width, depth and num_heads; tf_efficientnet_*.
PARAMETERS = {
    "ViT-Ti/16": 5_717_416, "ViT-S/16": 22_050_664, "ViT-B/16": 86_567_656,
    "ViT-B/32": 88_224_232, "ViT-L/16": 304_326_632, "ViT-L/32": 306_535_400,
    "ViT-H/14": 632_045_800, "ViT-So400m/14": 413_597_656, "ViT-g/14": 1_012_611_432,
    "ViT-G/14": 1_844_440_680,
    "R26x1": 15_987_496, "R50x1": 25_549_352, "R50x2": 97_988_712, "R50x3": 217_319_080,
    "R101x1": 44_541_480, "R101x3": 387_934_888, "R152x1": 60_185_128, "R152x2": 236_335_208,
    "R152x4": 936_533_224, "R200x3": 568_633_000,
    "R+ViT-Ti/16": 6_337_704, "R+ViT-Ti/16 at 384": 6_355_944, "R26+ViT-S/32": 36_431_912,
    "R26+ViT-S/32 at 384": 36_468_392, "R50+ViT-B/16": 98_659_112,
    "R50+ViT-B/16 at 384": 98_950_952, "R50+ViT-B/32": 110_945_832, "R50+ViT-L/16": 316_483_624,
    "R50+ViT-L/32": 328_994_856, "R50+ViT-L/32 at 384": 329_092_136,
    "AxialResNet-50": 19_373_640,  # kernels, norms, offsets and head, by hand
    "EfficientNet-B0": 5_288_548, "EfficientNet-B1": 7_794_184, "EfficientNet-B2": 9_109_994,
    "EfficientNet-B3": 12_233_232, "EfficientNet-B4": 19_341_616, "EfficientNet-B5": 30_389_784,
    "EfficientNet-B6": 43_040_704, "EfficientNet-B7": 66_347_960, "EfficientNet-L2": 480_309_308,
}  # fmt: skip


# Those of EfficientNets take longest, and differ by the same two coefficients.
COUNTED = [
    pytest.param(
        name, marks=[pytest.mark.slow] * (name[:13] == "EfficientNet-" and name[-2:] != "B0")
    )
    for name in PARAMETERS
]


@pytest.mark.parametrize("name", COUNTED)
def test_parameter_counts(name):
    name, _, size = name.partition(" at ")
    at = {"image_size": int(size)} if size else {}
    assert info(name, **at).parameters == PARAMETERS[f"{name} at {size}" if size else name]


# exaFLOPs on 303 M images (arXiv 2010.11929, table 6), by 3 x forward FLOPs x images. The paper's
# B/32 is known to lie 2 % below its own rule; R50+ViT-L/16 for 7 epochs is left out: it is 3 % more
# than half of that for 14.
EXAFLOPS = {
    ("ViT-B/32", 7): (55, 0.025), ("ViT-B/16", 7): (224, 0.01), ("ViT-L/32", 7): (196, 0.01),
    ("ViT-L/16", 7): (783, 0.01), ("ViT-L/16", 14): (1567, 0.01), ("ViT-H/14", 14): (4262, 0.01),
    ("R50x1", 7): (50, 0.015), ("R50x2", 7): (199, 0.015), ("R101x1", 7): (96, 0.015),
    ("R152x1", 7): (141, 0.015), ("R152x2", 7): (563, 0.015), ("R200x3", 14): (3306, 0.015),
    ("R50+ViT-B/32", 7): (106, 0.01), ("R50+ViT-B/16", 7): (274, 0.01),
    ("R50+ViT-L/32", 7): (246, 0.01), ("R50+ViT-L/16", 14): (1668, 0.01),
}  # fmt: skip


@pytest.mark.parametrize(("name", "epochs"), EXAFLOPS)
def test_flops_against_the_paper(name, epochs):
    published, tolerance = EXAFLOPS[name, epochs]
    spec = models.spec(name, **({"pre_logits": True} if "ViT" in name else {}))
    flops = models.forward_flops(spec, 18_291, (224, 224))
    assert abs(3 * flops * epochs * 303e6 / 1e18 / published - 1) < tolerance


# One of each style, for fields that do not depend on the size.
STYLES = [
    "ViT-S/16", "ViT-22B/14", "ViT-g/14-dinov2", "ViT-S/14-dinov2-reg", "ViT-7B/16-dinov3",
    "R50+ViT-B/16",
]  # fmt: skip
OTHER_FIELDS = [
    {"pool": "avg", "pre_logits": True},
    {"pool": "map", "position_embedding": "sincos_2d", "layer_scale": 1e-4, "dropout": 0.1},
    {"num_classes": 0},
]
NAMES = [
    *(n for n in models.available() if n not in PARAMETERS),  # of which the table above has these
    "R101+ViT-H/32",
    "R200+ViT-S/16",
]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        *((name, {}) for name in NAMES),
        *zip(STYLES, itertools.cycle(OTHER_FIELDS)),
        *((name, {"num_classes": 0}) for name in ("R50x1", "EfficientNet-B0", "AxialResNet-50")),
    ],
)
def test_every_name_builds_and_gives_float32_logits(name, fields):
    spec = models.spec(name, **{k: v for k, v in fields.items() if k != "num_classes"})
    size = (2 * spec.stride, 3 * spec.stride)
    # A scan traces one block, not all.
    arguments = {"num_classes": 7, "dtype": "bfloat16", "scan": True} | fields

    def run(images):
        model = models.create(name, image_size=size, rngs=nnx.Rngs(0), **arguments)
        return model(images), model.features(images), model.tokens(images)

    images = jax.ShapeDtypeStruct((2, *size, 3), jnp.float32)
    logits, features, tokens = jax.eval_shape(run, images)
    assert (logits.shape, logits.dtype) == (
        (2, arguments["num_classes"] or features.shape[1]),
        jnp.float32,
    )
    assert features.dtype == tokens.dtype == jnp.bfloat16
    assert tokens.shape[:2] == (2, spec.token_layout(size).num_tokens)
    assert spec.token_layout(size).grid == (2, 3)


@pytest.mark.parametrize("name", TOYS)
def test_tokens_features_and_logits_fit_together(name):
    make, size = toy(name)
    graph, params = random_parameters(make)
    spec = nnx.eval_shape(make).spec

    def run(params, images):
        m = nnx.merge(graph, params)
        return (
            m(images),
            m.features(images),
            m.tokens(images),
            m.tokens(images, (0, spec.depth - 1)),
        )

    logits, features, tokens, (first, last) = jax.jit(run)(params, random_images(2, *size))
    pooled = tokens[:, 0] if getattr(spec, "pool", "") == "cls" else tokens.mean(axis=1)
    np.testing.assert_allclose(features, pooled, rtol=1e-4, atol=1e-5)
    head = params["head"]
    expected = features @ head["kernel"] + head["bias"]
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    assert len(first) == len(last) == 2 and last.shape[1] == tokens.shape[1]


# --- training

POSITIONS = [
    {"position_embedding": kind, "position_at": place}
    for kind, places in PLACES.items()
    for place in places
]
FIELDS = [
    *POSITIONS,
    {"pool": "avg", "pre_logits": True},
    {"pool": "map", "pre_logits": True},
    {"pool": "map", "projection": 8, "unit_features": True},
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
    {"logit_cap": 5.0, "registers": 2, "position_embedding": "relative_2d"},
    {"value_residual": 0.5, "attention_dropout": 0.1},
    {"pre_norm": True, "patch_bias": False, "patch_norm": True, "gelu": "quick"},
    {"norm_branch": True, "pool": "avg", "class_token": True, "final_norm": "features"},
    {"pool": "map", "class_token": True, "pool_prefix": True, "final_norm": "none"},
    {"attention_norm": True, "mlp_norm": True, "mlp": "swiglu", "norm": "rms"},
    {"position_embedding": "rotary_axial", "absolute_positions": True, "rotary_grid": 4},
    {"pool": "map", "pool_heads": 1, "pool_mlp_dim": 12},
]
BACKBONES = [n for n in models.available() if n.startswith("ViT-") and n not in PLAIN]
# Names that coincide at toy size are trained once; scan and unrolled blocks alternate.
DIFFERENT = {models.spec(n, **VIT, patch_size=16): {"name": n} for n in BACKBONES}
WAYS = ({"dtype": "float32", "scan": False}, {"dtype": "bfloat16", "scan": True})
SLOW = [
    *(way | fields for fields, way in zip([*FIELDS, *DIFFERENT.values()], itertools.cycle(WAYS))),
    *({"name": "EfficientNet-0.25x0.1", "dtype": dtype} for dtype in ("float32", "bfloat16")),
    {"name": "AxialResNet-50", "dtype": "bfloat16", "remat": "dots"},
    {"name": "R50x1", "dtype": "bfloat16", "scan": True},
    {"name": "Axial-ViT-Ti/4", "dtype": "bfloat16", "pool": "map", "qk_norm": True,
     "position_embedding": "rotary_2d"},
    {"name": "Axial-ViT-Ti/4", "dtype": "bfloat16", "position_at": "layers", "mlp": "swiglu",
     "layer_scale": 0.5, "parallel": True},
]  # fmt: skip
# Together they have every kind of a ViT's parameters; the others take a minute.
QUICK = [
    {"position_embedding": "relative", "position_at": "shared", "dtype": "bfloat16"},
    {"name": "ViT-22B/14", "position_embedding": "learned_2d", "position_at": "layers"},
    {"name": "ViT-S+/16-dinov3", "dtype": "bfloat16", "scan": True},
    {"position_embedding": "rotary_mixed", "absolute_positions": True, "attention_norm": True,
     "mlp_norm": True, "pool": "map", "pool_heads": 1, "pool_mlp_dim": 12, "dtype": "bfloat16"},
]  # fmt: skip


def spell(fields):
    return ",".join(f"{k}={v}" for k, v in fields.items())


def toy(name="ViT-Ti/4", **fields):
    """(a function that makes the model, the size of its images)"""
    fields = TOYS.get(name, VIT) | fields
    of_spec = {k: v for k, v in fields.items() if k not in ("image_size", "num_classes")}
    stride = models.spec(name, **of_spec).stride
    size = (2 * stride, 3 * stride)
    make = lambda: models.create(
        name, **({"num_classes": 5, "image_size": size, "rngs": nnx.Rngs(0)} | fields)
    )
    return make, size


@pytest.mark.parametrize(
    "fields", [*QUICK, *(pytest.param(x, marks=pytest.mark.slow) for x in SLOW)], ids=spell
)
def test_one_step_of_training_moves_every_parameter(fields):
    make, size = toy(**fields)
    loss, grads = loss_and_gradients(make, size)
    assert np.isfinite(loss)
    for name, grad in grads.items():
        assert np.isfinite(grad).all() and grad.any(), name


@pytest.mark.parametrize(
    "fields",
    [
        {"position_embedding": "relative", "position_at": "shared", "qk_norm": True},
        {"position_embedding": "rotary_mixed", "attention_norm": True, "mlp_norm": True},
        *(
            pytest.param(slow, marks=pytest.mark.slow)
            for slow in (
                {"name": "Axial-ViT-Ti/4", "stochastic_depth": 0.5},
                {"position_embedding": "learned_2d", "position_at": "layers", "registers": 2},
                {"name": "AxialResNet-50", "units": (1, 3)},
                {"value_residual": 0.5, "logit_cap": 2.0},
            )
        ),
    ],
    ids=spell,
)
def test_ways_to_run_the_blocks_agree(fields):
    loss, grads = loss_and_gradients(*toy(**fields))
    scanned_loss, scanned = loss_and_gradients(*toy(scan=True, remat="full", **fields))
    np.testing.assert_allclose(scanned_loss, loss, rtol=1e-5)
    agreement = AGREEMENT if "AxialResNet" in fields.get("name", "") else 1e-5
    for name, grad in grads.items():
        scale = float(jnp.abs(grad).max())
        assert scale > 0, name
        np.testing.assert_allclose(scanned[name], grad, atol=agreement * scale, err_msg=name)


@pytest.mark.parametrize(
    "fields",
    [*POSITIONS, {"registers": 3, "qk_norm": True}, *({"name": name} for name in TOYS)],
    ids=spell,
)
def test_only_kernels_decay_and_only_blocks_are_stacked(fields):
    make, _ = toy(**fields)
    params = pytrees.flatten(nnx.to_pure_dict(nnx.state(nnx.eval_shape(make), nnx.Param)))
    decayed = kernels_only(params)
    is_vit = "ViT" in fields.get("name", "ViT")
    for name, x in params.items():
        assert decayed[name] == name.endswith("kernel")
        stacked = "/block/" in name
        assert not (stacked and is_vit and "resnet" not in name) or x.shape[0] == 2
    if "position_at" in fields:
        tables = [name for name in params if "positions/" in name]
        in_layers = fields["position_at"] == "layers"
        assert all(name.startswith("blocks/block/") == in_layers for name in tables)


# --- refusals

VITS, HYBRID, AXIAL, BIT = "ViT-Ti/4", "R50+ViT-B/16", "Axial-ViT-Ti/4", "R50x1"
LINES, EFFICIENT, FULL = "AxialResNet-50", "EfficientNet-0.25x0.1", "ViT-B/16"


@pytest.mark.parametrize(
    ("name", "fields", "mention"),
    [
        (VITS, {"image_size": 10}, "(8, 8)"),
        (VITS, {"image_size": (16, 16, 16)}, "image_size"),
        (VITS, {"num_classes": -1}, "num_classes"),
        (VITS, {"width": 17}, "model.width=17"),
        (VITS, {"width": 18, "position_embedding": "sincos_2d"}, "model.width=18"),
        (VITS, {"position_embedding": "rotary_2d", "width": 12}, "model.width=12"),
        (VITS, {"position_embedding": "learned_2d", "width": 17, "num_heads": 1}, "model.width=17"),
        (VITS, {"pool": "max"}, "model.pool"),
        (VITS, {"residual_dtype": "bfloat16"}, "model.residual_dtype='bfloat16'"),
        (VITS, {"gradient_dtype": "float16"}, "'bfloat16'"),
        (VITS, {"position_embedding": "sincos"}, "'sincos_2d'"),
        (VITS, {"position_embedding": "relative", "position_at": "input"},
         "model.position_at=input"),
        (VITS, {"position_embedding": "rotary_2d", "position_at": "layers"},
         "model.position_at=layers"),
        (VITS, {"dropout": 1.0}, "model.dropout=1.0"),
        (VITS, {"norm_stream": True, "parallel": True}, "model.norm_stream"),
        (VITS, {"norm_branch": True, "layer_scale": 0.1}, "model.norm_branch"),
        (VITS, {"logit_cap": 1.0, "attention": "splash"}, "model.logit_cap"),
        (VITS, {"position_embedding": "relative_2d", "attention": "cudnn", "dtype": "bfloat16"},
         "model.attention=cudnn"),
        (AXIAL, {"logit_cap": 1.0}, "model.logit_cap=1.0"),
        (AXIAL, {"value_residual": 0.5}, "model.value_residual=0.5"),
        (VITS, {"final_norm": "features", "pool": "cls_avg"}, "model.final_norm"),
        (VITS, {"attention_dropout": 0.1, "attention": "splash"}, "model.attention=splash"),
        (VITS, {"registers": -1}, "model.registers=-1"),
        (VITS, {"widht": 17}, "'width'"),
        (VITS, {"depth": 0}, "model.depth=0"),
        (VITS, {"mlp_dim": True}, "mlp_dim"),
        (VITS, {"mlp": "glu"}, "model.mlp"),
        (VITS, {"norm": "rmsnorm"}, "'rms'"),
        (VITS, {"norm_epsilon": 0.0}, "model.norm_epsilon=0.0"),
        (VITS, {"qkv_bias": "q"}, "model.qkv_bias"),
        (VITS, {"qk_norm": 1}, "model.qk_norm=1"),
        (VITS, {"layer_scale": float("nan")}, "layer_scale"),
        (VITS, {"initialization": "diet"}, "'diet'"),
        (HYBRID, {"units": (1, 1, 1, 1)}, "model.patch_size=16"),
        (HYBRID, {"root_width": 33}, "model.root_width=33"),
        (HYBRID, {"image_size": 40}, "(40, 40)"),
        (HYBRID, {"units": (2,), "patch_size": 6}, "nearest: 8"),
        (AXIAL, {"pool": "cls"}, "model.pool=cls"),
        (AXIAL, {"registers": 2}, "model.registers=2"),
        (AXIAL, {"class_token": True}, "model.class_token=True"),
        (AXIAL, {"position_embedding": "relative"}, "model.position_embedding"),
        (AXIAL, {"attention": "fused"}, "model.attention=fused"),
        (BIT, {"units": ()}, "model.units"),
        (BIT, {"units": (1, 0)}, "model.units=(1, 0)"),
        (BIT, {"image_size": 0}, "image_size"),
        (BIT, {"root_width": 48}, "model.root_width=48"),
        (BIT, {"width": 64}, "'width'"),
        (BIT, {"weight_epsilon_of": "std"}, "weight_epsilon_of"),
        (BIT, {"group_norm_epsilon": 0.0}, "model.group_norm_epsilon=0.0"),
        (LINES, {"num_heads": 5}, "model.num_heads=5"),
        (LINES, {"group_norm_epsilon": 0.0}, "model.group_norm_epsilon=0.0"),
        (EFFICIENT, {"padding": "valid"}, "model.padding"),
        (EFFICIENT, {"width_coefficient": 0}, "model.width_coefficient=0"),
        (EFFICIENT, {"batch_norm_momentum": 1.0}, "model.batch_norm_momentum=1.0"),
        (EFFICIENT, {"batch_norm_epsilon": 0.0}, "model.batch_norm_epsilon=0.0"),
        (VITS, {"absolute_positions": True}, "model.absolute_positions=True"),
        (VITS, {"position_embedding": "rotary_2d", "rotary_grid": 2}, "model.rotary_grid=2"),
        (VITS, {"pool": "map", "pool_heads": 3}, "model.pool_heads=3"),
        (VITS, {"pool": "cls_avg", "projection": 8}, "model.projection=8"),
        (VITS, {"distillation_token": True, "unit_features": True}, "model.unit_features=True"),
    ],
)  # fmt: skip
def test_impossible_fields_are_refused(name, fields, mention):
    with refused(mention):
        nnx.eval_shape(toy(name, **fields)[0])


@pytest.mark.parametrize(
    "name",
    [
        "ViT-X/16", "ViT-B/0", "vit-b/16", "R50x0", "R50+ViT-B/8", "Axial-R50x1", "AxialResNet-51",
        "EfficientNet-B8", "EfficientNet-0x1", "B0", "", "resnet50",
    ],
)  # fmt: skip
def test_unknown_names(name):
    with refused(f"Unknown model {name!r}"):
        models.info(name)
