"""Features of patches as colours: their first three principal components as red, green and blue.

As in DINOv2 (arXiv 2304.07193, section 7.5). Patches that the model sees alike have like colours.
"""

from __future__ import annotations

import numpy as np

from vit_jax.probes.principal import principal

CHANNELS = 3
OUTSIDE = 1.0  # percent of the patches at either end of each component that saturate


def colours(features: np.ndarray) -> np.ndarray:
    """Patch features of B images [B, ..., D] -> colours [B, ..., 3] from 0 to 1, float32.

    Components and their range are those of all images together, so equal colours in two images
    mean the same. Give features after the last norm (`model.tokens(images)`): before it, a few
    tokens of high norm (arXiv 2309.16588) take the components. A component that is missing, with
    fewer than 4 patches or dimensions, or that does not vary is 0.5.
    """
    x = np.asarray(features, np.float32)
    flat = x.reshape(-1, x.shape[-1])
    along = principal(flat, CHANNELS).coordinates(flat)
    along = np.pad(along, ((0, 0), (0, CHANNELS - along.shape[1])))
    low, high = np.percentile(along, [OUTSIDE, 100 - OUTSIDE], axis=0)
    span = high - low
    # Rounding leaves a little along directions in which nothing varies.
    size = float(np.abs(flat).max(initial=0))
    varies = span > max(1e-6 * size, float(np.finfo(np.float32).tiny))
    shares = np.where(varies, (along - low) / np.where(varies, span, 1), 0.5)
    return np.clip(shares, 0, 1).astype(np.float32).reshape(*x.shape[:-1], CHANNELS)
