"""Checkpoints as the authors of a method saved them, and OpenCLIP's.

Those of DINO, MAE, MoCo v3 and I-JEPA have timm's names for the ViT. What only training needs is
left out: the student, predictor, decoder and heads of losses, and OpenCLIP's text half. OpenCLIP,
DINOv2 and DINOv3 have tables of their own. All of them are written as timm's.
"""

import dataclasses
import functools
import math
import re
from typing import Any, NamedTuple

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.weights import external
from vit_jax.weights.external import ExternalWeights
from vit_jax.weights.files import Tensors, listed
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.formats import timm
from vit_jax.weights.match import MisfitError, best
from vit_jax.weights.tables import Layout, Pack, rules


class Training(NamedTuple):
    """The checkpoints of a method; all but `prefix` are patterns of whole names.

    Attributes:
      sign: a name that only these checkpoints have.
      prefix: pattern of what precedes the names of the model that the authors evaluate.
      rest: names that are not of that model.
      config: entries of timm's config.json that their code fixes.
      num_heads: of models of all sizes, unless the caller gives another number.
    """

    title: str
    sign: str
    prefix: str
    rest: str
    config: dict[str, Any] | None = None
    num_heads: int | None = None


# The images that they evaluate: a central crop of 7/8, with ImageNet's mean and deviation.
_BICUBIC = {"pretrained_cfg": {"interpolation": "bicubic", "crop_pct": 0.875}}
_BILINEAR = {"pretrained_cfg": {"interpolation": "bilinear", "crop_pct": 0.875}}
_MOCO_HEADS = 12  # in S too, where timm has 6
_TRAININGS = (
    Training("MAE", r"decoder_embed\..*", "", r"mask_token|decoder_.*", _BICUBIC),
    Training(
        "DINO",
        r".*\bhead\.last_layer\..*|teacher\.(module\.)?backbone\..*",
        r"(teacher\.)?(module\.)?backbone\.",
        r"student\..*|(teacher\.)?(module\.)?((dino|ibot)_)?head\..*",
        _BICUBIC,
    ),
    Training(
        "MoCo v3",
        r"module\.momentum_encoder\..*",
        r"module\.base_encoder\.",
        r"module\.(momentum_encoder|predictor|base_encoder\.head)\..*",
        _BILINEAR,
        _MOCO_HEADS,
    ),
    Training(
        "I-JEPA",
        r"target_encoder\..*",
        r"target_encoder\.(module\.)?",
        r"(encoder|predictor)\..*",
        _BILINEAR,
    ),
    Training("DINOv2", r"(dino|ibot)_head\..*", r"(module\.)?backbone\.", r"(dino|ibot)_head\..*"),
    Training(
        "OpenCLIP",
        r"(module\.)?visual\.conv1\.weight",
        r"(module\.)?visual\.",
        r"(?!(module\.)?visual\.).*|.*visual\.proj",
    ),
)  # fmt: skip


def without_training(opened: Opened) -> tuple[Opened, str]:
    """Returns the file with the model alone, and a sentence on what is left out or ""."""
    names, config = opened.tensors, opened.config
    for training in _TRAININGS:
        if not any(re.fullmatch(training.sign, name) for name in names):
            continue
        rest = [name for name in names if re.fullmatch(training.rest, name)]
        inside = {
            re.sub(f"^{training.prefix}", "", n): x for n, x in names.items() if n not in rest
        }
        opened = dataclasses.replace(
            opened,
            tensors=inside,
            config=training.config if config is None else config,
            caller_num_heads=opened.caller_num_heads or training.num_heads,
        )
        images = " Images are prepared as its authors do." if opened.config != config else ""
        return opened, f"a checkpoint of {training.title}; left out: {listed(rest)}.{images}"
    if config is None and _is_moco(names):
        heads = opened.caller_num_heads or _MOCO_HEADS
        opened = dataclasses.replace(opened, config=_BILINEAR, caller_num_heads=heads)
        return opened, f"its positions are MoCo v3's: read as one, with {heads} heads."
    if config is None and '["target_encoder"]' in opened.note:
        opened = dataclasses.replace(opened, config=_BILINEAR)
        return opened, "a checkpoint of I-JEPA. Images are prepared as its authors do."
    return opened, ""


