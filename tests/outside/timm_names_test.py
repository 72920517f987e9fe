"""Every name of timm's ViTs: the model read from its shapes and config.json."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests import messages
from tests.weights.conftest import timm  # noqa: F401, a fixture: timm without torchvision
from vit_jax.core.errors import UserError
from vit_jax.weights.files import Tensor
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.formats import understand
from vit_jax.weights.formats.timm import _WIDE_EPSILON, _heads

pytestmark = [pytest.mark.outside, pytest.mark.slow]
# Names whose arrays fit, in timm 1.0.31; a later version may add some.
LEAST = 263
PAGE = Path(__file__).parents[2] / "docs" / "timm_names.md"  # --regenerate_goldens writes it
HEADING = """# timm's names

Which of timm {version}'s ViTs load here, by its own shapes and `config.json`: {fitting} of
{number}, with the heads, norms, GELU, pooling, positions and image size of timm's modules.
How: [weights](weights.md).

| name | loads |
|---|---|
"""
MODULES = (
    "vision_transformer", "deit", "vision_transformer_hybrid", "beit", "eva",
    "vision_transformer_relpos", "vision_transformer_sam", "naflexvit",
)  # fmt: skip
GELUS = {
    ("GELU", "none"): "exact", ("GELUTanh", ""): "tanh", ("QuickGELU", ""): "quick",
    ("SiLU", ""): "swiglu",
}  # fmt: skip
POOLS = {"cls": "token", "avg": "avg", "map": "map"}
FINAL = {"norm": "tokens", "fc_norm": "features"}
NORMS = {"layer": "LayerNorm", "rms": "RmsNorm"}


def names_of(timm, modules=MODULES):  # noqa: F811
    return [name for module in modules for name in timm.list_models(module=module)]


def settings(model):
    """What arrays do not show of a model of timm's, in words of this project's fields."""
    from torch import nn

    block = model.blocks[0]
    attention, mlp = getattr(block, "attn", block), getattr(block, "mlp", block)
    act = getattr(mlp, "act", None) or block.mlp_act
    norm = getattr(block, "norm1", None) or block.in_norm
    is_there = lambda name: not isinstance(getattr(model, name, nn.Identity()), nn.Identity)
    return {
        "num_heads": attention.num_heads,
        "norm_epsilon": norm.eps,
        "norm": type(norm).__name__.removesuffix("Fp32"),
        "gelu": GELUS[type(act).__name__, getattr(act, "approximate", "")],
        "pool": model.global_pool,
        "pool_prefix": bool(getattr(model, "pool_include_prefix", False))
        or (type(model).__name__ == "Eva" and model.global_pool == "map"),
        "pool_heads": model.attn_pool.num_heads if model.global_pool == "map" else None,
        "rotary": rotary(getattr(model, "rope", None)),
        "attention_norm": is_norm(getattr(attention, "norm", None)),
        "mlp_norm": is_norm(getattr(mlp, "norm", None)),
        "image_size": tuple(model.patch_embed.img_size),
        "pads": bool(getattr(model, "no_embed_class", False)) and model.cls_token is not None,
        "class_token": model.cls_token is not None,
        "final_norm": next((FINAL[name] for name in FINAL if is_there(name)), "none"),
        "pre_norm": is_there("norm_pre"),
        "norm_branch": type(block).__name__
        in ("ResPostBlock", "ResPostRelPosBlock", "EvaBlockPostNorm"),
        "parallel": type(block).__name__ == "ParallelScalingBlock",
    }


ROPES = {
    "rotary_2d": "RotaryEmbeddingDinoV3", "rotary_axial": "RotaryEmbeddingCat",
    "rotary_mixed": "RotaryEmbeddingMixed",
}  # fmt: skip


def is_norm(layer):
    return layer is not None and type(layer).__name__ != "Identity"


def rotary(rope):
    """Kind, base, side of the grid, offset, and whether columns come first."""
    if rope is None:
        return None
    is_axial = type(rope).__name__ == "RotaryEmbeddingCat"
    grid = (getattr(rope, "ref_feat_shape", None) or (0,))[0]
    offset, by_column = getattr(rope, "grid_offset", 0.0), rope.grid_indexing == "xy"
    return type(rope).__name__, rope.temperature, grid, offset, is_axial and by_column


def ours(loaded):
    spec = loaded.spec
    kind = ROPES.get(spec.position_embedding)
    axial = spec.rotary_grid, spec.rotary_offset, spec.rotary_columns_first
    fields = (
        "num_heads", "norm_epsilon", "pool_prefix", "final_norm", "pre_norm", "norm_branch",
        "parallel", "attention_norm", "mlp_norm",
    )  # fmt: skip
    return {name: getattr(spec, name) for name in fields} | {
        "norm": NORMS[spec.norm],
        "rotary": kind and (kind, spec.rotary_base, *axial),
        "pool_heads": (spec.pool_heads or spec.num_heads) if spec.pool == "map" else None,
        "gelu": spec.gelu if spec.mlp == "mlp" else spec.mlp,
        "pool": POOLS[spec.pool],
        "image_size": loaded.preprocess.image_size,
        "pads": loaded.match.pads_class_position,
        "class_token": spec.has_class_token,
    }


def test_names(timm, tmp_path):  # noqa: F811
    torch = pytest.importorskip("torch")
    from timm.models._hub import save_config_for_hf

    fitting, refused, wrong = [], {}, {}
    for name in names_of(timm):
        with torch.device("meta"):
            model = timm.create_model(name, pretrained=False)
        save_config_for_hf(model, tmp_path / "config.json")
        tensors = {
            key: Tensor(tuple(x.shape), np.dtype(np.float32), None)
            for key, x in model.state_dict().items()
        }
        config = json.loads((tmp_path / "config.json").read_text())
        try:
            loaded = understand(Opened(tmp_path, "safetensors", tensors, config, None))
        except UserError as error:
            refused[name] = str(error).partition(f"{name!r} has ")[2].rstrip(".")
            continue
        fitting.append(name)
        here, theirs = ours(loaded), settings(model)
        if here != theirs or loaded.assumed:
            differing = {key: (here[key], theirs[key]) for key in here if here[key] != theirs[key]}
            wrong[name] = (differing, loaded.assumed)
    print(f"{len(fitting)} names fit")
    assert not wrong
    assert len(fitting) >= LEAST
    assert all(refused.values())  # in words, not by a list of arrays
    text = HEADING.format(
        version=timm.__version__, fitting=len(fitting), number=len(fitting) + len(refused)
    ) + "".join(
        f"| `{name}` | {f'no: {refused[name]}' if name in refused else 'yes'} |\n"
        for name in sorted([*fitting, *refused])
    )
    if messages.regenerating:
        PAGE.write_text(text)
    if f"timm {timm.__version__}'s" in PAGE.read_text():
        assert PAGE.read_text() == text


def test_what_names_imply(timm):  # noqa: F811
    """Heads, GELU and epsilon of every name, also of those whose arrays do not fit."""
    torch = pytest.importorskip("torch")
    wrong, compared = {}, 0
    for name in names_of(timm, MODULES[:3]):
        if _heads(name) is None:
            continue
        with torch.device("meta"):
            model = timm.create_model(name, pretrained=False)
        block = model.blocks[0]
        epsilons = {m.eps for m in model.modules() if isinstance(m, torch.nn.LayerNorm)}
        if not hasattr(block, "mlp") or len(epsilons) != 1:
            continue  # other kinds of models and of norms
        theirs = (block.attn.num_heads, *epsilons)
        if theirs != (_heads(name), 1e-5 if _WIDE_EPSILON.match(name) else 1e-6):
            wrong[name] = theirs
        compared += 1
    print(f"{compared} names compared")
    assert not wrong
    assert compared >= 150
