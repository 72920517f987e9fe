import itertools

import pytest

from vit_jax.data.host_tf import tf
from vit_jax.data.ops import autoaugment

# (name or None, argument, chance) of each distortion that an op draws.
Draws = list[tuple[str | None, float, list[float]]]


@pytest.fixture
def drawn(monkeypatch):
    """The draws of `op` for seeds 0, 1, ...; no distortion is applied."""

    def draws(op, num_seeds):
        calls = []

        def record(pixels, *call):
            calls.append(call)
            return pixels

        def of_seed(seed):
            calls.clear()
            op.apply(tf.zeros((1, 1, 3), tf.uint8), tf.stack([seed, 0]))
            return tuple(tf.stack(values) for values in list(zip(*calls, strict=True))[1:])

        monkeypatch.setattr(autoaugment, "distort", record)
        types = (tf.int32, tf.float32, tf.float32)
        seeds = tf.range(num_seeds, dtype=tf.int64)
        of_all = tf.function(lambda: tf.map_fn(of_seed, seeds, fn_output_signature=types))()
        choices, arguments, chances = (values.numpy().tolist() for values in of_all)
        names = (*calls[0][0], None)  # NOTHING, -1, has no name
        assert autoaugment.NOTHING == -1
        chain = itertools.chain.from_iterable
        drawn_names = [names[choice] for choice in chain(choices)]
        return list(zip(drawn_names, chain(arguments), chain(chances), strict=True))

    return draws
