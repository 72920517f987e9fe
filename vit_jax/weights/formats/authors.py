"""What the authors of a training save: the model in it, by timm's names.

DINO, MAE, MoCo v3 and I-JEPA have timm's names for a ViT, and beside it what only their training
needs, which is left out: a student, a predictor, a decoder, heads of a loss.
"""

import dataclasses
import re
from typing import Any, NamedTuple

import numpy as np

from vit_jax.weights.files import Tensors, listed
from vit_jax.weights.files.detect_format import Opened


class Training(NamedTuple):
    """A training's checkpoint; patterns are of whole names.

    Attributes:
      sign: the names that it alone has.
      prefix: what precedes the model's names.
      rest: the names that are not the model's.
      config: entries of timm's config.json that its code fixes.
    """

    title: str
    sign: str
    prefix: str
    rest: str
    config: dict[str, Any]


# Images as they evaluate: a central crop of 7/8, with ImageNet's mean and standard deviation.
_BICUBIC = {"pretrained_cfg": {"interpolation": "bicubic", "crop_pct": 0.875}}
_BILINEAR = {"pretrained_cfg": {"interpolation": "bilinear", "crop_pct": 0.875}}
_MOCO: dict[str, Any] = {"model_args": {"num_heads": 12}, **_BILINEAR}  # its S, too
_TRAININGS = (
    Training("MAE", r"decoder_embed\..*", "", r"mask_token|decoder_.*", _BICUBIC),
    Training(
        "DINO",
        r".*\bhead\.last_layer\..*",
        r"(module\.)?backbone\.",
        r".*\bhead\..*",
        _BICUBIC,
    ),
    Training(
        "MoCo v3",
        r"module\.momentum_encoder\..*",
        r"module\.base_encoder\.",
        r"module\.(momentum_encoder|predictor|base_encoder\.head)\..*",
        _MOCO,
    ),
)  # fmt: skip


def without_training(opened: Opened) -> tuple[Opened, str]:
    """(the file as that of the model alone, a sentence on what is left out or "")"""
    names, config = opened.tensors, opened.config
    for training in _TRAININGS:
        if not any(re.fullmatch(training.sign, name) for name in names):
            continue
        rest = [name for name in names if re.fullmatch(training.rest, name)]
        inside = {
            re.sub(f"^{training.prefix}", "", n): x for n, x in names.items() if n not in rest
        }
        opened = dataclasses.replace(
            opened, tensors=inside, config=training.config if config is None else config
        )
        return opened, f"a checkpoint of {training.title}; left out: {listed(rest)}."
    if config is None and opened.caller_num_heads is None and _is_moco(names):
        opened = dataclasses.replace(opened, config=_MOCO)
        return opened, "its positions are MoCo v3's, and so are its 12 heads."
    return opened, ""


def _is_moco(tensors: Tensors) -> bool:
    """Returns whether positions are MoCo v3's sines and cosines, by which its S is known."""
    table = tensors.get("pos_embed")
    side = round((table.shape[1] - 1) ** 0.5) if table and len(table.shape) == 3 else 0
    if not table or table.shape[-1] % 4 or table.shape[1] != side**2 + 1:
        return False
    omega = 10_000.0 ** -np.linspace(0, 1, table.shape[-1] // 4, endpoint=False)
    slow, fast = (x.reshape(-1, 1) * omega for x in np.indices((side, side)))
    waves = np.hstack([np.sin(slow), np.cos(slow), np.sin(fast), np.cos(fast)])
    return np.allclose(table.read(), np.pad(waves, ((1, 0), (0, 0))), atol=1e-4)
