"""Logits of big_vision's ViTs from random parameters, in files as it writes them."""

import json
import sys

import big_vision.utils as u
import jax
import numpy as np
from big_vision.models import vit
from big_vision.models.proj.clippo import one_tower
from big_vision.models.proj.flexi import vit as flexi
from big_vision.models.proj.image_text import two_towers
from drawing import drawn, drawn_images
from ml_collections import ConfigDict


def logits(fields, image_size):
    model = vit.Model(**fields)
    images = drawn_images(image_size)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), images)["params"])
    shapes = {name: x.shape for name, x in u.tree_flatten_with_names(shapes)[0]}
    arrays = drawn(shapes)
    np.savez("there.npz", **{f"params/{name}": x for name, x in arrays.items()})
    params = vit.load(None, "./there.npz", fields)
    return shapes, model.apply({"params": params}, images)[0]


def embeddings(module, fields, image_size):
    """Of images, by a model of images and texts, before they are normalised."""
    model, images = module.Model(**fields), drawn_images(image_size)
    texts = np.zeros((2, 4), np.int32) if module is two_towers else images
    init = lambda: model.init(jax.random.key(0), images, texts)["params"]
    named = u.tree_flatten_with_names(jax.eval_shape(init))[0]
    shapes = {name: x.shape for name, x in named}
    np.savez("there.npz", **{f"params/{name}": x for name, x in drawn(shapes).items()})
    if module is two_towers:
        params = module.load({}, "./there.npz", ConfigDict(fields))
    else:  # whose own loader calls another with an argument that it has lost
        image = vit.load(None, "./there.npz:img", fields["image"])
        params = {"img": image, "t": np.zeros(1, np.float32)}
    embedded, *_, out = model.apply({"params": params}, images)
    return shapes, embedded * out["img/norm"]


def flexible(fields, image_size):
    """Logits of a FlexiViT at its own patch size."""
    model, images = flexi.Model(**fields), drawn_images(image_size)
    init = lambda: model.init(jax.random.key(0), images)["params"]
    shapes = {n: x.shape for n, x in u.tree_flatten_with_names(jax.eval_shape(init))[0]}
    np.savez("there.npz", **{f"params/{name}": x for name, x in drawn(shapes).items()})
    params = flexi.load(jax.eval_shape(init), "./there.npz", ConfigDict(fields))
    return shapes, model.apply({"params": params}, images)[0]


RUN = {"lit": (embeddings, two_towers), "clippo": (embeddings, one_tower), "flexi": (flexible,)}
outputs = {}
for case, (fields, image_size) in json.loads(str(np.load(sys.argv[1])["cases"])).items():
    run, *first = RUN.get(fields.pop("model", ""), (logits,))
    shapes, outputs[f"{case}/logits"] = run(*first, fields, image_size)
    outputs[f"{case}/shapes"] = json.dumps(shapes)
np.savez(sys.argv[2], **outputs)
