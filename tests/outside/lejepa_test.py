"""SIGReg against the code of LeJEPA's authors, on drawn samples."""

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.learning.methods import lejepa

SAME = 1e-5


def test_sigreg_is_its_authors(theirs):
    rng = np.random.default_rng(1)
    samples = rng.normal(0.3, 1.4, (3, 64, 8)).astype(np.float32)  # views, images, directions
    expected = theirs("lejepa", "lejepa_losses", lambda: {"samples": samples})

    def mean(samples):
        statistics = lejepa.epps_pulley(samples, jnp.ones(64), 17, 3.0)
        return statistics.mean(), statistics

    by_image = samples.swapaxes(0, 1)
    (_, statistics), gradient = jax.value_and_grad(mean, has_aux=True)(by_image)
    np.testing.assert_allclose(statistics, expected["statistics"], rtol=SAME)
    largest = np.abs(expected["gradient"]).max()
    np.testing.assert_allclose(
        gradient.swapaxes(0, 1), expected["gradient"], rtol=0, atol=SAME * largest
    )
