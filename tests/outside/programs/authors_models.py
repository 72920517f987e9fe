"""Features of a ViT by the code of a training's authors, and all arrays that the training saves.

Arrays are drawn by their names and shapes, but for fixed ones, which are outputs.
"""

import functools
import json
import sys
from types import ModuleType, SimpleNamespace

import absent  # noqa: F401, before timm
import numpy as np
import torch
from drawing import drawn, drawn_images

np.float = float  # as NumPy 1 had it
norm = functools.partial(torch.nn.LayerNorm, eps=1e-6)
about = json.loads(str(np.load(sys.argv[1])["about"]))
sizes = about["sizes"]


def dino():
    from vision_transformer import DINOHead, VisionTransformer

    model = VisionTransformer(img_size=[12], **sizes, qkv_bias=True, norm_layer=norm)
    head = DINOHead(sizes["embed_dim"], 8, hidden_dim=8, bottleneck_dim=4)
    return {"backbone": model, "head": head}, model


def mae():
    import timm.models.vision_transformer as of_timm

    class Block(of_timm.Block):
        """timm's, which has lost an argument that the authors give as None."""

        def __init__(self, *args, qk_scale=None, **kwargs):
            super().__init__(*args, **kwargs)

    of_timm.Block = Block
    from models_mae import MaskedAutoencoderViT

    decoder = {"decoder_embed_dim": 8, "decoder_depth": 1, "decoder_num_heads": 2}
    model = MaskedAutoencoderViT(img_size=12, **sizes, **decoder, norm_layer=norm)
    return {"": model}, lambda x: model.forward_encoder(x, 0)[0][:, 0]


def moco():
    import timm.layers
    from timm.models.vision_transformer import VisionTransformer

    sys.modules["timm.models.layers"] = timm.layers
    sys.modules["timm.models.layers.helpers"] = SimpleNamespace(to_2tuple=timm.layers.to_2tuple)
    VisionTransformer.num_tokens = 1
    from moco.builder import MoCo_ViT
    from vits import VisionTransformerMoCo

    make = functools.partial(VisionTransformerMoCo, img_size=12, **sizes, norm_layer=norm)
    model = MoCo_ViT(make, 4, 8)
    encoder = model.base_encoder
    return {"module": model}, lambda x: encoder.forward_head(encoder.forward_features(x), True)


def ijepa():
    from src.models.vision_transformer import VisionTransformer

    model = VisionTransformer(img_size=[12], **sizes, norm_layer=norm)
    return {"module": model}, lambda x: model(x).mean(axis=1)


def dinov2():
    from dinov2.models.vision_transformer import DinoVisionTransformer

    model = DinoVisionTransformer(img_size=12, init_values=0.5, **sizes)
    return {"": model}, model


def dinov3():
    from dinov3.models.vision_transformer import DinoVisionTransformer

    model = DinoVisionTransformer(
        img_size=12, layerscale_init=0.5, norm_layer="layernormbf16", pos_embed_rope_dtype="fp32",
        **sizes,
    )  # fmt: skip
    model.init_weights()
    return {"": model}, model


def open_clip():
    package = sys.modules["open_clip"] = ModuleType("open_clip")  # whose whole imports much more
    package.__path__ = [f"{sys.path[1]}/src/open_clip"]
    from open_clip.model import CLIP

    text = {"context_length": 4, "vocab_size": 9, "width": 8, "heads": 2, "layers": 1}
    model = CLIP(8, sizes, text, quick_gelu=about["quick"])
    visual = model.visual
    return {"": model}, lambda x: visual._pool(visual.transformer(visual._embeds(x)))[0]


CASES = {
    "dino": dino, "mae": mae, "moco": moco, "ijepa": ijepa, "dinov2": dinov2, "dinov3": dinov3,
    "open_clip": open_clip,
}  # fmt: skip
modules, features = CASES[about["case"].partition("-")[0]]()
shapes, fixed = {}, {}
for above, module in modules.items():
    module.eval()
    prefix = above and f"{above}."
    state = module.state_dict()
    learned = {n for n, x in module.named_parameters() if x.requires_grad or "pos_embed" not in n}
    fixed |= {prefix + n: x.numpy() for n, x in state.items() if n not in learned}
    arrays = drawn({prefix + n: tuple(x.shape) for n, x in state.items() if n in learned})
    shapes |= {n: x.shape for n, x in arrays.items()}
    given = {n: torch.tensor(arrays[prefix + n]) for n in learned}
    module.load_state_dict(given, strict=False)
images = torch.tensor(drawn_images(12).transpose(0, 3, 1, 2))
with torch.no_grad():
    outputs = {"features": features(images).numpy(), "shapes": json.dumps(shapes)}
np.savez(sys.argv[2], **outputs, **{f"fixed/{name}": x for name, x in fixed.items()})
