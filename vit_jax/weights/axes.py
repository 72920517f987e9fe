"""Axes of arrays as words, and the axes of this project's parameters.

"(H K) D" of one format is "D H K" of another. A word is an axis, a group in brackets several that
share one, and 1 an axis of that size, which may come and go. "3" is an axis of that size, "2W" one
twice as long as W, and "W'" another one that is as long as W.
"""

import math
import re
from collections.abc import Mapping

import numpy as np

Sizes = Mapping[str, int]
_WORD = re.compile(r"(\d*)([A-Za-z]\w*)?'?")
BLOCK = "blocks/block/"
QKV_BIAS = BLOCK + "attention/qkv/bias"
MAX_STAGES = 4  # the most of any published model, and so of the tables


def groups(axes: str) -> list[tuple[str, ...]]:
    """ "(H K) D" -> [("H", "K"), ("D",)]"""
    words: list[tuple[str, ...]] = []
    inside: list[str] | None = None
    for word in axes.replace("(", " ( ").replace(")", " ) ").split():
        if word == "(":
            inside = []
        elif word == ")":
            assert inside is not None, axes
            words.append(tuple(inside))
            inside = None
        elif inside is None:
            words.append((word,))
        else:
            inside.append(word)
    return words


def shape(axes: str, sizes: Sizes) -> tuple[int, ...]:
    """The shape of an array with these axes; a number is its own size."""
    return tuple(math.prod(_size(word, sizes) for word in group) for group in groups(axes))


def rearrange(array: np.ndarray, old: str, new: str, sizes: Sizes) -> np.ndarray:
    """An array from the axes `old` to the axes `new`; a view where possible."""
    atoms = [
        [word for group in groups(axes) for word in group if word != "1"] for axes in (old, new)
    ]
    assert sorted(atoms[0]) == sorted(atoms[1]), (old, new)
    apart = array.reshape([_size(word, sizes) for word in atoms[0]])
    return apart.transpose([atoms[0].index(word) for word in atoms[1]]).reshape(shape(new, sizes))


def is_letter(word: str) -> bool:
    """Whether `word` names a size: "W", not "3", "2W" or "W'"."""
    return word.isidentifier()


def _size(word: str, sizes: Sizes) -> int:
    match = _WORD.fullmatch(word)
    assert match, word
    number, letter = match.groups()
    return int(number or 1) * (sizes[letter] if letter else 1)


def resnet_axes(under: str, *, pre_activation: bool) -> dict[str, str]:
    """Axes by name, of a ResNet of MAX_STAGES stages whose names start with `under`."""
    named = {f"{under}/root/conv/kernel": "7 7' 3 W"}
    if not pre_activation:
        named |= _norm(f"{under}/root/norm", "W")
    for stage in range(1, MAX_STAGES + 1):
        inputs = "W" if stage == 1 else f"{2**stage}W"
        outputs = f"{2 ** (stage + 1)}W"
        for part, layers, before in (("first", "1", inputs), ("rest", f"U{stage}", outputs)):
            channels = (before, f"{2 ** (stage - 1)}W", outputs)
            unit = _unit(channels, projection=part == "first", pre_activation=pre_activation)
            for name, axes in unit.items():
                named[f"{under}/stage{stage}/{part}/block/{name}"] = f"{layers} {axes}"
    return named


def _unit(
    channels: tuple[str, str, str], *, projection: bool, pre_activation: bool
) -> dict[str, str]:
    """Axes by name of a unit with these channels: input, inner and output."""
    before, hidden, after = channels
    named = {
        "conv1/kernel": f"1 1 {before} {hidden}",
        "conv2/kernel": f"3 3' {hidden} {hidden}'",
        "conv3/kernel": f"1 1 {hidden} {after}",
    }
    if projection:
        named["projection/kernel"] = f"1 1 {before} {after}"
    norms = {"norm1": hidden, "norm2": hidden, "norm3": after}
    if pre_activation:
        norms = {"norm1": before, "norm2": hidden, "norm3": hidden}
    elif projection:
        norms["projection_norm"] = after
    for name, axes in norms.items():
        named |= _norm(name, axes)
    return named


def _norm(name: str, axes: str) -> dict[str, str]:
    return {f"{name}/scale": axes, f"{name}/bias": axes}


def is_standardized(name: str) -> bool:
    """Whether `name` is a kernel of a ResNet's convolutions, which are standardised."""
    return name.endswith("/kernel") and name.removeprefix("patches/").startswith("resnet/")


# Letters: L layers, D width, H heads, K head size, M width of the MLP, P and p the height and width
# of a patch, N positions, R registers, C classes, E the pre-logits, F channels of the map that
# hybrids cut into patches; of ResNets, W the width of the root and U1, U2 ... the units of each
# stage behind its first.
OURS = {
    "patches/kernel": "P p 3 D",
    "patches/bias": "D",
    "cls": "D",
    "registers": "R D",
    "positions/embedding": "N D",
    BLOCK + "norm1/scale": "L D",
    BLOCK + "norm1/bias": "L D",
    BLOCK + "attention/qkv/kernel": "L D 3 H K",
    QKV_BIAS: "L 3 H K",
    BLOCK + "attention/query_bias": "L H K",
    BLOCK + "attention/value_bias": "L H K",
    BLOCK + "attention/out/kernel": "L H K D",
    BLOCK + "attention/out/bias": "L D",
    BLOCK + "scale1/scale": "L D",
    BLOCK + "norm2/scale": "L D",
    BLOCK + "norm2/bias": "L D",
    BLOCK + "mlp/fc1/kernel": "L D M",
    BLOCK + "mlp/fc1/bias": "L M",
    BLOCK + "mlp/gate/kernel": "L D M",
    BLOCK + "mlp/gate/bias": "L M",
    BLOCK + "mlp/fc2/kernel": "L M D",
    BLOCK + "mlp/fc2/bias": "L D",
    BLOCK + "scale2/scale": "L D",
    "norm/scale": "D",
    "norm/bias": "D",
    "pooling/probe": "D",
    "pooling/query/kernel": "D 1 H K",
    "pooling/query/bias": "1 H K",
    "pooling/key_value/kernel": "D 2 H K",
    "pooling/key_value/bias": "2 H K",
    "pooling/out/kernel": "H K D",
    "pooling/out/bias": "D",
    "pooling/norm/scale": "D",
    "pooling/norm/bias": "D",
    "pooling/mlp/fc1/kernel": "D M",
    "pooling/mlp/fc1/bias": "M",
    "pooling/mlp/fc2/kernel": "M D",
    "pooling/mlp/fc2/bias": "D",
    "pre_logits/kernel": "D E",
    "pre_logits/bias": "E",
    "head/kernel": "D C",
    "head/bias": "C",
    "patches/projection/kernel": "P p F D",
    "patches/projection/bias": "D",
    **resnet_axes("patches/resnet", pre_activation=False),
    **resnet_axes("resnet", pre_activation=True),
}
