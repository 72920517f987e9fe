"""Several views of an image in a batch."""

import itertools

import numpy as np
import pytest

from tests.data.conftest import ListSource, encode
from vit_jax.data.pipeline import train_batches
from vit_jax.data.source import Example

FIRST = "decode|resize(24)|pad_crop(16, 4)|flip_lr"
SECOND = "decode|resize(24)|pad_crop(16, 4)|flip_lr"
SMALL = "decode|random_resized_crop(8, 0.1, 0.4)|color_jitter(0.4)"
VIEWS = {"view1": SECOND, "view2": SMALL}


@pytest.fixture(scope="module")
def examples():
    """Twelve noisy squares, each of its own colour."""
    rng = np.random.default_rng(0)
    colours = rng.integers(40, 215, (12, 1, 1, 3))
    squares = (colours + rng.integers(-40, 41, (12, 24, 24, 3))).astype(np.uint8)
    return [Example(encode(square), (0,)) for square in squares]


def batches(source, views=VIEWS, count=3, **changed):
    arguments = {
        "batch_size": 6, "seed": 0, "start_step": 0, "on_bad_image": "skip",
        "max_image_pixels": 10**6, "threads": 2,
    }  # fmt: skip
    with train_batches(source, FIRST, views=views, **arguments | changed) as made:
        return list(itertools.islice(made, count))


def test_views_are_of_the_same_image_and_differ(examples):
    source = ListSource(examples)
    with_views, alone = batches(source), batches(source, {})
    for batch, one in zip(with_views, alone, strict=True):
        assert batch["view1"].shape == (6, 16, 16, 3)
        assert batch["view2"].shape == (6, 8, 8, 3)
        # The first view is what it is without others; the same ops draw anew for the second.
        np.testing.assert_array_equal(batch["image"], one["image"])
        assert np.mean(batch["view1"] != batch["image"]) > 0.1
        # Colours tell images apart: a view is nearest to its own image.
        means = [batch[name].mean(axis=(1, 2)) for name in ("image", "view1")]
        far = np.linalg.norm(means[0][:, None] - means[1][None], axis=-1)
        assert np.mean(far.argmin(axis=1) == np.arange(6)) > 0.6


def test_views_are_a_function_of_the_step_on_any_host(examples):
    source = ListSource(examples)
    whole = batches(source)
    later = batches(source, start_step=2, count=1)[0]
    rows = np.array([1, 4])
    part = batches(source, rows=rows, count=1)[0]
    for name in ("image", "view1", "view2"):
        np.testing.assert_array_equal(later[name], whole[2][name])
        np.testing.assert_array_equal(part[name], whole[0][name][rows])


def test_a_bad_image_is_black_in_all_views(examples):
    source = ListSource([*examples[:5], Example(b"no image", (0,))])
    (batch,) = batches(source, count=1)
    bad = batch["weight"] == 0
    assert bad.sum() == 1
    for name in ("image", "view1", "view2"):
        assert not batch[name][bad].any()
        assert batch[name][~bad].any(axis=(1, 2, 3)).all()
