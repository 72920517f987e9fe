"""Whole trainings without labels, and by a teacher, beside the loops of the methods' authors.

What their code does otherwise, and docs/methods.md says so, is switched off in the programs.
"""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.outside.recipe_test import drawn_batches, updated
from vit_jax import config as configs
from vit_jax import models, weights
from vit_jax.core.pytrees import flatten, map_named
from vit_jax.learning.losses import batch_layout
from vit_jax.learning.state import random_stream
from vit_jax.models.layers import posemb
from vit_jax.run.parts import inputs, preprocessing, updates
from vit_jax.weights.files import safetensors

pytestmark = pytest.mark.slow
STEPS, EPOCHS, BATCH, CLASSES = 40, 4, 8, 10
LARGE, SMALL, PATCH, WIDTH, DEPTH, HEADS = 32, 16, 8, 16, 2, 2
VIT = {
    "width": WIDTH, "depth": DEPTH, "num_heads": HEADS, "mlp_dim": 4 * WIDTH, "gelu": "exact",
    "dtype": "float32",
}  # fmt: skip
THEIR_VIT = {"patch_size": PATCH, "embed_dim": WIDTH, "depth": DEPTH, "num_heads": HEADS}
LR, MOMENTUM = 1e-3, 0.9
PROTOTYPES, HIDDEN, BOTTLENECK = 24, 20, 12
# The teacher's temperature rises to the last of so many epochs, each a step.
TEMPERATURE_EPOCHS = 11
VIEWS = ("image", "view1", "view2", "view3")
EARLY = 10
LOSS, LATE_LOSS = 1e-5, 1e-4
PARAMETERS = 1e-3  # of the distance that an array has moved
LEAST_MOVE = 1e-4  # of an array, root mean square
CENTRE = 1e-5


def resolved(method, *, optim=None, pixels=LARGE, model=(), **sections):
    defaults = {"lr": LR, "schedule": "cosine", "weight_decay": 0.05, "grad_clip_norm": None}
    preprocess = {"preprocess": f"decode|resize({pixels})", **sections.pop("input", {})}
    return configs.resolve(
        {
            "model": {"name": f"ViT-Ti/{PATCH}", **VIT, **dict(model)},
            "method": method,
            "input": {"batch_size": BATCH, "num_classes": CLASSES, **preprocess},
            "optim": defaults | (optim or {}),
            "total": {"steps": STEPS},
            **sections,
        }
    )


def parts_of(config):
    """The parts of the step, as a run makes them."""
    mesh = inputs.mesh(config.mesh)
    return updates.step_parts(config, mesh, num_examples=BATCH, num_classes=CLASSES)


def keys(config):
    """The key of each step's loss."""
    stream = random_stream(config.seed, "dropout")
    return [jax.random.fold_in(stream, step) for step in range(STEPS)]


def trained(config, parts, params, batches):
    """The losses, and the state after all steps."""
    layout = parts.layout
    state = layout.with_params(layout.init(0), jax.tree.map(jnp.array, params))
    shapes = batch_layout(
        layout.mesh, batch_size=BATCH, image_size=batches[0]["image"].shape[1:3], max_labels=1,
        views=preprocessing.view_sizes(config.input),
    )  # fmt: skip
    update, teacher = updates.update(config, parts), layout.read_teacher_params()
    rows, state = updated(update, layout, shapes, state, batches, *teacher)
    return [row["train/loss"] for row in rows], state


def stacked(batches, name):
    return np.stack([batch[name] for batch in batches])


def arrays_of(expected, kind):
    return {n.removeprefix(f"{kind}/"): x for n, x in expected.items() if n.startswith(f"{kind}/")}


def params_of(model):
    return jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(model, nnx.Param)))


def check_losses(losses, expected):
    np.testing.assert_allclose(losses[:EARLY], expected[:EARLY], rtol=LOSS)
    np.testing.assert_allclose(losses, expected, rtol=LATE_LOSS)


