"""Batches that do not fit are refused before anything is allocated."""

import jax
import pytest

from vit_jax.core.errors import UserError
from vit_jax.run import memory


def test_a_batch_of_images_that_no_device_holds():
    device = jax.devices()[0]
    memory.check_batch_fits("evals.test.batch_size", 64, (224, 224), device, 1)
    with pytest.raises(UserError, match=r"evals\.test\.batch_size=1,000,000,000: .* give at most"):
        memory.check_batch_fits("evals.test.batch_size", 10**9, (224, 224), device, 1)
