"""EfficientNets in timm's format, without timm."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax import models, weights
from vit_jax.core import pytrees
from vit_jax.core.errors import UserError
from vit_jax.weights.files import of_array, safetensors
from vit_jax.weights.formats.timm import FORMAT
from vit_jax.weights.tables import to_theirs

SIZE = {"num_classes": 3, "image_size": 32}


def loaded(name="EfficientNet-0.2x0.1", **fields):
    """A model with random parameters, as `weights.load_with_info` gives it."""
    make = lambda: models.create(name, rngs=nnx.Rngs(0), **SIZE, **fields)
    graph, shapes = nnx.split(nnx.eval_shape(make), nnx.Param)
    rng = np.random.default_rng(0)
    draw = lambda x: jnp.asarray(rng.uniform(0.1, 1, x.shape), jnp.float32)
    params = {n: draw(x) for n, x in pytrees.flatten(nnx.to_pure_dict(shapes)).items()}
    model = nnx.merge(graph, pytrees.unflatten(params))
    return weights.Loaded(model, name, ("ant", "bee", "cat"), step=0)


def params_of(model):
    named = pytrees.flatten(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    return {name: np.asarray(x) for name, x in named.items()}


def write(folder, model, config=None, change=lambda arrays: arrays):
    """Writes a model of any coefficients, as timm has no name for."""
    folder.mkdir()
    arrays = to_theirs(FORMAT.layout_for(model.spec), params_of(model))
    safetensors.write(folder / "model.safetensors", change(arrays))
    (folder / "config.json").write_text(json.dumps(config or {}))


def test_there_and_back_bit_for_bit(tmp_path):
    ours = loaded("EfficientNet-0.2x0.67")
    write(tmp_path / "x", ours.model)
    there = weights.load_with_info(tmp_path / "x")
    assert there.name == ours.name and there.model.spec == ours.model.spec
    right = params_of(there.model)
    for name, x in params_of(ours.model).items():
        np.testing.assert_array_equal(right.pop(name), x, err_msg=name)
    assert not right


@pytest.mark.parametrize(
    ("fields", "architecture", "arguments"),
    [
        ({}, "tf_efficientnet_b1", None),
        ({"padding": "symmetric", "batch_norm_epsilon": 1e-5}, "efficientnet_b1", None),
        ({"padding": "symmetric"}, "efficientnet_b1", {"bn_eps": 1e-3}),
        ({"batch_norm_epsilon": 0.1}, "tf_efficientnet_b1", {"bn_eps": 0.1}),
    ],
)
def test_padding_and_epsilon_choose_the_architecture(fields, architecture, arguments):
    spec = models.spec("EfficientNet-B1", **fields)
    about = models.Preprocess((240, 240), (240, 240))
    config = FORMAT.documents(spec, 1000, None, about)["config.json"]
    assert (config["architecture"], config.get("model_args")) == (architecture, arguments)


def test_what_timm_does_not_have_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"timm has no EfficientNet .*width_coefficient=0\.2"):
        weights.save(loaded(), tmp_path / "out", "timm")
    for to in ("huggingface", "google_npz"):
        with pytest.raises(UserError, match=f"{to} has no EfficientNet.*--to=timm"):
            weights.save(loaded(), tmp_path / "out.npz", to)


def test_arrays_of_another_network_are_refused(tmp_path):
    def wide(arrays):
        """Squeezes the last stage to twice as many channels."""
        se = "blocks.6.0.se.conv_"
        x = arrays[f"{se}reduce.weight"].read()
        changes = {
            f"{se}reduce.weight": np.repeat(x, 2, 0),
            f"{se}reduce.bias": np.ones(2 * len(x), np.float32),
            f"{se}expand.weight": np.repeat(arrays[f"{se}expand.weight"].read(), 2, 1),
        }
        return arrays | {name: of_array(x) for name, x in changes.items()}

    model = loaded().model
    write(tmp_path / "wide", model, change=wide)
    with pytest.raises(UserError, match="not those of EfficientNet-B0 times"):
        weights.load(tmp_path / "wide")

    lacking = lambda arrays: {n: x for n, x in arrays.items() if n != "bn2.running_var"}
    write(tmp_path / "lacking", model, change=lacking)
    with pytest.raises(UserError, match=r"timm's EfficientNet.*\n  bn2.running_var is missing"):
        weights.load(tmp_path / "lacking")
