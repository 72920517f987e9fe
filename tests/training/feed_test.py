import re
import socket
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.core import waiting
from vit_jax.core.errors import UserError
from vit_jax.core.waiting import waiting_for
from vit_jax.training.feed import BadImages, Feed


class Batches:
    """A pipeline that gives the batches of a list and counts how often it was closed."""

    def __init__(self, *items):
        self.items, self.closed = items, 0

    def __iter__(self):
        for item in self.items:
            if isinstance(item, Exception):
                raise item
            yield {
                "x": np.full(2, item, np.float32),
                "weight": np.array([1, 0], np.float32),
                "index": np.array([5, -1 if item else 6]),
            }

    def bad_image(self, index):
        return f"{index}.jpg: broken"

    def close(self):
        self.closed += 1


LAYOUT = {
    "x": jax.ShapeDtypeStruct(
        (2,), jnp.float32, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0])
    )
}


def feed_of(batches, timeout_secs=60, **more):
    return Feed(batches, LAYOUT, timeout_secs=timeout_secs, **more)


def test_gives_batches_in_order_then_ends():
    batches = Batches(0, 1, 2, 3)
    with feed_of(batches) as feed:
        assert [float(b["x"][0]) for b in feed] == [0, 1, 2, 3]
        assert list(feed) == []
        assert feed.skipped_images == 1  # weight 0 at an index; padding has none
        assert feed.bad_images.untold() == ["6.jpg: broken"]
        assert feed.bad_images.untold() == []
        assert feed.wait_secs > 0
    assert batches.closed == 1


def test_a_bad_image_is_named_once():
    """An image is named once even if it returns, in this feed or the next one of the same data."""
    bad_images = BadImages()
    for _ in range(2):
        with feed_of(Batches(0, 0, 1, 0), bad_images=bad_images) as feed:
            next(feed)
            assert bad_images.files == ["6.jpg: broken"]  # as soon as its batch is handed out
            list(feed)
            assert feed.skipped_images == 3
    assert bad_images.untold() == ["6.jpg: broken"]


def test_an_error_is_raised_where_batches_are_requested():
    with feed_of(Batches(0, UserError("a.jpg is broken"))) as feed:
        next(feed)
        for _ in range(2):
            with pytest.raises(UserError, match=r"a.jpg is broken"):
                next(feed)


def test_can_be_closed_before_its_end():
    batches = Batches(*range(1000))
    with feed_of(batches) as feed:
        next(feed)
    assert batches.closed == 1
    assert not feed._thread.is_alive()


def test_each_process_holds_the_rows_of_its_devices(run_python):
    """Rows need not be neighbours, and several devices may hold the same ones."""
    code = """
import jax, numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from vit_jax.training.feed import Feed, own_rows

devices = np.array(jax.devices())[[0, 4, 2, 6, 1, 5, 3, 7]].reshape(4, 2)
mesh = Mesh(devices, ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
layout = jax.ShapeDtypeStruct((8, 3), np.float32, sharding=NamedSharding(mesh, P("data")))
np.testing.assert_array_equal(own_rows(layout), np.arange(8))

class Half:  # as a process with every second pair of devices sees it
    addressable = [devices[i, j] for i in (0, 2) for j in (0, 1)]
    def addressable_devices_indices_map(self, shape):
        return {d: i for d, i in layout.sharding.devices_indices_map(shape).items()
                if d in self.addressable}

half = type("L", (), {"sharding": Half(), "shape": (8, 3)})
np.testing.assert_array_equal(own_rows(half), [0, 1, 4, 5])

x = np.arange(24, dtype=np.float32).reshape(8, 3)
class Batches:
    def __iter__(self):
        yield {"x": x, "weight": np.ones(8, np.float32), "index": np.arange(8)}
    def close(self): pass
with Feed(Batches(), {"x": layout}, timeout_secs=60) as feed:
    np.testing.assert_array_equal(next(feed)["x"], x)
"""
    done = run_python("-c", code, devices=8)
    assert done.returncode == 0, done.stderr


def test_a_missing_batch_names_host_and_file(monkeypatch):
    monkeypatch.setattr("vit_jax.training.feed.CLOSING_SECS", 0.1)
    free = threading.Event()

    class Hanging(Batches):
        def __iter__(self):
            with waiting_for(lambda: "/data/a.png"):
                free.wait()
            return iter(())

    batches = Hanging()
    with feed_of(batches, timeout_secs=0.2) as feed, pytest.raises(UserError) as error:
        next(feed)
    assert socket.gethostname() in str(error.value)
    assert "input.timeout_secs" in str(error.value)
    assert re.search(r"/data/a.png, for \d+ s", str(error.value))
    assert waiting.any_abandoned()
    free.set()
    feed._thread.join()
    assert batches.closed == 1
    assert not waiting.any_abandoned()
