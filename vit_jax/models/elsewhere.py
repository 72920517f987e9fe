"""Names that others give these models, for the message about a name that is not known here.

Of timm, DeiT, torchvision, Hugging Face, big_vision and Google's files: "vit_tiny_patch16_224",
"google/vit-base-patch16-224-in21k", "vit_b_16", "B/16", "ViT-B_16", "BiT-M-R50x1".
"""

from __future__ import annotations

import re

_SIZES = {
    "tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H", "giant": "g",
    "gigantic": "G", "so400m": "So400m", "ti": "Ti", "t": "Ti", "s": "S", "b": "B", "l": "L",
    "h": "H",
}  # fmt: skip
_WORD = "tiny|small|base|large|huge|gigantic|giant|so400m"
_SIZE = rf"(?P<size>{_WORD}|ti|t|s|b|l|h|g)"
_FORMS = (
    re.compile(rf"vit_(?P<size>{_WORD})_r(?P<units>\d*)_s(?P<patch>\d+)(_.*)?", re.I),
    re.compile(rf"r(?P<units>\d*)[-_+ ]+(vit)?[-_]?{_SIZE}[-_/](?P<patch>\d+)", re.I),
    re.compile(r"(resnetv2_|bit[-_]?[sm]?[-_]r|r)(?P<resnet>\d+)x(?P<factor>\d+)([-_].*)?", re.I),
    re.compile(r"bit[-_](?P<resnet>\d+)", re.I),
    re.compile(
        rf"dinov(?P<dino>2)(?P<reg>[-_]with[-_]registers)?[-_](vit)?{_SIZE}(?P<patch>14)?(_reg)?"
        r"(_lc)?", re.I,
    ),
    re.compile(rf"dinov(?P<dino>3)[-_]vit{_SIZE}(?P<patch>16)([-_].*)?", re.I),
    re.compile(
        rf"(vit|deit3?)[-_](?P<size>{_WORD})[-_]patch[-_]?(?P<patch>\d+)"
        r"(_(?P<reg>reg\d))?([-_]dinov(?P<dino>[23])|[-_]?.*)", re.I,
    ),
    re.compile(rf"(vit[-_ ]?)?{_SIZE}[-_/ ]?(?P<patch>\d+)", re.I),
)  # fmt: skip


def ours(name: str) -> str | None:
    """What a name of others may stand for here; None if it is of no form that is known."""
    last = name.rpartition("/")[2] if name.count("/") and "-patch" in name else name
    last = last.removeprefix("facebook/").removeprefix("google/").partition(".")[0].strip()
    for form in _FORMS:
        found = form.fullmatch(last)
        if found:
            return _written(found.groupdict(), last)
    return None


def _written(part: dict[str, str | None], name: str) -> str:
    """A name of this project."""
    if part.get("resnet"):
        return f"R{part['resnet']}x{part.get('factor') or 1}"
    given = part["size"] or ""
    size = given if given in "gG" else _SIZES[given.lower()]
    patch = part.get("patch") or "14"  # Hugging Face's DINOv2 do not say it
    style = ""
    if "dino" in part and part["dino"] is not None:
        style = f"-dinov{part['dino'] or 2}"
        style += "-reg" if style == "-dinov2" and (part.get("reg") or "_reg" in name) else ""
    hybrid = f"R{part['units']}+" if part.get("units") is not None else ""
    return f"{hybrid}ViT-{size}/{patch}{style}"
