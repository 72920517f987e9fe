"""Logits of vision_transformer's ViTs and hybrids from random parameters, also via its reader.

Names are those of its code today, and those of the released files.
"""

import json
import sys

import jax
import ml_collections
import numpy as np
from drawing import drawn, drawn_images

from vit_jax import checkpoint, models_vit

RELEASED = {
    "LayerNorm_1": "LayerNorm_2",
    "MlpBlock_0": "MlpBlock_3",
    "MultiHeadDotProductAttention_0": "MultiHeadDotProductAttention_1",
}


def as_released(name, shape):
    """Name and shape in the released files; a ResNet's norm has four axes there."""
    parts = name.split("/")
    if "encoderblock" in name:
        parts = [RELEASED.get(part, part) for part in parts]
    is_of_resnet = any(part.startswith("gn") for part in parts)
    return "/".join(parts), (1, 1, 1, *shape) if is_of_resnet else shape


def logits(fields, image_size):
    """(shapes by name, logits [B, C])."""
    model = models_vit.VisionTransformer(**ml_collections.ConfigDict(fields))
    images = drawn_images(image_size)
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), images, train=False)["params"])
    flat = checkpoint._flatten_dict(params)
    shapes = {name: x.shape for name, x in flat.items() if not isinstance(x, dict)}
    arrays = drawn(shapes)
    np.savez("today.npz", **arrays)
    places = {name: as_released(name, shape) for name, shape in shapes.items()}
    np.savez("released.npz", **{to: arrays[name].reshape(s) for name, (to, s) in places.items()})
    today, released = (
        model.apply({"params": checkpoint.load(path)}, images, train=False)
        for path in ("today.npz", "released.npz")
    )
    np.testing.assert_array_equal(today, released)
    return shapes, today


outputs = {}
for case, (fields, image_size) in json.loads(str(np.load(sys.argv[1])["cases"])).items():
    shapes, outputs[f"{case}/logits"] = logits(fields, image_size)
    places = {name: as_released(name, shape) for name, shape in shapes.items()}
    outputs[f"{case}/shapes"] = json.dumps(shapes)
    outputs[f"{case}/released"] = json.dumps(places)
np.savez(sys.argv[2], **outputs)
