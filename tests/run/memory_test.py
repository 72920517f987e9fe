"""Batches that do not fit are refused before anything is allocated."""

import jax

from tests.messages import refused
from vit_jax import config as configs
from vit_jax.run import memory


def test_a_batch_of_images_that_no_device_holds():
    device = jax.devices()[0]
    memory.check_batch_fits("evals.test.batch_size", 64, (224, 224), device, 1)
    with refused("evals.test.batch_size=1,000,000,000"):
        memory.check_batch_fits("evals.test.batch_size", 10**9, (224, 224), device, 1)


def test_an_evaluation_without_memory_names_the_fields_that_it_reads():
    evals = {"test": {}, "look": {"kind": "pictures"}}
    config = configs.resolve({"evals": evals, "input": {"batch_size": 16}})
    explained = memory.explain_out_of_memory(config, evaluating=True)
    with refused("evals.test.batch_size (now 16)", "evals.look.pictures (now 8)"), explained:
        raise MemoryError
