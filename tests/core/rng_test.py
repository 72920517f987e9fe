import jax

from vit_jax.core import rng


def test_streams_depend_on_seed_name_and_step_alone():
    def bits(seed, name, step):
        return tuple(jax.random.bits(rng.at_step(rng.stream(seed, name), step), (4,)).tolist())

    assert bits(0, "dropout", 5) == bits(0, "dropout", 5)
    variants = {
        bits(0, "dropout", 5),
        bits(1, "dropout", 5),
        bits(0, "mixing", 5),
        bits(0, "dropout", 6),
    }
    assert len(variants) == 4
