"""timm's EVAs, EVA-02s, DINOv3s, Perception Encoders and ViTs with RoPE (its eva.py), in and out.

Their arrays do not show what rotary positions they have, their heads, or the pooling, so these
are read as timm builds them: from the architecture's name, and from model_args where these say
otherwise. Keys have no biases, or all three have; SwiGLU's first layer is one array, or two.
"""

import functools
import re
from collections.abc import Mapping
from typing import Any

from vit_jax.core.errors import UserError
from vit_jax.models.vit import ROTARY, ViTSpec
from vit_jax.weights import external
from vit_jax.weights.external import Documents, ExternalWeights, Format, ModelToWrite
from vit_jax.weights.files import Tensors
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.formats import timm
from vit_jax.weights.match import Match, MisfitError, best
from vit_jax.weights.tables import Layout, Pack, rules

# --- tables

_BLOCKS = """
norm1          : blocks.{}.norm1
attention/out  : blocks.{}.attn.proj
attention/norm : blocks.{}.attn.norm
scale1/scale   : blocks.{}.gamma_1
norm2          : blocks.{}.norm2
mlp/norm       : blocks.{}.mlp.norm
scale2/scale   : blocks.{}.gamma_2
frequencies    : rope.freqs : 2 L H J
"""
_JOINED = """
attention/qkv                : blocks.{}.attn.qkv
attention/[query value]_bias : blocks.{}.attn.[q_bias v_bias]
"""
_SEPARATE = """
attention/qkv                : blocks.{}.attn.[q_proj k_proj v_proj]
attention/[query value]_bias : blocks.{}.attn.[q_proj.bias v_proj.bias]
"""
_MLP = "mlp/fc[1 2] : blocks.{}.mlp.fc[1 2]"
_GATED = """
mlp/gate : blocks.{}.mlp.fc1_g
mlp/fc1  : blocks.{}.mlp.fc1_x
mlp/fc2  : blocks.{}.mlp.fc2
"""
_PACK = Pack(".mlp.fc1.", (".mlp.fc1_g.", ".mlp.fc1_x."))


@functools.cache
def _layout(
    *, qkv_bias: str, separate: bool, gated: bool, packed: bool, norm_branch: bool
) -> Layout:
    """The table for these fields of a model, and for query, key and value in one array or three."""
    blocks = re.sub("scale.*", "", _BLOCKS) if norm_branch else _BLOCKS
    blocks = re.sub("norm([12]) ", r"scale\1 ", blocks) if norm_branch else blocks
    every = rules(
        timm.PATCHES, timm.VIT_TABLE, timm.POSITIONS, blocks, _SEPARATE if separate else _JOINED,
        _GATED if gated else _MLP,
    )  # fmt: skip
    kinds = {"all": "attention/(query|value)_bias", "query_value": "attention/qkv/bias"}
    without = re.compile(kinds.get(qkv_bias, "attention/.*_bias|attention/qkv/bias"))
    return Layout(
        "timm's EVA",
        tuple(rule for rule in every if not without.search(rule.ours)),
        optional=("patch_bias", "norm", "attention_norm", "mlp_norm", "frequencies", "positions"),
        packs=(_PACK,) if packed else (),
    )


# --- architectures

