"""The page: its files, and the sections of models of several families."""

import io
import unittest.mock
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from tests.messages import refused
from vit_jax import models, weights
from vit_jax.draw.html_page import Findings, Picture, Section
from vit_jax.probes import cka
from vit_jax.tools.look.visualize import features, page, photos
from vit_jax.tools.look.visualize.page import Options, find_class, sections

FILE = io.BytesIO()
Image.new("RGB", (2, 2)).save(FILE, "PNG")


def write(folder, *names):
    pictures = [Picture(name, name, "A note.", FILE.getvalue()) for name in names]
    page.write(folder, "ViT", "of a test", [Findings(Section("One", pictures), {"share": 0.5})])


def files(folder):
    return {file.name for file in folder.iterdir()}


def test_pictures_that_the_page_before_had_alone_are_removed(tmp_path):
    (tmp_path / "mine.png").touch()
    write(tmp_path, "filters", "heads_of_layer_1")
    write(tmp_path, "filters", "heads_of_layer_2")
    assert files(tmp_path) == {"mine.png", "index.html", "filters.png", "heads_of_layer_2.png"}
    assert (tmp_path / "filters.png").read_bytes() == FILE.getvalue()


def test_a_page_of_something_else_is_not_replaced(tmp_path):
    (tmp_path / "index.html").write_text("<title>My site</title>")
    for use in (page.check_folder, lambda folder: write(folder, "filters")):
        with refused("index.html"):
            use(tmp_path)
    assert files(tmp_path) == {"index.html"}


QUIET = lambda *_: None
ATTENTION = {
    "attention", "distances", "heads_of_layer_1", "heads_of_layer_2", "norms", "norms_by_layer",
}  # fmt: skip
FEATURES = {"features", "neighbours", "map"}
SMALL = {"depth": 2, "width": 16, "mlp_dim": 16, "num_heads": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, numbers = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for i in range(5):
        place = folder / f"class{i % 3}"
        place.mkdir(exist_ok=True)
        Image.fromarray(numbers.integers(0, 255, (32, 32, 3), np.uint8)).save(place / f"{i}.png")
    return folder


def create(name, num_classes=3, **fields):
    return models.create(name, num_classes=num_classes, image_size=32, rngs=nnx.Rngs(0), **fields)


def options(max_images=2, **fields):
    return Options(max_images, "pca", **fields)


def made(name, folder, num_classes=3, *, asked=None, **fields):
    model = create(name, num_classes, **fields)
    names = tuple(f"class{i}" for i in range(num_classes)) or None
    found = photos.find([str(folder)], model.preprocess, names)
    return sections(weights.Loaded(model, name, names, 0), found, asked or options(), QUIET)


def pictures(findings):
    for each in findings:
        for picture in each.section.pictures:
            Image.open(io.BytesIO(picture.data)).verify()
    return {picture.name for each in findings for picture in each.section.pictures}


def numbers(findings):
    return {name: number for each in findings for name, number in each.numbers.items()}


def test_of_a_vit(folder):
    found = made("ViT-Ti/8", folder, asked=options(max_images=4), **SMALL)
    assert {"filters", "positions", *ATTENTION, *FEATURES, "cka"} == pictures(found)
    assert 0 < numbers(found)["first_distance_px"] < 32
    assert 0 < numbers(found)["positions_row_plus_column"] < 1


@pytest.mark.slow
def test_a_hybrid_shows_its_first_convolution(folder):
    found = made("R1-1+ViT-Ti/8", folder, **SMALL)
    assert "convolution" in found[0].section.pictures[0].note
    assert pictures(found) >= ATTENTION


def test_a_resnet_has_no_attention_and_says_so(folder):
    found = made("R1-1x1", folder)
    assert {"filters", "attention", *FEATURES} == pictures(found)
    assert not pictures(found) & {"distances", "positions"}
    assert "no blocks of attention" in found[1].section.text
    assert "no position embeddings" in found[0].section.text


@pytest.mark.parametrize("asked", [{"layers": (0,)}, {"query": (0, 1)}])
def test_attention_that_a_resnet_lacks_is_refused_before_images_are_read(asked):
    model = create("R1-1x1")
    none = photos.Photos((Path("missing.png"),), (None,), model.preprocess)
    with refused(*(f"--{name}" for name in asked)):
        sections(weights.Loaded(model, "R1-1x1", None, 0), none, options(**asked), QUIET)


def test_a_model_without_a_head_has_no_classes(folder):
    found = made("ViT-Ti/8", folder, 0, **SMALL)
    assert {"filters", "positions", *ATTENTION, *FEATURES} == pictures(found)
    with refused("--of_class"):
        made("ViT-Ti/8", folder, 0, asked=options(of_class="cat"), **SMALL)


def test_what_is_asked_for_has_to_be_there(folder):
    for asked, name in (
        (options(layers=(2,)), "--layers=3"),
        (options(query=(4, 0)), "--query=5,1"),
        (options(of_class="class9"), "--of_class=class9"),
    ):
        with refused(name):
            made("ViT-Ti/8", folder, asked=asked, **SMALL)
    asked = options(layers=(1,), query=(0, 3), of_class="2")
    found = made("ViT-Ti/8", folder, asked=asked, **SMALL)
    assert pictures(found) & ATTENTION == ATTENTION - {"heads_of_layer_1"}


def test_a_class_is_known_by_any_of_its_names():
    model = SimpleNamespace(num_classes=4, spec=None)
    names = ("n01440764 tench, Tinca tinca", "n01514668 cock", "street sign", "1")
    for asked in ("cock", "n01514668", "n01514668 cock"):
        assert find_class(asked, model, names) == 1
    assert find_class("Tinca tinca", model, names) == 0
    assert [find_class(asked, model, names) for asked in ("1", "2")] == [3, 2]
    cranes = ("n02012849 crane", "n03126707 crane, derrick", "crane fly", "4")
    assert find_class("derrick", model, cranes) == 1
    several = ("crane", cranes)
    for asked, known in (("sign", names), ("", names), ("4", names), ("4", None), several):
        with refused("--of_class", asked):
            find_class(asked, model, known)


@pytest.mark.parametrize(("damaged", "what"), [("patches", "features"), ("head", "logits")])
def test_what_is_not_finite_is_refused(folder, damaged, what):
    model = create("ViT-Ti/8", **SMALL)
    getattr(model, damaged).kernel[...] = np.nan
    found = photos.find([str(folder)], model.preprocess, None)
    with refused(what):
        sections(weights.Loaded(model, "ViT-Ti/8", None, 0), found, options(), QUIET)


def test_a_few_tokens_of_large_norm_do_not_decide_what_is_alike():
    """Layers whose tokens are unrelated, but for one of a hundred that is as large as all."""
    numbers = np.random.default_rng(0)
    first, second = numbers.normal(size=(2, 32, 50, 8)).astype(np.float32)
    first[:, 0] = second[:, 0] = 100 * numbers.normal(size=(32, 8))

    class Model:
        spec = SimpleNamespace(depth=2)
        tokens = staticmethod(lambda images, layers: [jnp.asarray(x) for x in (first, second)])

    similarity = lambda layers: cka.linear_cka(layers)[0, 1]

    assert similarity([first, second]) > 0.9
    with unittest.mock.patch.object(features.chunks, "compute", lambda f, model, x: f(model, x)):
        assert similarity(features.layer_tokens(Model(), first)) < 0.3
