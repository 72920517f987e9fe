import json
import zlib
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from vit_jax.data.host_tf import tf
from vit_jax.data.ops import autoaugment, distortions
from vit_jax.data.ops.autoaugment import POLICIES

Draws = list[tuple[str | None, float, list[float]]]

DRAWS = 1000  # 40 for each of 25 sub-policies


def run(policy: str, pixels: np.ndarray, seed: int) -> np.ndarray:
    op = autoaugment.autoaugment(policy)
    return op.apply(tf.constant(pixels), tf.constant([seed, 0], tf.int64)).numpy()


# CRC-32 of each policy as JSON, taken when it was compared entry by entry: `v0` with timm 1.0.31,
# which has the authors', the others with torchvision 0.29.1. (Both compute translations
# differently.)
COMPARED = {
    "v0": 3671117733, "imagenet": 1696799241, "cifar10": 1817546697, "svhn": 1317808211,
}  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_are_as_published(policy: str) -> None:
    assert zlib.crc32(json.dumps(POLICIES[policy]).encode()) == COMPARED[policy]
    assert len(POLICIES[policy]) == 25
    for name, probability, level in (step for steps in POLICIES[policy] for step in steps):
        assert name in distortions.DISTORTIONS
        assert 0 <= probability <= 1 and 0 <= level <= 10
        assert probability == round(probability, 1)


def test_draws_sub_policies_equally_often_and_steps_by_their_probability(
    drawn: Callable[..., Draws],
) -> None:
    sub_policies = POLICIES["v0"]
    draws = drawn(autoaugment.autoaugment("v0"), DRAWS)
    expected: Counter[str] = Counter()
    for name, probability, _ in (step for steps in sub_policies for step in steps):
        expected[name] += probability * DRAWS / len(sub_policies)
    counts = Counter(name for name, _, _ in draws if name)
    for name, count in expected.items():
        assert abs(counts[name] - count) < 4.5 * count**0.5, name
    # Both ops of one sub-policy, unique to it: 1.0 and 0.8 of 40, standard deviation 5.6.
    pairs = Counter((a[0], b[0]) for a, b in zip(draws[::2], draws[1::2], strict=True))
    assert 10 < pairs["Rotate", "TranslateY"] < 54


def test_arguments_are_those_of_the_level(drawn: Callable[..., Draws]) -> None:
    reach = distortions.Reach(translate_px=250, cutout_px=100)
    levels: dict[str, set[float]] = {}
    for name, _, level in (step for steps in POLICIES["v0"] for step in steps):
        argument = distortions.DISTORTIONS[name].argument(level, reach)
        levels.setdefault(name, set()).add(np.float32(argument).item())
    draws = drawn(autoaugment.autoaugment("v0"), 400)
    assert all(argument in levels[name] for name, argument, _ in draws if name)
    seen = {(name, argument) for name, argument, _ in draws if name}
    assert len(seen) > 0.8 * sum(map(len, levels.values()))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("size", [(1, 1), (7, 300), (32, 32)], ids=str)
def test_keeps_the_size_and_is_a_function_of_the_seed(policy: str, size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    results = [run(policy, pixels, seed) for seed in range(12)]
    for seed, result in enumerate(results):
        assert (result.shape, result.dtype) == (pixels.shape, np.uint8)
        np.testing.assert_array_equal(run(policy, pixels, seed), result)
    if size == (32, 32):
        assert len({result.tobytes() for result in results}) > 5