# What timm's Eva has by default, where arrays do not show it.
_USUAL: dict[str, Any] = {
    "global_pool": "avg", "use_rot_pos_emb": False, "rope_type": "cat", "rope_temperature": 1e4,
    "rope_grid_offset": None, "rope_grid_indexing": "ij", "rope_rotate_half": False,
    "ref_feat_shape": None, "use_post_norm": False, "no_embed_class": False,
    "attn_pool_num_heads": None, "num_heads": None, "use_abs_pos_emb": True,
    "norm_epsilon": 1e-6,
}  # fmt: skip
_DINOV3 = {
    "rope_type": "dinov3", "rope_temperature": 100.0, "rope_rotate_half": True,
    "use_rot_pos_emb": True, "use_abs_pos_emb": False, "norm_epsilon": 1e-5,
}  # fmt: skip
_BY_COLUMN = {"use_rot_pos_emb": True, "rope_grid_indexing": "xy"}
# Architectures by the beginning of their names -> what is otherwise; of several the last holds.
_ARCHITECTURES: tuple[tuple[str, dict[str, Any]], ...] = (
    (r"eva_giant", {"num_heads": 16}),
    (r"eva02_", {"use_rot_pos_emb": True, "ref_feat_shape": 16}),
    (r"eva02_enormous", {"num_heads": 16, "use_rot_pos_emb": False, "use_post_norm": True}),
    (r"eva\w+_clip_", {"global_pool": "token"}),
    (r"vit_\w+_rope_reg\d_gap_",
     {"use_rot_pos_emb": True, "use_abs_pos_emb": False, "ref_feat_shape": 16}),
    (r"vit_pe_", _BY_COLUMN | {"norm_epsilon": 1e-5}),
    (r"vit_pe_core_", {"global_pool": "map", "attn_pool_num_heads": 8}),
    (r"vit_pe_\w+_gigantic_", {"num_heads": 16}),
    (r"vit_[a-z]+_patch16_rope_(mixed_|ape_)*224",
     _BY_COLUMN
     | {"global_pool": "token", "use_abs_pos_emb": False, "rope_temperature": 100.0}),
    (r"vit_\w+_rope_mixed_", {"rope_type": "mixed", "rope_temperature": 10.0}),
    (r"vit_\w+_rope_(mixed_)?ape_", {"use_abs_pos_emb": True, "no_embed_class": True}),
    (r"vit_\w+_patch16_(dinov3|lingbot)", _DINOV3),
    (r"vit_\w+_lingbot", {"global_pool": "token"}),
    (r"vit_7b_", {"num_heads": 32}),
)  # fmt: skip
_HEAD_SIZE = 64  # of architectures without a number of heads
# rope_type, rope_grid_indexing and rope_rotate_half -> fields.
_ROTARY: dict[tuple[str, str, bool], dict[str, Any]] = {
    ("dinov3", "ij", True): {"position_embedding": "rotary_2d"},
    ("cat", "ij", False): {"position_embedding": "rotary_axial"},
    ("cat", "xy", False): {"position_embedding": "rotary_axial", "rotary_columns_first": True},
    ("mixed", "xy", False): {"position_embedding": "rotary_mixed"},
}
# timm's architectures that a written config.json names, by the epsilon that they alone state.
_WRITTEN = {1e-6: "eva02_base_patch14_224", 1e-5: "vit_small_patch16_dinov3"}
_STATES = (
    "position_embedding", "absolute_positions", "rotary_base", "rotary_grid", "rotary_offset",
    "rotary_columns_first", "attention_norm", "mlp_norm", "pool_heads", "pool_mlp_dim", "mlp",
    "qkv_bias", "class_token", "final_norm", "pre_norm", "patch_bias", "pool_prefix", "norm_branch",
)  # fmt: skip


