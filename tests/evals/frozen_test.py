"""Features of a model that gives the colours of an image's only pixel."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.evals.classification_test import Feed
from tests.messages import refused
from vit_jax.evals.frozen import FeatureCache, FeatureReader, Frozen, FrozenConfig
from vit_jax.evals.kind import SplitReader
from vit_jax.learning.losses import Objective, Softmax
from vit_jax.parallel import mesh as meshes
from vit_jax.probes import few_shot, neighbours
from vit_jax.probes.principal import rank_me

BATCH = 4


class Scaled(nnx.Module):
    """The features are the pixel times a parameter."""

    def __init__(self):
        self.scale = nnx.Param(jnp.ones(3))

    def features(self, images):
        return images[:, 0, 0] * self.scale[...]


def pixels(n, classes=3, seed=0):
    """Pixels that lie around a colour of their class, and labels."""
    numbers = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    noise = numbers.integers(-40, 41, (n, 3))
    return (np.eye(3, dtype=int)[labels] * 120 + 60 + noise).astype(np.uint8), labels


def reader(images, labels, *, bad=(), cache=None, opened=None):
    """A FeatureReader of these images; those at `bad` are skipped, the last batch is padded."""

    def open_feed():
        if opened is not None:
            opened.append(True)
        rows = -(-len(labels) // BATCH) * BATCH
        batch = {
            "image": np.zeros((rows, 1, 1, 3), np.uint8),
            "labels": np.full((rows, 1), -1, np.int32),
            "weight": np.zeros(rows, np.float32),
        }
        for i in set(range(len(labels))) - set(bad):
            batch["image"][i, 0, 0], batch["labels"][i], batch["weight"][i] = (
                images[i],
                labels[i],
                1,
            )
        parts = [
            {name: jnp.asarray(x[first : first + BATCH]) for name, x in batch.items()}
            for first in range(0, rows, BATCH)
        ]
        return Feed(parts), len(parts)

    graph, _ = nnx.split(Scaled(), nnx.Param)
    objective = Objective(
        loss=Softmax(), num_classes=3,
        grad_accum_steps=1, mean=(0.0,) * 3, std=(1 / 255,) * 3,
    )  # fmt: skip
    mesh = meshes.make_mesh(replica=1, data=-1, fsdp=1, tensor=1)
    read = functools.partial(
        SplitReader,
        graph=graph, mesh=mesh, open_feed=open_feed, num_examples=len(labels), where="evals.f",
    )  # fmt: skip
    return FeatureReader(read, objective, cache)


def params(scale=1.0):
    return {"scale": scale * jnp.ones(3)}


def silent(*_):
    pass


@pytest.mark.parametrize(("n", "bad"), [(1, ()), (4, ()), (11, (0, 7))])
def test_every_example_once_and_in_order(n, bad):
    images, labels = pixels(n)
    steps = []
    x, found = reader(images, labels, bad=bad).read(params(2.0), lambda *s: steps.append(s), False)
    good = [i for i in range(n) if i not in bad]
    np.testing.assert_allclose(x, 2.0 * images[good], rtol=1e-6)
    np.testing.assert_array_equal(found, labels[good])
    assert steps == [(i, -(-n // BATCH)) for i in range(1, -(-n // BATCH) + 1)]


def test_a_stop_ends_it_and_bad_images_alone_are_an_error():
    images, labels = pixels(9)
    assert reader(images, labels).read(params(), silent, True) is None
    with refused("evals.f"):
        reader(images, labels, bad=range(9)).read(params(), silent, False)


def test_features_are_kept_by_weights_and_data(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    images, labels = pixels(9)
    opened = []

    def read(scale=1.0, *, of="data"):
        one = reader(images, labels, cache=FeatureCache(of), opened=opened)
        return one.read(params(scale), silent, False)

    first, again = read(), read()
    assert len(opened) == 1
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(read(2.0)[0], 2.0 * first[0])
    read(of="other data")
    assert len(opened) == 3
    for file in (tmp_path / "vit_jax" / "features").glob("*.npz"):
        file.write_bytes(file.read_bytes()[:100])
    read()
    assert len(opened) == 4


def test_features_used_longest_ago_make_room(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    images, labels = pixels(100)

    def kept(scale, limit_bytes=5000):
        cache = FeatureCache("data", limit_bytes=limit_bytes)
        reader(images, labels, cache=cache).read(params(scale), silent, False)
        return [cache.path(params(s)).exists() for s in (1.0, 2.0, 3.0)]

    assert kept(1.0) == [True, False, False]
    assert kept(2.0) == [True, True, False]  # 2 x 2,094 bytes
    os.utime(FeatureCache("data").path(params(2.0)), (0, 0))
    assert kept(1.0) == [True, True, False]
    assert kept(3.0) == [True, False, True]
    assert kept(2.0, limit_bytes=1000) == [True, False, True]  # too large by itself


def evaluate(train, test, **options):
    given = {
        "shots": (1, 3), "seeds": 2, "l2": 10.0, "neighbours": (1, 5), "temperature": 0.1,
        "probe_l2": (0.01, 1.0), "probe_lr": (1e-3, 0.1), "probe_epochs": 5, **options,
    }  # fmt: skip
    config = FrozenConfig(**given)
    numbers = Frozen(config, reader(*train), reader(*test), num_classes=3).run(
        params(), silent, False
    )
    assert set(numbers) == set(config.numbers())
    return numbers


def test_the_numbers_are_those_of_the_probes():
    train, test = pixels(30), pixels(50, seed=1)
    numbers = evaluate(train, test)
    features = [(x.astype(np.float32), y) for x, y in (train, test)]
    draws = [
        few_shot.evaluate(*features, num_classes=3, shots=3, seed=seed, fixed_l2=10.0)
        for seed in range(2)
    ]
    assert numbers["3shot_accuracy"] == np.mean([d.fixed for d in draws])
    assert numbers["3shot_deviation"] == np.std([d.fixed for d in draws])
    assert numbers["3shot_chosen_l2_accuracy"] == np.mean([d.chosen for d in draws])
    near = neighbours.accuracies(*features, num_classes=3, k=(1, 5), temperature=0.1)
    assert (numbers["knn1_accuracy"], numbers["knn5_accuracy"]) == (near[1], near[5])
    assert numbers["rank_me"] == rank_me(features[0][0])
    assert numbers["probe_accuracy"] > 0.8 and numbers["probe_l2"] in (0.01, 1.0)
    assert numbers["sgd_probe_accuracy"] > 0.8 and numbers["sgd_probe_lr"] in (1e-3, 0.1)
    assert numbers["examples"] == 50


def test_images_without_a_label_count_for_the_rank_alone():
    train, test = pixels(30), pixels(50, seed=1)
    without = [(x, np.where(np.arange(len(y)) % 5 < 3, y, -1)) for x, y in (train, test)]
    labelled = [(x[y >= 0], y[y >= 0]) for x, y in without]
    expected = {"examples": 30.0, "rank_me": evaluate(train, test)["rank_me"]}
    assert evaluate(*without) == evaluate(*labelled) | expected
    nothing = (test[0], np.full(50, -1))
    with refused("evals.f"):
        evaluate(train, nothing)
    of_rank = evaluate(train, nothing, shots=(), neighbours=(), probe_l2=(), probe_lr=())
    assert of_rank["rank_me"] == expected["rank_me"]


def test_features_that_are_not_finite_are_an_error():
    one = reader(*pixels(12))
    frozen = Frozen(FrozenConfig(shots=(), neighbours=()), one, one, num_classes=3)
    with refused("evals.f"):
        frozen.run(jax.tree.map(lambda x: x * jnp.nan, params()), silent, False)
