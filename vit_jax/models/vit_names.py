"""The names of ViTs: sizes, and backbones with further fields."""

import re
from typing import Any

Fields = dict[str, Any]

# Table 1 of the paper; Ti and S from arXiv 2012.12877 and 2106.10270, g and G from 2106.04560
# (table 2), So400m from 2305.13035.
SIZES: dict[str, dict[str, int]] = {
    "Ti": {"depth": 12, "width": 192, "mlp_dim": 768, "num_heads": 3},
    "S": {"depth": 12, "width": 384, "mlp_dim": 1536, "num_heads": 6},
    "B": {"depth": 12, "width": 768, "mlp_dim": 3072, "num_heads": 12},
    "L": {"depth": 24, "width": 1024, "mlp_dim": 4096, "num_heads": 16},
    "So400m": {"depth": 27, "width": 1152, "mlp_dim": 4304, "num_heads": 16},
    "H": {"depth": 32, "width": 1280, "mlp_dim": 5120, "num_heads": 16},
    "g": {"depth": 40, "width": 1408, "mlp_dim": 6144, "num_heads": 16},
    "G": {"depth": 48, "width": 1664, "mlp_dim": 8192, "num_heads": 16},
}

# arXiv 2304.07193 (table 17, appendix B.1). SwiGLU's hidden width is 2/3 of 4 times the width.
_DINOV2: Fields = {"gelu": "exact", "layer_scale": 1e-5}
_DINOV2_SIZES: dict[str, Fields] = {
    **{size: SIZES[size] for size in ("S", "B", "L")},
    "g": {"depth": 40, "width": 1536, "mlp_dim": 4096, "num_heads": 24, "mlp": "swiglu"},
}
# arXiv 2508.10104 and the authors' code (dinov3/hub/backbones.py).
_DINOV3: Fields = {
    "gelu": "exact", "layer_scale": 1e-5, "norm_epsilon": 1e-5, "registers": 4,
    "position_embedding": "rotary_2d", "qkv_bias": "query_value",
}  # fmt: skip
_DINOV3_SIZES: dict[str, Fields] = {
    **{size: SIZES[size] for size in ("S", "B", "L")},
    "S+": {**SIZES["S"], "mlp": "swiglu"},
    "H+": {**SIZES["H"], "num_heads": 20, "mlp": "swiglu"},
    "7B": {
        "depth": 40, "width": 4096, "mlp_dim": 8192, "num_heads": 32, "mlp": "swiglu",
        "qkv_bias": "none",
    },
}  # fmt: skip
# arXiv 2302.05442: section 2 and table 1.
_VIT_22B: Fields = {
    "depth": 48, "width": 6144, "mlp_dim": 24_576, "num_heads": 48, "pool": "map",
    "parallel": True, "qk_norm": True, "qkv_bias": "none", "norm": "rms",
}  # fmt: skip

# Suffix after the patch size in a name -> its sizes.
STYLES: dict[str, dict[str, Fields]] = {
    "": {**SIZES, "22B": _VIT_22B},
    "-dinov2": {size: {**_DINOV2, **own} for size, own in _DINOV2_SIZES.items()},
    # With registers: arXiv 2309.16588.
    "-dinov2-reg": {
        size: {**_DINOV2, "registers": 4, **own} for size, own in _DINOV2_SIZES.items()
    },
    "-dinov3": {size: {**_DINOV3, **own} for size, own in _DINOV3_SIZES.items()},
}
PLAIN = (
    "ViT-Ti/16", "ViT-S/16", "ViT-S/32", "ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32",
    "ViT-So400m/14", "ViT-H/14", "ViT-g/14", "ViT-G/14",
)  # fmt: skip
PUBLISHED = (
    *PLAIN,
    "ViT-22B/14",
    *(f"ViT-{size}/14-dinov2" for size in _DINOV2_SIZES),
    *(f"ViT-{size}/14-dinov2-reg" for size in _DINOV2_SIZES),
    *(f"ViT-{size}/16-dinov3" for size in _DINOV3_SIZES),
)
FORM = (
    f"ViT-<{'|'.join(STYLES[''])}|DEPTHxWIDTH>/<patch size in pixels>, -dinov2, -dinov2-reg or "
    "-dinov3 behind"
)

_NAME = re.compile(r"ViT-([A-Za-z0-9+]+)/(\d+)((?:-[a-z0-9]+)*)")
# Unnamed sizes: depth x width; the MLP is 4 times as wide, and heads have 64 channels.
_SHAPE = re.compile(r"([1-9]\d{0,3})x([1-9]\d{0,5})")
_HEAD_SIZE = 64
_OF_STYLE: dict[str, Fields] = {
    "": {}, "-dinov2": _DINOV2, "-dinov2-reg": {**_DINOV2, "registers": 4}, "-dinov3": _DINOV3,
}  # fmt: skip


def named(name: str) -> Fields | None:
    """The fields for "ViT-B/16"; None for a name of another form."""
    match = _NAME.fullmatch(name)
    if not match or int(match[2]) == 0 or match[3] not in STYLES:
        return None
    size = STYLES[match[3]].get(match[1]) or of_shape(match[1], _OF_STYLE[match[3]])
    return None if size is None else {"patch_size": int(match[2]), **size}


def of_shape(size: str, style: Fields) -> Fields | None:
    """The fields for "12x512", with a style's; None for a word of another form."""
    match = _SHAPE.fullmatch(size)
    if not match:
        return None
    depth, width = int(match[1]), int(match[2])
    num_heads = width // _HEAD_SIZE if width % _HEAD_SIZE == 0 else 1
    return {**style, "depth": depth, "width": width, "mlp_dim": 4 * width, "num_heads": num_heads}
