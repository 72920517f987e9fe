import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.models.by_hand import random_images, random_parameters
from vit_jax import models
from vit_jax.core import pytrees
from vit_jax.models.efficientnet import SIZES, MBConv, squeezed
from vit_jax.models.layers.stack import Stage

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROUNDING = 1e-5  # float32 sums in another order
AGREEMENT = 1e-4  # likewise of gradients, relative to the largest entry
TINY = "EfficientNet-0.25x0.1"

# Table 2 of arXiv 1905.11946: billions of multiply-adds at the model's own image size.
BILLIONS = {
    "EfficientNet-B0": 0.39, "EfficientNet-B1": 0.70, "EfficientNet-B2": 1.0,
    "EfficientNet-B3": 1.8, "EfficientNet-B4": 4.2, "EfficientNet-B5": 9.9,
    "EfficientNet-B6": 19.0, "EfficientNet-B7": 37.0,
}  # fmt: skip


def build(name=TINY, **fields):
    arguments = {"num_classes": 5, "image_size": 32, "rngs": nnx.Rngs(0)} | fields
    return models.create(name, **arguments)


@pytest.mark.parametrize("name", BILLIONS)
def test_flops_against_the_paper(name):
    """The paper's are rounded, and may count products with the zeros around a map."""
    side = SIZES[name.removeprefix("EfficientNet-")].image_size_px
    ours = models.forward_flops(models.spec(name), 1000, (side, side)) / 2e9
    assert 0.93 < ours / BILLIONS[name] < 1.05


def test_channels_and_units():
    b0, b7 = models.spec("EfficientNet-B0"), models.spec("EfficientNet-B7")
    assert (b0.units, b0.depth) == ((1, 2, 2, 3, 3, 4, 1), 16)
    assert (b0.stage_channels, b0.map_channels) == ((32, 16, 24, 40, 80, 112, 192, 320), 1280)
    assert b7.units == (4, 7, 7, 10, 10, 13, 4)
    assert (b7.stage_channels, b7.map_channels) == ((64, 32, 48, 80, 160, 224, 384, 640), 2560)
    assert (b0.dropout, b7.dropout, b7.stochastic_depth) == (0.2, 0.5, 0.2)
    narrow = models.spec("EfficientNet-0.45x1").stage_channels
    assert narrow == (16, 8, 16, 24, 40, 48, 88, 144)  # 10.8 to 16: not a tenth less
    for unit in b0.each_unit((33, 70)):
        assert squeezed(unit) == unit.inputs // 4
    assert unit.size_out == (2, 3)


def test_ways_to_run_the_units_agree():
    """Running statistics too, which scans and rematerialisation hand on as gradients."""
    spec = models.spec(TINY, depth_coefficient=1.3)
    images, key = random_images(4, 12, 12)[..., [0] * 8], jax.random.key(0)
    units = list(spec.each_unit((24, 24)))[2:5]  # a stage

    def results(**fields):
        own = dataclasses.replace(spec, **fields)
        rates = [own.stochastic_depth * (2 + i) / own.depth for i in range(len(units))]
        make_unit = functools.partial(MBConv, spec=own)
        make = lambda: Stage(make_unit, units, own, drop_rates=rates, rngs=nnx.Rngs(0))
        graph, params = random_parameters(make)

        def loss(params):
            train = lambda unit, *inputs: unit(*inputs, True)
            y, _ = nnx.merge(graph, params)(images, key, train, keep=False)
            return jnp.sum(jnp.sin(y)), y

        (_, y), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
        return y, pytrees.flatten(grads)

    y, grads = results()
    assert grads["rest/block/norm1/running_mean"].shape == (2, units[1].hidden)
    for fields in ({"scan": True, "remat": "full"}, {"remat": "dots"}):
        other, theirs = results(**fields)
        np.testing.assert_allclose(other, y, atol=ROUNDING * float(jnp.abs(y).max()))
        for name, grad in grads.items():
            atol = AGREEMENT * float(jnp.abs(grad).max())
            np.testing.assert_allclose(theirs[name], grad, atol=atol, err_msg=name)


def test_rates_of_stochastic_depth_rise_over_all_units():
    model = nnx.eval_shape(lambda: build("EfficientNet-B0"))
    rates = []
    for stage, units in enumerate(model.spec.units, 1):
        own = getattr(model, f"stage{stage}")
        for stack in (own.first, own.rest) if units > 1 else (own.first,):
            rates += np.linspace(stack.first_depth, stack.stochastic_depth, stack.depth).tolist()
    np.testing.assert_allclose(rates, 0.2 * np.arange(16) / 16)
