import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.messages import refused
from vit_jax import models
from vit_jax.core import pytrees
from vit_jax.models import adapters
from vit_jax.models.adapters import Adapters
from vit_jax.weights.loading import merged

pytestmark = pytest.mark.usefixtures("quick_compilation")
MERGED = 1e-5  # of the largest logit: float32 sums in another order
TOY = {"depth": 2, "width": 16, "mlp_dim": 32, "num_heads": 2, "pool": "map"}
ALL = (".*/kernel",)


def vit(kernels=(), rank=2, alpha=3.0, **fields):
    model = models.create("ViT-Ti/4", num_classes=4, image_size=8, rngs=nnx.Rngs(0), **TOY | fields)
    lora = Adapters(tuple(kernels), rank=rank, alpha=alpha, train=("head/.*",))
    return adapters.add(model, lora, nnx.Rngs(1)) if kernels else model


@functools.cache
def parts(*arguments, **fields):
    """(logits of parameters by name, the first parameters) of a `vit`."""
    make = lambda: nnx.split(vit(*arguments, **fields), nnx.Param)
    graph, _ = nnx.split(nnx.eval_shape(lambda: vit(*arguments, **fields)), nnx.Param)
    logits = jax.jit(lambda params: nnx.merge(graph, pytrees.unflatten(params))(IMAGES))
    return logits, pytrees.flatten(jax.jit(lambda: nnx.to_pure_dict(make()[1]))())


def drawn(params):
    """Random numbers instead of zeros for adapters, and for the head, which starts at zero."""
    rng = np.random.default_rng(0)
    draw = lambda x: jnp.asarray(0.3 * rng.normal(size=x.shape), jnp.float32)
    moves = lambda name: pytrees.is_adapter(name) or name.startswith("head")
    return {name: draw(x) if moves(name) else x for name, x in params.items()}


IMAGES = np.random.default_rng(1).normal(size=(3, 8, 8, 3)).astype(np.float32)


@pytest.mark.slow
def test_at_first_nothing_changes():
    plain, adapted = parts(), parts(ALL)
    for name, x in plain[1].items():
        np.testing.assert_array_equal(x, adapted[1][name])
    factors = {name: x for name, x in adapted[1].items() if pytrees.is_adapter(name)}
    assert len(factors) == 2 * len(
        [n for n in plain[1] if n.endswith("/kernel") and "patch" not in n]
    )
    assert all((x == 0).all() == name.endswith("lora_b") for name, x in factors.items())
    # As in the authors' code: uniform within 1 / sqrt(inputs).
    a = adapted[1]["blocks/block/attention/qkv/lora_a"]
    assert a.shape == (2, 16, 3, 2)
    assert 0.22 < jnp.abs(a).max() <= 0.25 and not (a[0] == a[1]).any()
    head = {name: drawn(adapted[1])[name] for name in ("head/kernel", "head/bias")}
    np.testing.assert_array_equal(*(logits(params | head) for logits, params in (plain, adapted)))


@pytest.mark.parametrize("scan", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_merged_kernels_compute_the_same(scan):
    fields = {"scan": True} if scan else {}
    (adapted, params), (plain, before) = parts(ALL, **fields), parts(**fields)
    params = drawn(params)
    whole = {name: params[name] for name in before}
    for a in (name for name in params if name.endswith("lora_a")):
        kernel, b = pytrees.adapted_kernel(a), a.replace("lora_a", "lora_b")
        factors = params[a], params[b], 3.0 / 2
        whole[kernel] = merged(whole[kernel], *factors, stacked=pytrees.is_stacked(a))
    logits = plain(whole)
    limit = MERGED * float(jnp.abs(logits).max())
    np.testing.assert_allclose(adapted(params), logits, rtol=0, atol=limit)
    head = {name: x for name, x in whole.items() if name.startswith("head")}
    assert jnp.abs(plain(before | head) - logits).max() > 100 * limit


def test_an_adapter_does_not_depend_on_the_others():
    one, all_ = parts(("blocks/.*/mlp/fc1/kernel",)), parts(ALL)
    name = "blocks/block/mlp/fc1/lora_a"
    assert [n for n in one[1] if n.endswith("lora_a")] == [name]
    np.testing.assert_array_equal(one[1][name], all_[1][name])


@pytest.mark.parametrize(
    ("pattern", "expected"),  # [3 layers, query, key and value]
    [
        ("blocks/.*/(query|value)/kernel", [[1, 0, 1]] * 3),
        ("blocks/[12]/attention/qkv/kernel", [[0] * 3, [1] * 3, [1] * 3]),
        ("blocks/(?!0/).*/kernel", [[0] * 3, [1] * 3, [1] * 3]),
        ("(?!.*/query/|blocks/1-2/).*", [[0, 1, 1], [0] * 3, [0] * 3]),
        ("blocks/(?!.*/qkv/).*", [[0] * 3] * 3),
    ],
)
def test_patterns_choose_layers_and_projections(pattern, expected):
    matched = adapters.adapted(pattern, "blocks/block/attention/qkv/kernel", (3, 16, 3, 2, 8))
    np.testing.assert_array_equal(matched, np.array(expected, bool))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"kernels": ["blocks/.*/mpl/.*"]}, "blocks/.*/mpl/.*"),
        ({"kernels": ["patches/kernel"]}, "patches/kernel"),
        ({"kernels": ["blocks/.*/bias"]}, "blocks/.*/bias"),
        ({"kernels": ["("]}, "lora.kernels"),
        ({"kernels": ["head/kernel"], "rank": 5}, "lora.rank=5"),
        ({"kernels": ["blocks/.*/qkv/kernel"], "rank": 17}, "lora.rank=17"),
    ],
)
def test_what_cannot_be_adapted_is_refused(fields, name):
    with refused(name):
        nnx.eval_shape(lambda: vit(**fields))
