import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.core.errors import UserError
from vit_jax.feed import Feed


class Batches:
    """What a pipeline gives, from a list; counts its closings."""

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

    def close(self):
        self.closed += 1


LAYOUT = {
    "x": jax.ShapeDtypeStruct(
        (2,), jnp.float32, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0])
    )
}


def test_batches_in_order_then_the_end():
    batches = Batches(0, 1, 2, 3)
    with Feed(batches, LAYOUT) as feed:
        assert [float(b["x"][0]) for b in feed] == [0, 1, 2, 3]
        assert list(feed) == []
        assert feed.skipped_images == 1  # weight 0 at an index; padding has none
        assert feed.wait_secs > 0
    assert batches.closed == 1


def test_an_error_comes_out_where_batches_are_asked_for():
    with Feed(Batches(0, UserError("a.jpg is broken")), LAYOUT) as feed:
        next(feed)
        for _ in range(2):
            with pytest.raises(UserError, match=r"a.jpg is broken"):
                next(feed)


def test_may_be_left_before_its_end():
    batches = Batches(*range(1000))
    with Feed(batches, LAYOUT) as feed:
        next(feed)
    assert batches.closed == 1
    assert not feed._thread.is_alive()
