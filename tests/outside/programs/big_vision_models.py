"""Logits of big_vision's ViTs from random parameters, in files as it writes them."""

import json
import sys

import big_vision.utils as u
import jax
import numpy as np
from big_vision.models import vit
from drawing import drawn, drawn_images


def logits(fields, image_size):
    model = vit.Model(**fields)
    images = drawn_images(image_size)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), images)["params"])
    shapes = {name: x.shape for name, x in u.tree_flatten_with_names(shapes)[0]}
    arrays = drawn(shapes)
    np.savez("there.npz", **{f"params/{name}": x for name, x in arrays.items()})
    params = vit.load(None, "./there.npz", fields)
    return shapes, model.apply({"params": params}, images)[0]


outputs = {}
for case, (fields, image_size) in json.loads(str(np.load(sys.argv[1])["cases"])).items():
    shapes, outputs[f"{case}/logits"] = logits(fields, image_size)
    outputs[f"{case}/shapes"] = json.dumps(shapes)
np.savez(sys.argv[2], **outputs)