def _is_moco(tensors: Tensors) -> bool:
    """Returns whether positions are MoCo v3's sines and cosines, by which a bare S is known."""
    table = next((x for n, x in tensors.items() if re.fullmatch(r"(.*\.)?pos_embed", n)), None)
    if not table or len(table.shape) != 3:
        return False
    side = math.isqrt(max(0, table.shape[1] - 1))
    if table.shape[-1] % 4 or table.shape[1] != side**2 + 1:
        return False
    omega = 10_000.0 ** -np.linspace(0, 1, table.shape[-1] // 4, endpoint=False)
    slow, fast = (x.reshape(-1, 1) * omega for x in np.indices((side, side)))
    waves = np.hstack([np.sin(slow), np.cos(slow), np.sin(fast), np.cos(fast)])
    return np.allclose(table.read(), np.pad(waves, ((1, 0), (0, 0))), atol=1e-4)


# --- OpenCLIP

_OPEN_CLIP_TABLE = """
patches              : conv1
cls                  : class_embedding
positions/embedding  : positional_embedding
pre_norm             : ln_pre
norm[1 2]            : transformer.resblocks.{}.ln_[1 2]
attention/qkv/kernel : transformer.resblocks.{}.attn.in_proj_weight
attention/qkv/bias   : transformer.resblocks.{}.attn.in_proj_bias
attention/out        : transformer.resblocks.{}.attn.out_proj
scale[1 2]/scale     : transformer.resblocks.{}.ls_[1 2].gamma
mlp/fc1              : transformer.resblocks.{}.mlp.c_fc
mlp/fc2              : transformer.resblocks.{}.mlp.c_proj
"""


def _open_clip(norm: str) -> Layout:
    return Layout(
        "OpenCLIP",
        rules(_OPEN_CLIP_TABLE, f"{norm} : ln_post"),
        needed=("cls", norm),
        optional=("patch_bias",),
    )


_OPEN_CLIP, _OPEN_CLIP_POOLED = _open_clip("norm"), _open_clip("feature_norm")
_HEAD_SIZE = 64
_CROP_MODES = {"shortest": "center", "squash": "squash", "longest": "border"}
_POOLS = {"tok": "cls", "avg": "avg"}
_CLIP_IMAGES = {
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
    "interpolation": "bicubic",
}


def _read_open_clip(opened: Opened) -> ExternalWeights:
    """Reads the visual half by open_clip_config.json, without which usual values are assumed."""
    about = external.section(opened.entries, "model_cfg")
    vision = external.section(about, "vision_cfg")
    pool = _POOLS[external.word(vision, "pool_type", "tok", _POOLS)]
    after = pool == "avg" and external.flag(vision, "final_ln_after_pool")
    match = best([_OPEN_CLIP_POOLED if after else _OPEN_CLIP], opened.tensors)
    sizes = {"width": "D", "layers": "L", "patch_size": "P"}
    stated = {f"model_cfg.vision_cfg.{key}": match.sizes[x] for key, x in sizes.items()}
    external.check_sizes(opened, stated)
    size = external.sides("image_size", vision["image_size"]) if "image_size" in vision else None
    match, size = external.with_image_size(opened, match, size, class_position=True)
    head_size = external.whole(vision, "head_width", _HEAD_SIZE)
    approximate = external.section(vision, "act_kwargs").get("approximate") == "tanh"
    gelu = "quick" if external.flag(about, "quick_gelu") else "tanh" if approximate else "exact"
    epsilon = external.positive(external.section(vision, "norm_kwargs"), "eps", 1e-5)
    images = external.section(opened.entries, "preprocess_cfg")
    mode = external.word(images, "resize_mode", "shortest", _CROP_MODES)
    chosen = {**_CLIP_IMAGES, **images, "crop_pct": 1.0, "crop_mode": _CROP_MODES[mode]}
    return external.external_weights(
        external.with_heads(opened, match, match.sizes["D"] // head_size if vision else None),
        timm.preprocess({"pretrained_cfg": chosen}, size),
        fields={
            "gelu": gelu, "norm_epsilon": epsilon, "pool": pool, "class_token": pool == "avg",
            "layer_scale": external.positive(vision, "ls_init_value", 1e-5) * match.has("scale1"),
        },
        assumed=() if vision else ("gelu", "norm_epsilon", "preprocess"),
    )  # fmt: skip


# --- DINOv2, DINOv3

_SWIGLU = timm.GATED_BLOCKS
for _its, _theirs in (("fc1_g", "w1"), ("fc1_x", "w2"), ("fc2\n", "w3\n")):
    _SWIGLU = _SWIGLU.replace(f"mlp.{_its}", f"mlp.{_theirs}")
# Keys have a bias, and a mask that makes it 0.
_MASKED = "attention/[query value]_bias : blocks.{}.attn.[q_bias v_bias]"
_BIASES = Pack("attn.qkv.bias", tuple(f"attn.{x}_bias" for x in "qkv"))
_OF_TRAINING = (
    r"mask_token", r"rope_embed\.periods", r"local_cls_norm\..*", r".*\.bias_mask", r".*\.k_bias"
)  # fmt: skip
_ROTARY_BASE = 100.0


@functools.cache
def _dino(*, rotary: bool, gated: bool, qkv_bias: str) -> Layout:
    """The table of DINOv3, whose positions are rotary, or of DINOv2."""
    tokens = timm.VIT_TABLE.replace("reg_token", "storage_tokens" if rotary else "register_tokens")
    every = rules(
        timm.PATCHES, tokens, _SWIGLU if gated else timm.BLOCKS, "" if rotary else timm.POSITIONS,
        _MASKED if qkv_bias == "query_value" else "",
    )  # fmt: skip
    without = r"(?!)" if qkv_bias == "all" else r".*attention/qkv/bias"
    return Layout(
        "DINOv3" if rotary else "DINOv2",
        tuple(rule for rule in every if not re.fullmatch(without, rule.ours)),
        ignored=_OF_TRAINING,
        needed=("cls", "scale1", "scale2"),
        packs=(
            Pack(".mlp.w12.", (".mlp.w1.", ".mlp.w2.")),
            *([_BIASES] if qkv_bias == "query_value" else []),
        ),
    )


def _read_dino(opened: Opened) -> ExternalWeights:
    """Reads DINOv2 or DINOv3, whose blocks have the number of a chunk before theirs in training."""
    chunk = re.compile(r"blocks\.\d+\.(\d+)\.")
    tensors = {chunk.sub(r"blocks.\1.", name): x for name, x in opened.tensors.items()}
    has = lambda end: any(name.endswith(end) for name in tensors)
    rotary, gated = "rope_embed.periods" in tensors, has(".mlp.w3.weight")
    bias = "query_value" if has("qkv.bias_mask") else "all" if has("qkv.bias") else "none"
    match = best([_dino(rotary=rotary, gated=gated, qkv_bias=bias)], tensors)
    width, patch, registers = match.sizes["D"], match.sizes["P"], match.sizes.get("R", 0)
    heads = 32 if width == 4096 else width // _HEAD_SIZE  # the first is DINOv3's 7B
    match = external.with_heads(opened, match, opened.caller_num_heads or heads)
    size = opened.caller_image_size
    fields = {
        "gelu": "exact", "layer_scale": 1e-5, "mlp": "swiglu" if gated else "mlp",
        "registers": registers, "qkv_bias": bias, "norm_epsilon": 1e-5 if rotary else 1e-6,
    }  # fmt: skip
    assumed: tuple[str, ...] = ()
    if rotary:
        periods = tensors["rope_embed.periods"].read()
        usual = _ROTARY_BASE ** np.linspace(0, 1, len(periods), endpoint=False)
        if not np.allclose(periods, usual, rtol=0.01):  # in bfloat16, perhaps
            raise UserError("It has rotary positions of another base than 100.")
        fields |= {"position_embedding": "rotary_2d", "rotary_base": _ROTARY_BASE}
        size, assumed = size or external.USUAL_IMAGE_SIZE, ("image_size", "preprocess")
    else:  # of a square: registers have no positions
        side = math.isqrt(match.sizes["N"] - 1)
        if side**2 + 1 != match.sizes["N"]:
            raise UserError(f"It has {match.sizes['N']} positions, not of a square.")
        size = (side * patch, side * patch)
    return external.external_weights(
        match,
        timm.preprocess(_BICUBIC, size),
        fields=fields,
        assumed=assumed,
        position_resize="bicubic_antialias" if registers else "bicubic_torch",
    )


def _read(opened: Opened) -> ExternalWeights:
    if "class_embedding" in opened.tensors:
        return _read_open_clip(opened)
    if "mask_token" in opened.tensors and "architecture" not in opened.entries:
        return _read_dino(opened)
    raise MisfitError([])


FORMAT = dataclasses.replace(timm.FORMAT, reads=_read, holds=lambda *_: False)
