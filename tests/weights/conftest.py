"""Toy models whose parameters are large enough to reveal every mistake."""

import contextlib
import io
import json
import sys
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax import models, weights
from vit_jax.core import pytrees
from vit_jax.core.errors import UserError

TOY = {"depth": 2, "width": 16, "mlp_dim": 24, "num_heads": 2, "num_classes": 3, "image_size": 12}


def params_of(model):
    """Parameters by name, as NumPy arrays."""
    named = pytrees.flatten(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    return {name: np.asarray(x) for name, x in named.items()}


def randomised(name, class_names=("ant", "bee", "cat"), **fields):
    """A Loaded model with all parameters random, norms and biases too; variances above 0."""
    make = lambda: models.create(name, rngs=nnx.Rngs(0), **fields)
    graph, state = nnx.split(nnx.eval_shape(make), nnx.Param)
    rng = np.random.default_rng(0)

    def draw(name, x):
        drawn = rng.normal(0, 0.3, x.shape)
        return jnp.asarray(np.abs(drawn) + 0.5 if name.endswith("variance") else drawn, np.float32)

    model = nnx.merge(graph, pytrees.map_named(draw, nnx.to_pure_dict(state)))
    names = class_names if model.num_classes else None
    return weights.Loaded(model, name, names, step=0)


def zeros_of(name, **fields):
    """(a model without arrays, its parameters by name), which take no memory: all of them are 0."""
    model = nnx.eval_shape(lambda: models.create(name, rngs=nnx.Rngs(0), **fields))
    shapes = pytrees.flatten(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    return model, {n: np.broadcast_to(np.float32(0), x.shape) for n, x in shapes.items()}


# Toys that a project's format holds: name, fields, format.
PORTED = {"weight_epsilon": 1e-8, "weight_epsilon_of": "variance", "group_norm_epsilon": 1e-5}
BIT = {"units": (1, 2), "root_width": 32, "num_classes": 3, "image_size": 24}
DINO = {"layer_scale": 0.1, "gelu": "exact", "num_classes": 0}
DINOV3 = {
    "registers": 4, "norm_epsilon": 1e-5, "position_embedding": "rotary_2d",
    "qkv_bias": "query_value",
}  # fmt: skip
KINDS = {
    "huggingface": ("ViT-Ti/4", TOY, "huggingface"),
    "dinov2": ("ViT-Ti/4", TOY | DINO | {"layer_scale": 1.0, "mlp_dim": 32}, "huggingface"),
    "dinov3": ("ViT-Ti/4", TOY | DINO | DINOV3, "huggingface"),
    "bit": ("R50x1", BIT | PORTED, "huggingface"),
    "timm": ("ViT-Ti/4", TOY | {"norm_epsilon": 1e-6}, "timm"),
    "registers": ("ViT-Ti/4", TOY | {"pool": "avg", "registers": 2}, "timm"),
    "hybrid": ("R50+ViT-B/16", TOY | BIT | PORTED | {
        "units": (), "root_width": 64, "patch_size": 32, "image_size": 64}, "timm"),
}  # fmt: skip


@pytest.fixture
def written(tmp_path):
    """`written("timm", gelu="exact")`: a folder with such a toy of KINDS."""

    def write(kind, **fields):
        name, usual, to = KINDS[kind]
        weights.save(randomised(name, **(usual | fields)), tmp_path / kind, to)
        return tmp_path / kind

    return write


def edit(folder, changes, file="config.json"):
    """Sets values of a JSON file, by dotted keys; ... removes one."""
    document = json.loads((folder / file).read_text())
    for key, value in changes.items():
        section = document
        *sections, last = key.split(".")
        for name in sections:
            section = section[name]
        section[last] = value
        if value is ...:
            del section[last]
    (folder / file).write_text(json.dumps(document))


def zip_bomb(folder):
    """Writes 1 MB of zeros that claims to be 4 GiB."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.zeros(2**20, np.uint8))
    path = folder / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.npy", stream.getvalue())
    size = len(stream.getvalue()).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(size, b"\xff\xff\xff\xf0"))
    return path


@contextlib.contextmanager
def named_error(*names):
    """The block raises a UserError with all `names`; for tests of packages that may be missing.

    Where they are, the golden wording of tests.messages could not be written.
    """
    with pytest.raises(UserError) as raised:
        yield raised
    lacking = [name for name in map(str, names) if name not in str(raised.value)]
    assert not lacking, f"{lacking} is not in the message: {raised.value}"


@pytest.fixture
def toy():
    """`toy(pool="map")`: a Loaded ViT."""
    return lambda **fields: randomised("ViT-Ti/4", **(TOY | fields))


@pytest.fixture
def bit():
    """`bit(units=(2, 1))`: a Loaded BiT."""
    return lambda **fields: randomised("R50x1", **(BIT | fields))


@pytest.fixture
def hybrid():
    """`hybrid(units=(2, 1))`: a Loaded hybrid."""
    small = TOY | BIT | {"patch_size": 8}
    return lambda **fields: randomised("R50+ViT-B/16", **(small | fields))


@pytest.fixture
def images():
    """Random images [2, 12, 12, 3]."""
    return np.random.default_rng(1).normal(size=(2, 12, 12, 3)).astype(np.float32)


@pytest.fixture
def same():
    """Asserts that two models have the same parameters, bit for bit."""

    def check(one, other):
        left, right = params_of(one), params_of(other)
        assert list(left) == list(right)
        for name, x in left.items():
            np.testing.assert_array_equal(right[name], x, err_msg=name)

    return check


@pytest.fixture(scope="module")
def hf():
    """The transformers package."""
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    return transformers


@pytest.fixture(scope="module")
def timm():
    """The timm package, with or without torchvision, which it never calls here."""
    from tests.outside.programs import absent

    try:
        return pytest.importorskip("timm")
    finally:
        for name in absent.INSTALLED:
            sys.modules.pop(name, None)
