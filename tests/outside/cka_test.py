"""CKA against the code of its authors, on drawn features."""

import numpy as np

from vit_jax.probes import cka

EXAMPLES = 96
WIDTHS = (6, 130, 20)  # fewer features than examples, and more


def features():
    """Three representations of each of two models: mixtures of the same 12 numbers, and noise."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(EXAMPLES, 12))
    return {
        f"{side}{i}": shared @ rng.normal(size=(12, width)) + i * rng.normal(size=(EXAMPLES, width))
        for side in "xy"
        for i, width in enumerate(WIDTHS)
    }


def test_cka_is_that_of_its_authors(theirs):
    drawn = features()
    expected = theirs("google-research", "google_research_cka", lambda: drawn)
    one, other = ([drawn[f"{side}{i}"] for i in range(3)] for side in "xy")
    assert np.ptp(expected["between"]) > 0.2
    ours = {"within": cka.linear_cka(one), "between": cka.linear_cka(one, other)}
    for name, values in ours.items():
        np.testing.assert_allclose(values, expected[name], rtol=0, atol=1e-6)
