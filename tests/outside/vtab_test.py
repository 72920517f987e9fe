"""Splits, labels and levels of VTAB's tasks against the benchmark's own code."""

import json

import numpy as np
import pytest

from vit_jax.data.host_tf import tf
from vit_jax.data.ops import table as ops
from vit_jax.data.sources import splits
from vit_jax.data.sources.tfds_labels import DERIVATIONS
from vit_jax.tools.lab.vtab.table import NUM_HELD_OUT, NUM_TRAIN, TASKS

# As scripts/run_all_tasks.sh of the benchmark spells them.
CLASSES = {
    "caltech101": "data.caltech101",
    "cifar100": "data.cifar(num_classes=100)",
    "dtd": "data.dtd",
    "flowers102": "data.oxford_flowers102",
    "pets": "data.oxford_iiit_pet",
    "sun397": "data.sun397",
    "svhn": "data.svhn",
    "camelyon": "data.patch_camelyon",
    "eurosat": "data.eurosat",
    "resisc45": "data.resisc45",
    "retinopathy": "data.diabetic_retinopathy(config='btgraham-300')",
    "clevr_count": "data.clevr(task='count_all')",
    "clevr_distance": "data.clevr(task='closest_object_distance')",
    "dmlab": "data.dmlab",
    "kitti_distance": "data.kitti(task='closest_vehicle_distance')",
    "dsprites_location": "data.dsprites(predicted_attribute='label_x_position',num_classes=16)",
    "dsprites_orientation": "data.dsprites(predicted_attribute='label_orientation',num_classes=16)",
    "smallnorb_azimuth": "data.smallnorb(predicted_attribute='label_azimuth')",
    "smallnorb_elevation": "data.smallnorb(predicted_attribute='label_elevation')",
}
# What TFDS declares of the labels that are features, beside `label`.
OF_FEATURES = {
    "label_x_position": 32, "label_orientation": 40, "label_azimuth": 18, "label_elevation": 9,
}  # fmt: skip
SCENES = 4000
INSIDE = np.array([[[0], [1]], [[1], [1]]], np.uint8)  # as dSprites stores its images


def values() -> dict[str, np.ndarray]:
    """Features over all of their range, and thresholds exactly; names as below."""
    rng = np.random.default_rng(0)
    counts = rng.integers(3, 11, SCENES)
    depths = rng.choice([8.0, 8.5, 9, 9.5, 10, 100, 1e-3], counts.sum())
    drawn = rng.uniform(6, 14, counts.sum()) + rng.exponential(2, counts.sum())
    coordinates = rng.uniform(0, 480, (counts.sum(), 3)).astype(np.float32)
    coordinates[:, 2] = np.where(rng.random(counts.sum()) < 0.1, depths, drawn)
    vehicles = rng.integers(0, 9, SCENES)
    locations = rng.uniform(-40, 90, (vehicles.sum(), 3)).astype(np.float32)
    exact = rng.random(vehicles.sum()) < 0.2
    locations[exact, 2] = rng.choice([8.0, 20.0, 999.0, -99.0], exact.sum())
    clevr = {"counts": counts, "size": rng.integers(0, 2, counts.sum())}
    return {
        **{f"clevr_count/{k}": x for k, x in clevr.items()},
        "clevr_distance/counts": counts,
        "clevr_distance/pixel_coords": coordinates,
        "kitti_distance/counts": vehicles,
        "kitti_distance/type": rng.integers(0, 8, vehicles.sum()),
        "kitti_distance/location": locations,
        "dsprites_location/label_x_position": np.arange(32),
        "dsprites_orientation/label_orientation": np.arange(40),
        "smallnorb_azimuth/label_azimuth": np.arange(18),
        "smallnorb_elevation/label_elevation": np.arange(9),
    }


def inputs() -> dict[str, np.ndarray]:
    about = {
        name: {
            "class": CLASSES[name],
            "sizes": dict(task.sizes),
            "classes": OF_FEATURES | {"label": task.num_classes},
        }
        for name, task in TASKS.items()
    }
    return values() | {"about": np.array(json.dumps(about)), "image": INSIDE}


@pytest.fixture
def published(theirs):
    return theirs("task_adaptation", "task_adaptation_vtab", inputs)


def slices(split: str, sizes) -> list[splits.Slice]:
    return [splits.resolve(part, sizes, where="input") for part in splits.parts(split)]


def test_splits_and_classes_are_the_benchmarks(published):
    about = json.loads(str(published["about"]))
    assert list(about) == list(CLASSES) == list(TASKS)
    for name, task in TASKS.items():
        there = about[name]
        for ours, split, number in (
            (task.train, "train800", NUM_TRAIN),
            (task.held_out, "val200", NUM_HELD_OUT),
            (task.train_held_out, "train800val200", NUM_TRAIN + NUM_HELD_OUT),
            (task.test, "test", task.num_test()),
        ):
            found = slices(ours, task.sizes)
            assert found == slices(there["splits"][split], task.sizes), (name, split)
            assert sum(part.num_examples for part in found) == number == there["sizes"][split]
        assert there["num_classes"] == task.num_classes
        data, _, version = there["builder"].partition(":")
        assert (data, int(version.split(".")[0])) == (task.folder, task.version)


@pytest.mark.parametrize("name", ["clevr_count", "clevr_distance", "kitti_distance"])
def test_labels_of_objects_are_the_benchmarks(published, name):
    given, expected = values(), published[f"{name}/labels"]
    assert set(expected) == set(range(TASKS[name].num_classes)) and len(expected) == SCENES
    derivation = DERIVATIONS[name]
    ends = np.cumsum(given[f"{name}/counts"])[:-1]
    parts = [
        np.split(given[f"{name}/{feature.removeprefix('objects/')}"], ends)
        for feature in derivation.features
    ]
    ours = [derivation.derive(*map(np.ravel, each)) for each in zip(*parts, strict=True)]
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("name", [n for n in TASKS if n.startswith(("dsprites", "smallnorb"))])
def test_labels_of_one_feature_are_the_benchmarks(published, name):
    ((key, given),) = [(k, x) for k, x in values().items() if k.startswith(name)]
    expected = published[f"{name}/labels"]
    assert set(expected) == set(range(TASKS[name].num_classes))
    if (derivation := DERIVATIONS.get(TASKS[name].label)) is not None:
        given = [derivation.derive(np.array([value])) for value in given]
    else:
        assert key == f"{name}/{TASKS[name].label}"
    np.testing.assert_array_equal(given, expected)


def test_white_is_white(published):
    expected = published["dsprites_location/image"]
    assert expected.tolist() == np.tile(INSIDE, 3).tolist() or expected.max() == 255
    op = ops.parse("decode|white_level(1)")._ops[1]
    ours = op.apply(tf.constant(np.tile(INSIDE, 3)), tf.constant([0, 0], tf.int64))
    np.testing.assert_array_equal(ours, expected)
