import concurrent.futures
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from vit_jax.core.errors import UserError
from vit_jax.data.source import Example, Source
from vit_jax.data.sources import ram_cache

MakeSource = Callable[[Sequence[Example]], Source]
SIZE_BYTES = 700 + 300  # of an example, with its overhead


@pytest.fixture
def source(list_source: MakeSource) -> Source:
    return list_source([Example(b"%4d" % i + bytes(696), (i % 10,)) for i in range(100)])


@pytest.fixture
def reads(source: Source, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The examples that are read from the source, from now on."""
    seen: list[int] = []
    read = source.read

    def remember(indices: np.ndarray) -> list[Example]:
        seen.extend(indices.tolist())
        return read(indices)

    monkeypatch.setattr(source, "read", remember)
    return seen


def test_every_example_is_read_once(source: Source, reads: list[int]) -> None:
    cached = ram_cache.InMemory(source, limit_bytes=10**6)
    for indices in ([3, 1], [1, 2, 3], [2, 2, 50], list(range(100)), [99]):
        expected = [b"%4d" % i for i in indices]
        assert [e.image[:4] for e in cached.read(np.array(indices))] == expected
    assert reads[:4] == [3, 1, 2, 50]
    assert len(reads) == 100 and set(reads) == set(range(100))


def test_memory_stays_below_the_limit(source: Source, reads: list[int]) -> None:
    cached = ram_cache.InMemory(source, limit_bytes=10 * SIZE_BYTES + 999)
    everything = np.arange(100)
    assert cached.read(everything) == cached.read(everything)
    assert len(reads) == 100 + 90


def test_threads_do_not_disturb_each_other(source: Source, reads: list[int]) -> None:
    cached = ram_cache.InMemory(source, limit_bytes=10 * SIZE_BYTES)
    orders = [np.random.default_rng(i).permutation(100) for i in range(50)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for order, examples in zip(orders, pool.map(cached.read, orders), strict=True):
            assert [int(e.image[:4]) for e in examples] == order.tolist()
    assert len(reads) >= 100 + 49 * 90 - 8 * 100


def test_what_does_not_fit_is_refused_with_numbers(source: Source) -> None:
    ram_cache.check_fits(source, limit_bytes=100 * SIZE_BYTES)
    message = r"100 examples take about 100,000 bytes, .* limit of 99,999\. Set input\.cache_bytes"
    with pytest.raises(UserError, match=message):
        ram_cache.check_fits(source, limit_bytes=100 * SIZE_BYTES - 1)


def test_weights_of_labels_take_memory_too(list_source: MakeSource) -> None:
    example = Example(bytes(700), (1, 2), weights=(0.5, 1.0))
    for limit, fits in ((SIZE_BYTES, False), (SIZE_BYTES + 64, True)):
        cached = ram_cache.InMemory(list_source([example]), limit_bytes=limit)
        one, other = cached.read(np.array([0])), cached.read(np.array([0]))
        assert one == other == [example] and (0 in cached._examples) == fits
