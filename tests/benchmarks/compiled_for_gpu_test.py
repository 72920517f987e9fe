"""Our step beside the plain flax.linen one, compiled for a GPU without having any."""

import dataclasses

import pytest

from benchmarks.compiled_for_gpu import BASE, compiled_peer, measured
from benchmarks.compiled_step import compile_step
from benchmarks.contenders import SHAPES
from vit_jax import config as configs
from vit_jax.core.errors import UserError
from vit_jax.tools.plan import topology

MOST_BYTES = 0.85  # of the plain step's


@pytest.mark.slow
def test_moves_less_memory_than_the_plain_step_with_the_same_products():
    config = configs.resolve(BASE, ["model.depth=2"])
    try:
        mesh = topology.mesh("h100:1", config.mesh)
    except UserError as error:
        pytest.skip(str(error))
    device = mesh.devices.flat[0]
    own = measured(compile_step(config, mesh).compiled, mesh.shape, device.device_kind)
    shape = dataclasses.replace(SHAPES["L/16"], batch=64, depth=2)
    plain = compiled_peer(shape, "bfloat16", device)
    assert own["accessed_gb"] <= MOST_BYTES * plain["accessed_gb"]
    assert own["roofline_ms"] < plain["roofline_ms"]
    assert own["peak_gib"] < plain["peak_gib"]
