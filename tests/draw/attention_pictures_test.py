"""Pictures of attention and of norms."""

import numpy as np
import pytest
from flax import nnx

from tests.draw.drawn import LONG, check, heat, photos
from vit_jax import models
from vit_jax.draw import attention_pictures
from vit_jax.draw.attention_pictures import (
    draw_attention,
    draw_distance,
    draw_norms,
    draw_norms_by_layer,
    draw_overlays,
)

rng = np.random.default_rng(0)


@pytest.mark.parametrize(("depth", "heads"), [(12, 3), (1, 1), (32, 16)])
def test_distance_has_a_dot_per_head_in_pixels(depth, heads):
    distances = np.random.default_rng(0).uniform(10, 160, (depth, heads))
    figure = check(
        lambda: draw_distance(distances, images=17, uniform=116.0),
        "network depth (layer)",
        "mean attention distance (pixels)",
        f"{heads} head",
        "17 images",
    )
    dots = figure.axes[0].collections[0].get_offsets()
    assert len(dots) == depth * heads
    np.testing.assert_allclose(sorted(dots[:, 1]), np.sort(distances.ravel()))
    np.testing.assert_array_equal(np.round(dots[:, 0]), np.repeat(np.arange(depth) + 1, heads))


@pytest.mark.parametrize("number", [1, 5])
def test_overlays(number):
    maps = {"rollout": heat(number), "relevance": heat(number, seed=2)}
    check(
        lambda: draw_overlays(photos(number), maps, [LONG] * number),
        "photo",
        "rollout",
        "relevance",
        "share of the largest in the image",
        "…",
    )


@pytest.mark.parametrize(("heads", "query"), [(3, (2, 1)), (12, None)])
def test_attention_of_a_layer(heads, query):
    shown = "row 3, column 2" if query else "the class token"
    figure = check(
        lambda: draw_attention(photos(1)[0], heat(heads), query=query, layer=6),
        "Attention of layer 6",
        shown,
        f"head {heads}",
        "share of the largest in the head",
    )
    frames = [patch for axes in figure.axes for patch in axes.patches]
    assert len(frames) == (2 * (heads + 1) if query else 0)


def test_heat_is_where_it_belongs():
    photo = np.full((40, 60, 3), 128, np.uint8)
    one = np.zeros((4, 6))
    one[1, 4] = 1
    light_of_one = attention_pictures.blend(photo, one)
    light = light_of_one.astype(int).sum(axis=-1)
    assert np.unravel_index(light.argmax(), light.shape)[0] in range(10, 20)
    assert np.unravel_index(light.argmax(), light.shape)[1] in range(40, 50)
    assert (attention_pictures.blend(photo, 7 * one - (one == 0)) == light_of_one).all()
    one[0, 0] = np.nan
    assert (attention_pictures.blend(photo, one) == light_of_one).all()
    cold = attention_pictures.blend(photo, 0 * one).reshape(-1, 3)
    assert len(np.unique(cold, axis=0)) == 1


@pytest.mark.parametrize("number", [1, 4])
def test_norms_frame_what_stands_out(number):
    lengths = 10 + heat(number)
    lengths[0, 2, 3] = 500
    figure = check(
        lambda: draw_norms(photos(number), lengths, lengths > 30, [LONG] * number, title="Norms"),
        "norm of the token (no unit)",
        "patches stand out",
    )
    (frame,) = [patch for axes in figure.axes for patch in axes.patches if axes.images]
    assert frame.get_xy() == (2.5, 1.5)


@pytest.mark.parametrize("length", [1, 0])
def test_norms_of_equal_length(length):
    lengths, none = np.full((1, 3, 4), length), np.zeros((1, 3, 4), bool)
    check(lambda: draw_norms(photos(1), lengths, none, ["a"], title="Norms"))


@pytest.mark.parametrize("depth", [1, 12])
def test_norms_by_layer(depth):
    others = {"class token": rng.uniform(1, 9, depth), "register 1": rng.uniform(1, 900, depth)}
    lengths = rng.uniform(1, 30, (depth, 99))
    check(
        lambda: draw_norms_by_layer(lengths, others=others, threshold=90),
        "network depth (layer)",
        "norm of the token (no unit)",
        "class token",
        "register 1",
        "stands out",
    )


def test_pictures_of_a_distilled_model_whose_patches_leave_pixels_out(monkeypatch):
    model = models.create(
        "ViT-Ti/8", num_classes=3, image_size=(20, 27), depth=1, width=8, mlp_dim=8, num_heads=1,
        distillation_token=True, registers=1, crop_to_patches=True, initialization="deit",
        rngs=nnx.Rngs(0),
    )  # fmt: skip
    pixels, seen = photos(1, 20, 27), {}
    for name in ("overlays", "attention", "norms", "norms_by_layer"):
        draw = lambda *given, name=name, **named: seen.update({name: (given, named)})
        monkeypatch.setattr(attention_pictures, f"draw_{name}", draw)
    question = attention_pictures.Question([1], ["a"], query=(1, 2))
    inputs = (pixels / 127.5 - 1).astype(np.float32)
    found = attention_pictures.findings(model, inputs, pixels, question)
    for picture in found.section.pictures:
        if picture.name != "distances":
            picture.drawn()
    for name in ("overlays", "norms"):
        np.testing.assert_array_equal(seen[name][0][0], pixels[:, :16, :24])
    np.testing.assert_array_equal(seen["attention"][0][0], pixels[0, :16, :24])
    others = ["class token", "distillation token", "register 1"]
    assert list(seen["norms_by_layer"][1]["others"]) == others
