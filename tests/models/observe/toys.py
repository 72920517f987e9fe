"""Small ViTs' images and results."""

import numpy as np

SIZE = (8, 12)


def random_images(number, size=SIZE):
    draw = np.random.default_rng(1).normal
    return draw(size=(number, *size, 3)).astype(np.float32)


def flat(parts):
    """TokenParts [..., N] as one array."""
    patches = parts.patches.reshape(*parts.patches.shape[:-2], -1)
    return np.concatenate([parts.class_token, parts.registers, patches], axis=-1)
