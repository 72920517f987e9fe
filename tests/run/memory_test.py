"""Batches that do not fit are refused before anything is allocated."""

import jax
import pytest

from tests.messages import refused
from vit_jax.core.arrays import Pixels
from vit_jax.core.errors import UserError
from vit_jax.parallel import mesh as meshes
from vit_jax.run import memory
from vit_jax.run.parts import inputs


def test_a_batch_of_images_that_no_device_holds():
    device = jax.devices()[0]
    memory.check_batch_fits("evals.test.batch_size", 64, (224, 224), device, 1)
    with refused("evals.test.batch_size=1,000,000,000"):
        memory.check_batch_fits("evals.test.batch_size", 10**9, (224, 224), device, 1)


def test_a_training_batch_beyond_a_containers_memory(monkeypatch, tiny_run):
    """`train --check` reads the first batch: in a real group of 1 GiB the kernel killed it."""
    monkeypatch.setattr(memory.machine, "memory_bytes", lambda: 2**20)
    per_image = 3 * 8 * 8
    most = 2**20 // (5 * per_image)
    mesh = meshes.make_mesh(replica=1, data=1, fsdp=1, tensor=1, devices=jax.devices()[:1])
    check = lambda batch_size, parts=1: inputs.check_batch(
        tiny_run(f"input.batch_size={batch_size}").input, mesh, parts=parts
    )
    check(most)
    with pytest.raises(UserError, match=f"input.batch_size=.* at most {most:,}"):
        check(most + 1)
    check(2 * most, parts=4)  # float32 is one part of it at a time
    four = {"pixels": Pixels(4, "float32", stored=True)}  # 8 * 4 bytes of each pixel, not 5 * 3
    at_most = 2**20 // (8 * 4 * 64)
    memory.check_batch_fits("input.batch_size", at_most, (8, 8), mesh.devices.flat[0], 1, **four)
    with refused(f"at most {at_most:,}"):
        memory.check_batch_fits("input.batch_size", most, (8, 8), mesh.devices.flat[0], 1, **four)


def test_a_device_of_a_plan_has_no_statistics():
    class Planned:
        platform = "tpu"

        def memory_stats(self):
            raise jax.errors.JaxRuntimeError("INVALID_ARGUMENT: only for addressable devices")

    assert memory.device_memory(Planned()) is None
