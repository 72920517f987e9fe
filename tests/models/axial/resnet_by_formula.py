"""An AxialResNet's forward pass in float64 NumPy from its parameters by name, with plain loops.

Written from arXiv 2003.07853 (equation 4) and the definitions of the layers; it shares nothing with
the package but the names of parameters.
"""

import jax
import numpy as np
from flax import nnx

from vit_jax.core import pytrees

GROUPS = 32


def outputs(model, images):
    """[B, H, W, 3] -> the last feature map [B, h, w, D], and logits [B, C]."""
    named = pytrees.flatten(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    p = {name: np.asarray(x, np.float64) for name, x in named.items()}
    x = of_images(model.spec, p, np.asarray(jax.device_get(images), np.float64))
    return x, x.mean(axis=(1, 2)) @ p["head/kernel"] + p["head/bias"]


def of_images(spec, p, x):
    """The last feature map."""
    x = convolution(x, standardised(spec, p["resnet/root/conv/kernel"]), 2)
    x = np.maximum(group_norm(spec, x, p, "resnet/root/norm"), 0)
    x = pooled(x, 3, np.max, -np.inf)
    for stage, units in enumerate(spec.units):
        for i in range(units):
            under = f"resnet/stage{stage + 1}/{'rest' if i else 'first'}/block/"
            own = {n.removeprefix(under): v[max(i - 1, 0)] for n, v in p.items() if under in n}
            x = unit(spec, x, own, 2 if stage and not i else 1)
    return x


def unit(spec, x, p, stride):
    conv = lambda x, name, stride=1: convolution(x, standardised(spec, p[f"{name}/kernel"]), stride)
    shortcut = x
    if "projection/kernel" in p:
        shortcut = group_norm(spec, conv(x, "projection", stride), p, "projection_norm")
    x = np.maximum(group_norm(spec, conv(x, "conv1"), p, "norm1"), 0)
    # Along the height in each column, then along the width in each row.
    columns = [along(spec, x[:, :, i], p, "column") for i in range(x.shape[2])]
    x = np.stack(columns, axis=2)
    x = np.stack([along(spec, x[:, i], p, "row") for i in range(x.shape[1])], axis=1)
    if stride == 2:
        x = pooled(x, 2, np.nanmean, np.nan)
    x = group_norm(spec, conv(np.maximum(x, 0), "conv3"), p, "norm3")
    return np.maximum(shortcut + x, 0)


def along(spec, x, p, name):
    """[B, n, C] -> [B, n, C]: equation 4, query by query and key by key."""
    batch, n, channels = x.shape
    size = channels // spec.num_heads
    projected = x @ p[f"{name}/query_key_value/kernel"]
    projected = group_norm(spec, projected[:, None], p, f"{name}/norm1")[:, 0]
    heads = projected.reshape(batch, n, spec.num_heads, 2 * size)
    q, k, v = heads[..., : size // 2], heads[..., size // 2 : size], heads[..., size:]
    table = p[f"{name}/offsets"]
    y = np.zeros((batch, n, spec.num_heads, size))
    for o in range(n):
        near = [table[key - o + n - 1] for key in range(n)]
        of_key = [
            np.einsum("bhd,bhd->bh", q[:, o], k[:, key])
            + q[:, o] @ near[key][: size // 2]
            + k[:, key] @ near[key][size // 2 : size]
            for key in range(n)
        ]
        e = np.exp(np.stack(of_key, -1) - np.max(of_key, axis=0)[..., None])
        weights = e / e.sum(axis=-1, keepdims=True)
        for key in range(n):
            y[:, o] += weights[..., key, None] * (v[:, key] + near[key][size:])
    return group_norm(spec, y.reshape(batch, 1, n, channels), p, f"{name}/norm2")[:, 0]


def standardised(spec, kernel):
    kernel = kernel - kernel.mean(axis=(0, 1, 2))
    return kernel / np.sqrt((kernel**2).mean(axis=(0, 1, 2)) + spec.weight_epsilon)


def group_norm(spec, x, p, name):
    groups = x.reshape(*x.shape[:3], GROUPS, -1)
    groups = groups - groups.mean(axis=(1, 2, 4), keepdims=True)
    variance = (groups**2).mean(axis=(1, 2, 4), keepdims=True)
    groups = groups / np.sqrt(variance + spec.group_norm_epsilon)
    return groups.reshape(x.shape) * p[f"{name}/scale"] + p[f"{name}/bias"]


def windows(x, side, stride, filler):
    """[B, H, W, C] -> [B, H', W', side, side, C]; padded as TensorFlow's SAME."""
    results = [-(-n // stride) for n in x.shape[1:3]]
    missing = [
        max((r - 1) * stride + side - n, 0) for r, n in zip(results, x.shape[1:3], strict=True)
    ]
    pads = [(0, 0), *((m // 2, m - m // 2) for m in missing), (0, 0)]
    x = np.pad(x, pads, constant_values=filler)
    cut = lambda i, j: x[:, i * stride : i * stride + side, j * stride : j * stride + side]
    rows = [np.stack([cut(i, j) for j in range(results[1])], 1) for i in range(results[0])]
    return np.stack(rows, axis=1)


def convolution(x, kernel, stride):
    return np.einsum("bhwijc,ijcd->bhwd", windows(x, len(kernel), stride, 0.0), kernel)


def pooled(x, side, reduce, filler):
    return reduce(windows(x, side, 2, filler), axis=(3, 4))
