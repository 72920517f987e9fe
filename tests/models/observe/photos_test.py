"""Where ViT-Ti/16 (AugReg) looks in 17 photos, against boxes drawn by hand.

All objects were photographed near the middle: the middle itself lies in 16 of the 17 boxes, and
what the model gives to the four corners alike moves no centre. So that a map's centre of mass lies
there says little; its peak, which for a map drawn at random would lie there in 9 or 10, and the
share of the map inside the box say more, and are tested too.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from vit_jax import weights
from vit_jax.models import images, observe
from vit_jax.probes.attention import outliers

WEIGHTS = Path(__file__).parents[4] / "shared/data/vit_ti16_augreg"
FEWEST = 12
BOXES = json.loads((Path(__file__).parent / "boxes.json").read_text())["boxes"]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not WEIGHTS.is_dir(), reason=f"needs {WEIGHTS}")]


def centre_of_mass(maps):
    """Maps [N, R, C] -> (x, y) as fractions of the image, [N, 2]."""
    grid = (np.indices(maps.shape[1:]) + 0.5) / np.reshape(maps.shape[1:], (2, 1, 1))
    y, x = np.einsum("nrc,krc->kn", maps, grid) / maps.sum(axis=(1, 2))
    return np.stack([x, y], axis=-1)


@pytest.fixture(scope="module")
def seen():
    """{"rollout": [17, 14, 14], "relevance": the same, "norms": TokenParts of [17, 12, 197]}"""
    model = weights.load(WEIGHTS)
    photos = np.stack([images.load(WEIGHTS / "images" / name, model.preprocess) for name in BOXES])
    relevance = observe.relevance(model, photos)
    assert len(set(relevance.classes)) == len(BOXES)
    rollout, norms = observe.look(model, photos, (observe.Rollout(), observe.TokenNorms())).results
    return {"rollout": rollout.patches, "relevance": relevance.map.patches, "norms": norms.blocks}


def inside(points):
    """[17, 2] as (x, y) -> bool [17]"""
    left, top, right, bottom = np.array(list(BOXES.values())).T
    x, y = points.T
    return (left <= x) & (x <= right) & (top <= y) & (y <= bottom)


def places(grid):
    """Centres of the patches as (x, y) in fractions, [rows, columns, 2]."""
    rows, columns = np.indices(grid)
    return np.stack([(columns + 0.5) / grid[1], (rows + 0.5) / grid[0]], axis=-1)


@pytest.mark.parametrize("kind", ["rollout", "relevance"])
def test_it_looks_at_the_object(seen, kind):
    maps = seen[kind]
    of_patches = places(maps.shape[1:])
    peaks = np.stack([of_patches.reshape(-1, 2)[m.argmax()] for m in maps])
    assert inside(centre_of_mass(maps)).sum() >= FEWEST
    assert inside(peaks).sum() >= FEWEST


@pytest.mark.parametrize(("kind", "least"), [("rollout", 1.2), ("relevance", 1.5)])
def test_objects_get_more_than_their_area(seen, kind, least):
    maps = seen[kind]
    of_patches = places(maps.shape[1:]).reshape(1, -1, 2)
    within = np.stack([inside(np.tile(p, (len(BOXES), 1))) for p in of_patches[0]], axis=1)
    shares = (maps.reshape(len(maps), -1) * within).sum(1) / maps.sum((1, 2))
    assert np.mean(shares / within.mean(axis=1)) > least


def test_its_patches_of_high_norm_are_the_corners(seen):
    """About 2 % of all, from the middle layers on, as in larger models (arXiv 2309.16588)."""
    found = [outliers(of_layer) for of_layer in seen["norms"].patches.swapaxes(0, 1)]
    assert not np.any(found[:7])
    corners = np.zeros((14, 14), bool)
    corners[np.ix_([0, -1], [0, -1])] = True
    for of_layer in found[7:]:
        assert 0.015 < of_layer.mean() < 0.025
        assert not (of_layer & ~corners).any()


def test_an_even_map_has_its_centre_in_the_middle_and_so_in_most_boxes():
    assert inside(centre_of_mass(np.ones((17, 14, 14)))).sum() == 16
