"""Losses of self-distillation against the code of DINOv2's authors, on drawn features."""

import jax.numpy as jnp
import numpy as np

from vit_jax.learning.methods import dino

SAME = 1e-5
WIDTH, K, VIEWS, EXAMPLES = 12, 16, 5, 6


def test_losses_of_dinov2_are_its_authors(theirs):
    rng = np.random.default_rng(1)
    draw = lambda *shape: rng.uniform(-1, 1, shape).astype(np.float32)
    counts = np.array([3, 0, 5, 1, 0, 4])  # of masked patches of each of so many views
    masks = np.arange(9) < counts[:, None]
    values = {
        "student": draw(VIEWS, EXAMPLES, K), "teacher": draw(2, EXAMPLES, K), "masks": masks,
        "patches_student": draw(counts.sum(), K), "patches_teacher": draw(counts.sum(), K),
        "features": draw(EXAMPLES, WIDTH), "temperature": np.float32(0.07),
    }  # fmt: skip
    expected = theirs("dinov2", "dinov2_losses", lambda: values)
    by_example = {name: values[name].swapaxes(0, 1) for name in ("student", "teacher")}
    rows = by_example["teacher"].reshape(-1, K)
    targets = dino.sinkhorn(rows, jnp.ones(len(rows)), 0.07).reshape(EXAMPLES, 2, K)
    np.testing.assert_allclose(targets.swapaxes(0, 1), expected["targets"], atol=SAME)
    losses = dino.between_views(targets, by_example["student"], 0.1)
    np.testing.assert_allclose(losses.mean(), expected["loss"], rtol=SAME)

    known = dino.sinkhorn(values["patches_teacher"], jnp.ones(counts.sum()), 0.07)
    np.testing.assert_allclose(known, expected["patch_targets"], atol=SAME)
    each = dino.cross_entropy(known, values["patches_student"], 0.1)
    places = np.zeros(masks.shape, np.float32)
    places[masks] = each
    mean = dino.masked_mean(places, masks.astype(np.float32))
    np.testing.assert_allclose(mean.mean(), expected["patch_loss"], rtol=SAME)

    spread = dino.spreading(values["features"], jnp.ones(EXAMPLES))
    np.testing.assert_allclose(spread.mean(), expected["koleo"], rtol=SAME)