def check_params(actual, expected, start, least_move=LEAST_MOVE, rounding=0.0):
    actual, expected, start = map(flatten, (actual, expected, start))
    assert set(actual) == set(expected) == set(start)
    for name, ours in actual.items():
        x, wanted, first = (np.asarray(each) for each in (ours, expected[name], start[name]))
        # A key's bias has no gradient: the softmax over keys cancels it.
        if name.endswith("qkv/bias"):
            x, wanted, first = (each[:, ::2] for each in (x, wanted, first))
        elif name.endswith("qkv.bias"):
            x, wanted, first = (each.reshape(3, -1)[::2] for each in (x, wanted, first))
        moved, apart = np.linalg.norm(wanted - first), np.linalg.norm(x - wanted)
        assert moved > least_move * np.sqrt(x.size), f"{name} stood still"
        assert apart <= PARAMETERS * moved + rounding * np.linalg.norm(x), name


# --- MAE

MAE_PIXELS, MAE_WIDTH, DECODER = 32, 32, 16
PLACES = (MAE_PIXELS // PATCH) ** 2


def fill(ours, theirs, name):
    """A linear layer or a norm."""
    kernel = theirs[f"{name}.weight"]
    if hasattr(ours, "kernel"):
        ours.kernel[...] = kernel.T.reshape(ours.kernel.shape)
    else:
        ours.scale[...] = kernel
    ours.bias[...] = theirs[f"{name}.bias"].reshape(ours.bias.shape)


def fill_patches(model, theirs, name=""):
    model.patches.kernel[...] = theirs[f"{name}patch_embed.proj.weight"].transpose(2, 3, 1, 0)
    model.patches.bias[...] = theirs[f"{name}patch_embed.proj.bias"]


def fill_blocks(stack, theirs, name):
    of = lambda part: np.stack([theirs[f"{name}.{i}.{part}"] for i in range(stack.depth)])
    block = stack.block
    layers = {
        "attn.qkv": block.attention.qkv, "attn.proj": block.attention.out,
        "mlp.fc1": block.mlp.fc1, "mlp.fc2": block.mlp.fc2,
    }  # fmt: skip
    for part, ours in layers.items():
        ours.kernel[...] = of(f"{part}.weight").swapaxes(1, 2).reshape(ours.kernel.shape)
        ours.bias[...] = of(f"{part}.bias").reshape(ours.bias.shape)
    for part, ours in (("norm1", block.norm1), ("norm2", block.norm2)):
        ours.scale[...], ours.bias[...] = of(f"{part}.weight"), of(f"{part}.bias")


def with_weights(method, theirs):
    model = models.create(
        "ViT-Ti/8", width=MAE_WIDTH, depth=DEPTH, num_heads=HEADS, mlp_dim=4 * MAE_WIDTH,
        gelu="exact", position_embedding="sincos_2d", num_classes=0, image_size=MAE_PIXELS,
        rngs=nnx.Rngs(0),
    )  # fmt: skip
    model.method = method.extend(model, nnx.Rngs(1))
    fill_patches(model, theirs)
    model.cls[...] = theirs["cls_token"].ravel()
    model.method.mask[...] = theirs["mask_token"].ravel()
    for ours, name in (
        (model.norm, "norm"), (model.method.embed, "decoder_embed"),
        (model.method.norm, "decoder_norm"), (model.method.head, "decoder_pred"),
    ):  # fmt: skip
        fill(ours, theirs, name)
    fill_blocks(model.blocks, theirs, "blocks")
    fill_blocks(model.method.blocks, theirs, "decoder_blocks")
    return model


def check_frequencies(theirs):
    """Ours are those of arXiv 2205.01580, theirs a step of D/4 and not of D/4 - 1 apart."""
    spec = models.spec("ViT-Ti/8", width=MAE_WIDTH, num_heads=HEADS)
    layout = spec.token_layout((MAE_PIXELS, MAE_PIXELS))
    ours = posemb.sincos("sincos_2d", layout, MAE_WIDTH)
    assert ours.shape == theirs.shape
    assert not ours[0].any() and not theirs[0].any()
    columns, quarter = np.arange(MAE_PIXELS // PATCH), MAE_WIDTH // 4
    slow = 10_000.0 ** -(np.arange(quarter) / quarter)
    np.testing.assert_allclose(theirs[1:5, :quarter], np.sin(columns[:, None] * slow), atol=1e-5)


def test_mae_trains_as_its_authors(theirs, monkeypatch):
    optim = {"warmup_steps": STEPS // EPOCHS, "b2": 0.95}
    config = resolved(
        {
            "kind": "mae", "decoder_width": DECODER, "decoder_depth": 1, "decoder_heads": HEADS,
        },
        optim=optim,
        pixels=MAE_PIXELS,
        model={
            "width": MAE_WIDTH, "mlp_dim": 4 * MAE_WIDTH, "position_embedding": "sincos_2d",
        },
    )  # fmt: skip
    batches = drawn_batches(STEPS, BATCH, MAE_PIXELS)
    shape = (BATCH, PLACES)
    noise = [jax.random.uniform(jax.random.split(key)[0], shape) for key in keys(config)]
    about = {
        "model": {
            "img_size": MAE_PIXELS, "patch_size": PATCH, "embed_dim": MAE_WIDTH, "depth": DEPTH,
            "num_heads": HEADS, "decoder_embed_dim": DECODER, "decoder_depth": 1,
            "decoder_num_heads": HEADS, "mlp_ratio": 4,
        },
        "args": {"lr": LR, "epochs": EPOCHS, "warmup_epochs": 1, "mask_ratio": 0.75},
        "weight_decay": config.optim.weight_decay,
        "undecayed": ["cls_token", "mask_token"],
    }  # fmt: skip
    expected = theirs(
        "mae",
        "mae_training",
        lambda: {
            "about": json.dumps(about),
            "noise": np.stack(noise),
            "images": stacked(batches, "image"),
        },
    )
    start, end = arrays_of(expected, "start"), arrays_of(expected, "end")
    tables = {start[n].shape[2]: start[n][0, 1:] for n in ("pos_embed", "decoder_pos_embed")}
    check_frequencies(start["pos_embed"][0])
    monkeypatch.setattr(posemb, "sincos_2d", lambda grid, width: tables[width])
    start, end = (params_of(with_weights(config.method, x)) for x in (start, end))
    losses, state = trained(config, parts_of(config), start, batches)
    check_losses(losses, expected["losses"])
    check_params(state.params, end, start)


# --- DINO and DINOv2


def drawn_views():
    """Batches of two large and two small views that have something of an image in common."""
    batches, rng = drawn_batches(STEPS, BATCH, LARGE), np.random.default_rng(3)
    for batch in batches:
        image = batch["image"].astype(int)
        crops = image, image[:, :SMALL, :SMALL], image[:, SMALL:, SMALL:]
        for name, crop in zip(VIEWS[1:], crops, strict=True):
            noise = rng.integers(-30, 30, crop.shape)
            batch[name] = np.clip(crop + noise, 0, 255).astype(np.uint8)
    return batches


def dino_config(model=(), **method):
    return resolved(
        {
            "kind": "dino", "prototypes": PROTOTYPES, "head_hidden": HIDDEN,
            "head_bottleneck": BOTTLENECK, "momentum": MOMENTUM, "still": 0.0,
            "teacher_temperature_warmup": (TEMPERATURE_EPOCHS - 1) / STEPS, **method,
        },
        input={"views": [f"decode|resize({n})" for n in (LARGE, SMALL, SMALL)]},
        optim={"warmup_steps": 0},
        model=model,
    )  # fmt: skip


def self_distilled(theirs, heads):
    """Parameters of the model and `heads`, by our names for theirs."""
    name, model = "backbone", models.create(
        f"ViT-Ti/{PATCH}", num_classes=0, image_size=LARGE, rngs=nnx.Rngs(0), **VIT,
        layer_scale=0.5 if "backbone.blocks.0.ls1.gamma" in theirs else 0.0,
    )  # fmt: skip
    fill_patches(model, theirs, f"{name}.")
    model.cls[...] = theirs[f"{name}.cls_token"].ravel()
    model.positions.embedding[...] = theirs[f"{name}.pos_embed"][0]
    fill(model.norm, theirs, f"{name}.norm")
    fill_blocks(model.blocks, theirs, f"{name}.blocks")
    for i, scale in enumerate((model.blocks.block.scale1, model.blocks.block.scale2), start=1):
        if hasattr(scale, "scale"):  # else it leaves a branch unchanged
            layers = [theirs[f"{name}.blocks.{layer}.ls{i}.gamma"] for layer in range(DEPTH)]
            scale.scale[...] = np.stack(layers)
    params = params_of(model) | {"method": {}}
    for ours, head in heads.items():
        params["method"][ours] = {
            **{
                layer: {
                    "kernel": theirs[f"{head}.mlp.{i}.weight"].T,
                    "bias": theirs[f"{head}.mlp.{i}.bias"],
                }
                for layer, i in (("fc1", 0), ("fc2", 2), ("fc3", 4))
            },
            "prototypes": {"kernel": theirs[f"{head}.last_layer.weight_v"].T},
        }
    if "patches" in heads:
        params["method"]["mask"] = theirs[f"{name}.mask_token"].ravel()
    return params


def check_self_distillation(config, batches, expected, heads):
    """heads: theirs by ours, each with the name of its running mean."""
    start, end, teacher = (
        self_distilled(arrays_of(expected, kind), {ours: head for ours, (head, _) in heads.items()})
        for kind in ("start", "end", "teacher")
    )
    losses, state = trained(config, parts_of(config), start, batches)
    check_losses(losses, expected["losses"])
    check_params(state.params, end, start)
    check_params(state.ema, teacher, start)
    for ours, (_, name) in heads.items():
        if config.method.centring == "mean":
            centre = state.method_state[ours]
            np.testing.assert_allclose(centre, expected[name], rtol=0, atol=CENTRE)
            assert np.abs(centre).max() > 0.1


def test_dino_trains_as_its_authors(theirs):
    config, batches = dino_config(), drawn_views()
    about = {
        "model": {"img_size": [LARGE], **THEIR_VIT},
        "head": {"out_dim": PROTOTYPES, "hidden_dim": HIDDEN, "bottleneck_dim": BOTTLENECK},
        "lr": LR, "weight_decay": config.optim.weight_decay, "steps": STEPS, "momentum": MOMENTUM,
        "undecayed": ["cls_token", "pos_embed"],
        "temperatures": [0.04, 0.07, TEMPERATURE_EPOCHS],
    }  # fmt: skip
    views = {f"view{i}": stacked(batches, name) for i, name in enumerate(VIEWS)}
    expected = theirs("dino", "dino_training", lambda: {"about": json.dumps(about), **views})
    check_self_distillation(config, batches, expected, {"images": ("head", "centre")})


def drawn_masks(config, parts):
    """bool [STEPS, 2 B, H, W], one large view after the other."""
    model, side = parts.layout.make(nnx.Rngs(0))[0], LARGE // PATCH
    masks = np.zeros((STEPS, 2 * BATCH, side**2), bool)
    images = np.zeros((2 * BATCH, LARGE, LARGE, 3))
    draw = jax.jit(lambda key: config.method.masks(jax.random.split(key, 5)[0], images, model))
    for of_step, key in zip(masks, keys(config), strict=True):
        places, counts = map(np.asarray, draw(key))
        for view, chosen, counted in zip(of_step, places, counts, strict=True):
            view[chosen[counted > 0]] = True
    return masks.reshape(STEPS, BATCH, 2, side, side).swapaxes(1, 2).reshape(STEPS, -1, side, side)


@pytest.mark.parametrize("centring", ["mean", "sinkhorn"])
def test_dinov2_trains_as_its_authors(theirs, centring):
    method = {"centring": centring, "patch_weight": 1.0, "koleo_weight": 0.1}
    config, batches = dino_config({"layer_scale": 0.5}, **method), drawn_views()
    head = {
        "head_n_prototypes": PROTOTYPES, "head_bottleneck_dim": BOTTLENECK, "head_nlayers": 3,
        "head_hidden_dim": HIDDEN, "loss_weight": 1.0,
    }  # fmt: skip
    decay = config.optim.weight_decay
    fields = {
        "compute_precision": {"grad_scaler": False},
        "student": {"pretrained_weights": "", "arch": "vit"},
        "dino": head | {"koleo_loss_weight": 0.1},
        "ibot": head
        | {"separate_head": True, "mask_ratio_min_max": [1, 1], "mask_sample_probability": 1},
        "train": {
            "centering": {"mean": "centering", "sinkhorn": "sinkhorn_knopp"}[centring],
            "OFFICIAL_EPOCH_LENGTH": 1,
        },
        "crops": {"local_crops_number": 2},
        "teacher": {
            "momentum_teacher": MOMENTUM, "final_momentum_teacher": 1, "warmup_teacher_temp": 0.04,
            "teacher_temp": 0.07, "warmup_teacher_temp_epochs": TEMPERATURE_EPOCHS,
        },
        "optim": {
            "epochs": STEPS, "lr": LR, "min_lr": 0.0, "warmup_epochs": 0, "weight_decay": decay,
            "weight_decay_end": decay, "freeze_last_layer_epochs": 0, "layerwise_decay": 1.0,
            "patch_embed_lr_mult": 1.0, "adamw_beta1": 0.9, "adamw_beta2": 0.999,
        },
    }  # fmt: skip
    about = {
        "model": {"img_size": LARGE, **THEIR_VIT, "init_values": 0.5},
        "undecayed": ["cls_token", "pos_embed", "mask_token"],
        "config": fields,
    }
    views = {f"view{i}": stacked(batches, name) for i, name in enumerate(VIEWS)}
    masks = functools.partial(drawn_masks, config, parts_of(config))
    expected = theirs(
        "dinov2",
        "dinov2_training",
        lambda: {"about": json.dumps(about), "masks": masks(), **views},
        case=centring,
    )
    heads = {
        "images": ("dino_head", "centre_dino_loss"),
        "patches": ("ibot_head", "centre_ibot_patch_loss"),
    }
    check_self_distillation(config, batches, expected, heads)


# --- DeiT


@pytest.mark.parametrize(("kind", "temperature"), [("hard", 1.0), ("soft", 3.0)])
def test_distillation_trains_as_deit(theirs, kind, temperature, tmp_path):
    name, rng = f"ViT-Ti/{PATCH}", np.random.default_rng(7)

    def drawn(parameter, x):
        draws = rng.normal(0, 0.2, x.shape) + parameter.endswith("scale")
        return draws.astype(np.float32)

    def arrays(graph, params, file):
        """The parameters by timm's names, from the file that is left in the folder."""
        loaded = weights.Loaded(nnx.merge(graph, params), name, None, 0)
        weights.save(loaded, tmp_path / file, "timm")
        read = safetensors.read(tmp_path / file / "model.safetensors")
        return {n: np.array(x.read()) for n, x in read.items()}

    teacher = models.create(name, num_classes=CLASSES, image_size=LARGE, rngs=nnx.Rngs(0), **VIT)
    graph, params = nnx.split(teacher, nnx.Param)
    teacher = arrays(graph, map_named(drawn, nnx.to_pure_dict(params)), "teacher")
    config = resolved(
        {
            "kind": "distillation", "teacher": str(tmp_path / "teacher"), "hard": kind == "hard",
            "temperature": temperature, "label_weight": 0.3,
        },
        model={"distillation_token": True},
        loss={"label_smoothing": 0.1},
        optim={"warmup_steps": 8, "grad_clip_norm": 1.0},
    )  # fmt: skip
    parts, batches = parts_of(config), drawn_batches(STEPS, BATCH, LARGE)
    params = map_named(drawn, parts.layout.state.params)
    start = arrays(parts.layout.graph, params, "start")
    about = {
        "model": {"img_size": LARGE, **THEIR_VIT, "num_classes": CLASSES}, "kind": kind,
        "alpha": 0.7, "temperature": temperature, "smoothing": 0.1, "lr": LR, "warmup": 8,
        "weight_decay": config.optim.weight_decay, "clip": 1.0,
    }  # fmt: skip
    expected = theirs(
        "deit",
        "deit_distillation",
        lambda: {
            "about": json.dumps(about),
            "images": stacked(batches, "image"),
            "labels": stacked(batches, "labels")[..., 0],
            **{f"student/{n}": x for n, x in start.items()},
            **{f"teacher/{n}": x for n, x in teacher.items()},
        },
        case=kind,
    )
    losses, state = trained(config, parts, params, batches)
    check_losses(losses, expected["losses"])
    ends = arrays(parts.layout.graph, state.params, "end")
    check_params(ends, {n: expected[n] for n in ends}, start)
