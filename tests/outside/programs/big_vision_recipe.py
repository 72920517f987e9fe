"""big_vision's model, loss, mixup and optimizer, from one of its configs, on given images.

Its train.py has the update inside `main`; this makes the same calls.
"""

import importlib
import json
import sys
from unittest import mock

import big_vision.optax as bv_optax
import big_vision.utils as u
import jax
import jax.numpy as jnp
import numpy as np
import optax
from big_vision.pp import ops_general

inputs = dict(np.load(sys.argv[1]))
about = json.loads(str(inputs["about"]))
file, _, arg = about["config"].partition(":")
config = importlib.import_module(f"big_vision.configs.{file}").get_config(*filter(None, [arg]))
config.update_from_flattened_dict(about["overrides"])
model_fields = {**config.model, **about["model"]}
del model_fields["variant"]

model = importlib.import_module(f"big_vision.models.{config.model_name}").Model(
    num_classes=config.num_classes, **model_fields
)
value_range = ops_general.get_value_range(-1, 1)
images = value_range({"image": inputs["images"]})["image"].numpy()
labels = np.eye(config.num_classes, dtype=np.float32)[inputs["labels"]]
# An image's mixup partner is the previous one there, the next one here.
images, labels = images[:, ::-1], labels[:, ::-1]

shapes = jax.eval_shape(model.init, jax.random.key(0), images[0])["params"]
names, structure = u.tree_flatten_with_names(shapes)
assert {name: x.shape for name, x in names} == {
    name: inputs[f"params/{name}"].shape for name, _ in names
}
params = jax.tree.unflatten(structure, [jnp.asarray(inputs[f"params/{name}"]) for name, _ in names])
tx, _ = bv_optax.make(
    config,
    params,
    sched_kw={"total_steps": len(images), "batch_size": config.input.batch_size, "data_size": 1000},
)


@jax.jit
def update(params, opt, images, labels, ratio):
    with mock.patch.object(jax.random, "beta", lambda *_: ratio):
        _, (images, labels), _ = u.get_mixup(jax.random.key(0), config.mixup.p)(images, labels)

    def loss(params):
        logits, _ = model.apply({"params": params}, images, train=True)
        return getattr(u, config.loss)(logits=logits, labels=labels)

    value, grads = jax.value_and_grad(loss)(params)
    updates, opt = tx.update(grads, opt, params)
    return optax.apply_updates(params, updates), opt, value, optax.tree.norm(grads)


opt, losses, norms = tx.init(params), [], []
for batch in zip(images, labels, inputs["ratios"], strict=True):
    params, opt, loss, norm = update(params, opt, *batch)
    losses.append(loss)
    norms.append(norm)
after = {f"params/{name}": x for name, x in u.tree_flatten_with_names(params)[0]}
np.savez(sys.argv[2], losses=losses, norms=norms, **after)
