"""Every name of timm's ViTs and hybrids: the model read from its shapes and config.json."""

import itertools
import json

import numpy as np
import pytest

from tests.weights.conftest import timm  # noqa: F401, a fixture: timm without torchvision
from vit_jax.core.errors import UserError
from vit_jax.weights.files import Tensor
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.formats import understand
from vit_jax.weights.formats.timm import _epsilon, _heads

pytestmark = [pytest.mark.outside, pytest.mark.slow]
# Names whose arrays fit, in timm 1.0.31; a later version may add some.
LEAST = 98
MODULES = ("vision_transformer", "deit", "vision_transformer_hybrid")
GELUS = {"exact": ("GELU", "none"), "tanh": ("GELUTanh", ""), "quick": ("QuickGELU", "")}
POOLS = {"cls": "token", "avg": "avg", "map": "map"}


def test_names(timm, tmp_path):  # noqa: F811
    torch = pytest.importorskip("torch")
    from timm.models._hub import save_config_for_hf

    fitting, wrong = [], {}
    for name in itertools.chain(*(timm.list_models(module=module) for module in MODULES)):
        with torch.device("meta"):
            model = timm.create_model(name, pretrained=False)
        save_config_for_hf(model, tmp_path / "config.json")
        tensors = {
            key: Tensor(tuple(x.shape), np.dtype(np.float32), None)
            for key, x in model.state_dict().items()
        }
        config = json.loads((tmp_path / "config.json").read_text())
        try:
            ours = understand(Opened(tmp_path, "safetensors", tensors, config, None))
        except UserError:
            continue
        fitting.append(name)
        act = model.blocks[0].mlp.act
        theirs = {
            "num_heads": model.blocks[0].attn.num_heads,
            "norm_epsilon": model.blocks[0].norm1.eps,
            "gelu": (type(act).__name__, getattr(act, "approximate", "")),
            "pool": model.global_pool,
            "image_size": tuple(model.patch_embed.img_size),
            "pads": model.no_embed_class and model.cls_token is not None,
        }
        spec = ours.spec
        here = {
            "num_heads": spec.num_heads,
            "norm_epsilon": spec.norm_epsilon,
            "gelu": GELUS[spec.gelu],
            "pool": POOLS[spec.pool],
            "image_size": ours.preprocess.image_size,
            "pads": ours.match.pads_class_position,
        }
        if here != theirs or ours.assumed:
            wrong[name] = (here, theirs, ours.assumed)
    print(f"{len(fitting)} names fit")
    assert not wrong
    assert len(fitting) >= LEAST


def test_what_names_imply(timm):  # noqa: F811
    """Heads, GELU and epsilon of every name, also of those whose arrays do not fit."""
    torch = pytest.importorskip("torch")
    wrong, compared = {}, 0
    for name in itertools.chain(*(timm.list_models(module=module) for module in MODULES)):
        with torch.device("meta"):
            model = timm.create_model(name, pretrained=False)
        block = model.blocks[0]
        epsilons = {m.eps for m in model.modules() if isinstance(m, torch.nn.LayerNorm)}
        if _heads(name) is None or not hasattr(block, "mlp") or len(epsilons) != 1:
            continue  # other kinds of models and of norms
        theirs = (block.attn.num_heads, *epsilons)
        if theirs != (_heads(name), _epsilon(name)):
            wrong[name] = theirs
        compared += 1
    print(f"{compared} names compared")
    assert not wrong
    assert compared >= 150