def _arguments(config: Mapping[str, Any], match: Match) -> dict[str, Any]:
    """timm's arguments for an architecture and model_args. UserError for what has no field here."""
    name, stated = str(config["architecture"]), external.section(config, "model_args")
    arguments = dict(_USUAL)
    for names, its in _ARCHITECTURES:
        arguments |= its if re.match(names, name) else {}
    if name.startswith("vit_pe_"):  # rows of its own size
        patch, side = map(int, re.findall(r"_(?:patch)?(\d+)", name.partition(".")[0]))
        arguments |= {"ref_feat_shape": side // patch, "rope_grid_offset": float(match.has("cls"))}
    pool = stated.get("global_pool") or config.get("global_pool") or arguments["global_pool"]
    arguments |= {**stated, "global_pool": pool}  # null is an argument's value too
    unread = {"num_kv_heads": None, "attn_only_layer_scale": False, "gated_attn": False,
              "qk_norm": False, "dynamic_img_pad": False, "rope_mrope_section": None}  # fmt: skip
    if unknown := {k: arguments[k] for k, usual in unread.items() if arguments.get(k, usual)}:
        external.refuse(unknown)
    return arguments


def _rotary(arguments: Mapping[str, Any]) -> dict[str, Any]:
    if not external.flag(arguments, "use_rot_pos_emb"):
        return {}
    names = ("rope_type", "rope_grid_indexing", "rope_rotate_half")
    kind = tuple(arguments[name] for name in names)
    fields = _ROTARY.get(kind)  # type: ignore[call-overload]
    grid = arguments["ref_feat_shape"]
    grid = [grid, grid] if grid is None or isinstance(grid, int) else list(grid)
    offset = arguments["rope_grid_offset"] or 0.0
    is_axial = fields is not None and fields["position_embedding"] == "rotary_axial"
    if fields is None or len(set(grid)) != 1 or (offset and not is_axial):
        external.refuse({x: arguments[x] for x in (*names, "ref_feat_shape", "rope_grid_offset")})
    base = external.positive(arguments, "rope_temperature", 1e4)
    axial = {"rotary_grid": grid[0] or 0, "rotary_offset": float(offset)} if is_axial else {}
    return {**fields, "rotary_base": base, **axial}


# --- reading


def _read(opened: Opened) -> ExternalWeights:
    config = opened.entries
    name = str(config.get("architecture", ""))
    tensors = opened.tensors
    has = lambda *ends: any(re.search(rf"blocks\.0\.({'|'.join(ends)})$", x) for x in tensors)
    if not timm.EVA.match(name):
        is_beit = any("relative_position" in x for x in tensors)
        its = has("attn.q_bias", "attn.q_proj.weight", "gamma_1") or "rope.freqs" in tensors
        if its and not is_beit and not {"architecture", "model_type"} & config.keys():
            rule = "It has blocks of EVA's kind, whose positions no array shows."
            raise UserError(rule, cure="Put timm's config.json beside it, with its architecture.")
        raise MisfitError([])
    first, last = (_shape(tensors, f".mlp.{x}.weight") for x in ("fc1", "fc2"))
    packed = first is not None and last is not None and first[0] == 2 * last[1]
    biases = {"all": ("qkv.bias", "k_proj.bias"), "query_value": ("q_bias", "q_proj.bias")}
    layout = _layout(
        qkv_bias=next((x for x, its in biases.items() if has(*map("attn.{}".format, its))), "none"),
        separate=has("attn.q_proj.weight"),
        gated=packed or has("mlp.fc1_g.weight"),
        packed=packed,
        norm_branch=_is_post_norm(config, name),
    )
    match = best([layout], tensors)
    arguments = _arguments(config, match)
    if (uses := external.flag(arguments, "use_abs_pos_emb")) != match.has("positions"):
        external.refuse({"use_abs_pos_emb": uses}, f"holds in {name!r}, not for these arrays")
    stated = {"embed_dim": "D", "depth": "L", "patch_size": "P"}
    sizes = {f"model_args.{key}": match.sizes[letter] for key, letter in stated.items()}
    external.check_sizes(opened, {"num_features": match.sizes["D"], **sizes})
    heads = arguments["num_heads"] or match.sizes["D"] // _HEAD_SIZE
    match = external.with_heads(opened, match, heads, pool_heads=arguments["attn_pool_num_heads"])
    match, image_size = external.with_image_size(
        opened, match, timm.stated_image_size(config),
        class_position=not external.flag(arguments, "no_embed_class"),
    )  # fmt: skip
    return external.external_weights(
        match,
        timm.preprocess(config, image_size),
        fields=_fields(arguments, match),
        class_names=timm.class_names(config, match.sizes.get("C", 0)),
        assumed=timm.assumed_of_images(config),
    )


def _shape(tensors: Tensors, end: str) -> tuple[int, ...] | None:
    return next((x.shape for name, x in tensors.items() if name.endswith(end)), None)


def _is_post_norm(config: Mapping[str, Any], name: str) -> bool:
    stated = external.section(config, "model_args").get("use_post_norm")
    return name.startswith("eva02_enormous") if stated is None else bool(stated)


def _fields(arguments: Mapping[str, Any], match: Match) -> dict[str, Any]:
    pooling = timm.pool_fields(arguments, "avg", match)
    rotary = _rotary(arguments)
    has_table = match.has("positions")
    names = {rule.ours.removeprefix("blocks/block/") for rule in match.rules}
    biases = {"all": "attention/qkv/bias", "query_value": "attention/query_bias"}
    fields = {
        "position_embedding": "learned_1d" if has_table else "none",
        **rotary,
        "absolute_positions": bool(rotary) and has_table,
        "norm_epsilon": arguments["norm_epsilon"],
        "gelu": "exact",
        "mlp": "swiglu" if "mlp/gate/kernel" in names else "mlp",
        "qkv_bias": next((x for x, name in biases.items() if name in names), "none"),
        "norm_branch": external.flag(arguments, "use_post_norm"),
        "registers": match.sizes.get("R", 0),
        **pooling,
        "pool_prefix": pooling["pool"] == "map",
    }
    if match.has("scale1") and not fields["norm_branch"]:
        fields["layer_scale"] = external.positive(arguments, "init_values", 1e-5)
    return fields


# --- writing


def _holds(spec: Any, _: int) -> bool:
    kind = getattr(spec, "position_embedding", None)
    is_eva = kind in ROTARY or (kind == "learned_1d" and spec.qkv_bias == "query_value")
    return type(spec) is ViTSpec and is_eva and spec.norm_epsilon in _WRITTEN


def _layout_for(spec: ViTSpec) -> Layout:
    """EVA-02's B and L, with norms in their MLPs, have three arrays of queries, keys, values."""
    gated = spec.mlp != "mlp"
    return _layout(
        qkv_bias=spec.qkv_bias,
        separate=spec.mlp_norm,
        gated=gated,
        packed=gated and not _is_apart(spec),
        norm_branch=spec.norm_branch,
    )


def _is_apart(spec: ViTSpec) -> bool:
    """Returns whether a SwiGLU's first layer is two arrays, as in DINOv3 and EVA-02 B and L."""
    return spec.mlp_norm or spec.position_embedding == "rotary_2d"


def _documents(model: ModelToWrite) -> Documents:
    spec: ViTSpec = model.spec
    computed = {"pre_logits": (False,), "gelu": ("exact",), "mlp": ("mlp", "swiglu")}
    computed |= {"pool_prefix": (spec.pool == "map",)}
    if other := {x: getattr(spec, x) for x, its in computed.items() if getattr(spec, x) not in its}:
        external.lacks("timm's EVA", other)
    kind: dict[str, Any] = {"position_embedding": spec.position_embedding}
    kind |= {"rotary_columns_first": True} if spec.rotary_columns_first else {}
    rope = next((its for its, ours in _ROTARY.items() if ours == kind), None)
    rope_type, indexing, half = rope or ("cat", "ij", False)
    arguments: dict[str, Any] = {
        **timm.size_arguments(model),
        "mlp_ratio": timm.ratio(spec.mlp_dim, spec.width),
        "qkv_bias": spec.qkv_bias != "none",
        "qkv_fused": not spec.mlp_norm,
        "attn_type": "rope" if spec.qkv_bias == "all" else "eva",
        "swiglu_mlp": spec.mlp == "swiglu",
        "swiglu_align_to": int(spec.mlp == "swiglu" and _is_apart(spec)),
        "scale_mlp": spec.mlp_norm,
        "scale_attn_inner": spec.attention_norm,
        "num_reg_tokens": spec.registers,
        "use_abs_pos_emb": spec.absolute_positions or rope is None,
        "use_rot_pos_emb": rope is not None,
        "rope_type": rope_type,
        "rope_temperature": spec.rotary_base,
        "rope_grid_offset": spec.rotary_offset,
        "rope_grid_indexing": indexing,
        "rope_rotate_half": half,
        "ref_feat_shape": [spec.rotary_grid] * 2 if spec.rotary_grid else None,
        "use_post_norm": spec.norm_branch,
        "use_pre_transformer_norm": spec.pre_norm,
        "use_post_transformer_norm": spec.final_norm == "tokens",
        "use_fc_norm": spec.final_norm == "features",
        "attn_pool_num_heads": spec.pool_heads,
        "attn_pool_mlp_ratio": timm.ratio(spec.pool_mlp_dim or spec.mlp_dim, spec.width),
    }
    config = timm.config_of(_WRITTEN[spec.norm_epsilon], model, arguments)
    config |= {"num_features": spec.width, "global_pool": timm.POOLS[spec.pool]}
    return {"config.json": config}


FORMAT = Format(
    destination="timm",
    reads=_read,
    holds=_holds,
    layout_for=_layout_for,
    documents=_documents,
    packed=timm.FORMAT.packed,
    states=_STATES,
    prepares=timm.FORMAT.prepares,
)
