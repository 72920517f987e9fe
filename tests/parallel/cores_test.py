"""A device for each core."""

import jax
import pytest

from vit_jax.parallel import cores


@pytest.fixture
def asked(monkeypatch):
    """What JAX is told, on a machine of 6 cores and 64 GB."""
    told = {}
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(jax.config, "update", told.__setitem__)
    monkeypatch.setattr(cores, "_cores", lambda: 6)
    sizes = {"SC_PHYS_PAGES": 16 * 10**6, "SC_PAGE_SIZE": 4000}
    monkeypatch.setattr(cores.os, "sysconf", sizes.__getitem__)
    return told


@pytest.mark.parametrize(
    ("weights_bytes", "devices"), [(10**6, 6), (4 * 10**9, 4), (10**11, 1), (0, 6)]
)
def test_as_many_as_copies_of_the_weights_fit(asked, weights_bytes, devices):
    cores.as_devices(weights_bytes)
    assert asked == {"jax_num_cpu_devices": devices}


def test_what_jax_is_told_otherwise_holds(asked, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"--{cores.FLAG}=3")
    cores.as_devices(1)
    assert asked == {}
