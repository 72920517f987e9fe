"""Rollout and relevance by the code of Chefer et al., of a ViT with given parameters.

Their ViT and rollout are in Transformer-Explainability, the checkout that this runs on; the rules
of relevance are in a cell of a notebook in Transformer-MM-Explainability, beside it.
"""

import json
import sys
from functools import partial
from pathlib import Path

import baselines
import numpy as np
import torch
from baselines.ViT.ViT_explanation_generator import Baselines
from baselines.ViT.ViT_new import VisionTransformer

inputs = np.load(sys.argv[1])
torch.Tensor.cuda = lambda self: self  # theirs runs on a GPU alone
beside = Path(next(iter(baselines.__path__))).parents[1] / "Transformer-MM-Explainability"
notebook = json.loads((beside / "Transformer_MM_explainability_ViT.ipynb").read_text())
cells = ["".join(cell["source"]) for cell in notebook["cells"]]
rules = {"torch": torch, "np": np}
exec(next(cell for cell in cells if "def generate_relevance" in cell), rules)

epsilon = partial(torch.nn.LayerNorm, eps=1e-6)
fields = json.loads(str(inputs["fields"]))
model = VisionTransformer(qkv_bias=True, norm_layer=epsilon, **fields).eval()
state = {name: inputs[name] for name in inputs.files if name not in ("fields", "images", "classes")}
model.load_state_dict({name: torch.from_numpy(x) for name, x in state.items()})
images = torch.from_numpy(inputs["images"]).permute(0, 3, 1, 2)
relevance = [
    rules["generate_relevance"](model, one[None], int(k)).detach().numpy()
    for one, k in zip(images, inputs["classes"], strict=True)
]
rollout = [Baselines(model).generate_rollout(one[None])[0].detach().numpy() for one in images]
logits = model(images).detach().numpy()
np.savez(sys.argv[2], relevance=relevance, rollout=rollout, logits=logits)
