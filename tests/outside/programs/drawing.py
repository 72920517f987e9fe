"""Random parameters, the same in tests and programs, from names and shapes alone."""

import zlib

import numpy as np


def drawn(shapes):
    """float32 by name: kernels scaled to keep activations bounded, the rest small."""
    return {name: _drawn(name, shape) for name, shape in shapes.items()}


def _drawn(name, shape):
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if name.endswith("kernel"):
        limit = (3 / np.prod(shape[:-1])) ** 0.5 if len(shape) != 3 else (3 / shape[0]) ** 0.5
    else:
        limit = 0.5
    x = rng.uniform(-limit, limit, shape) + float(name.endswith("scale"))
    return x.astype(np.float32)


def drawn_images(size, number=2):
    """float32 [number, size, size, 3] in [-1, 1]."""
    return np.random.default_rng(size).uniform(-1, 1, (number, size, size, 3)).astype(np.float32)
