"""The language of the tables of parameters in other formats, and writing parameters by them.

A line of a table has the name here, the name there and, where they differ, the axes there:

    norm1          : blocks.{}.norm1                 a layer: its kernel or scale, and its bias
    cls            : cls_token : 1 1 *               one parameter; * stands for its axes here
    mlp/fc[1 2]    : mlp.Dense_[0 1]                 two lines in one
    attention/qkv  : attention.[query key value]     three arrays there are one parameter here
    resnet/%/conv1 : stages.%.blocks.{}.conv1        every unit of a ResNet

Names here may omit "blocks/block/". In names there "{}" stands for the number of the layer; without
it the layers are an axis of the array. "%" stands for the number of the stage. Several names are
slices of one parameter along the axis whose name is their number, such as "3". The suffixes of a
layer's parameters are the same in all of a project's files: TORCH or FLAX.

In axes each word is an axis, a group in brackets is several axes merged into one, and 1 is an axis
of size 1, which may be absent. "3" is an axis of size 3, "2W" one twice as long as W, and "W'" and
"W''" are further axes as long as W.
"""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from vit_jax.core.pytrees import RUNNING_MEAN, RUNNING_VARIANCE
from vit_jax.weights.files import Tensor, Tensors

Sizes = Mapping[str, int]
BLOCK = "blocks/block/"
MAX_STAGES = 4  # of ResNets; no published model has more
_WORD = re.compile(r"(\d*)([A-Za-z]\w*)?'*")


def groups(axes: str) -> list[list[str]]:
    """ "(H K) D" -> [["H", "K"], ["D"]]"""
    return [(inside or word).split() for inside, word in re.findall(r"\(([^)]*)\)|(\S+)", axes)]


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
    """Returns whether `word` names a size: "W", not "3", "2W" or "W'"."""
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
        named |= _norm_axes(f"{under}/root/norm", "W")
    for stage in range(1, MAX_STAGES + 1):
        inputs = "W" if stage == 1 else f"{2**stage}W"
        hidden, outputs = f"{2 ** (stage - 1)}W", f"{2 ** (stage + 1)}W"
        for part, layers, before in (("first", "1", inputs), ("rest", f"U{stage}", outputs)):
            unit = _unit_axes(before, hidden, outputs, part == "first", pre_activation)
            for name, axes in unit.items():
                named[f"{under}/stage{stage}/{part}/block/{name}"] = f"{layers} {axes}"
    return named


def _unit_axes(
    before: str, hidden: str, after: str, projection: bool, pre_activation: bool
) -> dict[str, str]:
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
        named |= _norm_axes(name, axes)
    return named


def _norm_axes(name: str, axes: str) -> dict[str, str]:
    return {f"{name}/scale": axes, f"{name}/bias": axes}


def _dense_axes(name: str, inputs: str, outputs: str, layers: str = "") -> dict[str, str]:
    return {f"{name}/kernel": f"{layers}{inputs} {outputs}", f"{name}/bias": layers + outputs}


def is_standardized(name: str) -> bool:
    """Returns whether `name` is a kernel of a ResNet's convolutions, which are standardised."""
    return name.endswith("/kernel") and name.removeprefix("patches/").startswith("resnet/")


# Letters: L layers, D width, H heads, K head size, J half of it, M width of the MLP, h, k and m
# those of attention pooling, P and p the height and width of a patch, N positions, O offsets, Q
# width of the MLP of offsets, R registers, C classes, E the pre-logits, T the projection, F
# channels of the map that hybrids cut into patches; of ResNets, W the width of the root and U1,
# U2 ... the units of each stage behind its first.
OURS = {
    **_dense_axes("patches", "P p 3", "D"),
    **_norm_axes("patches/norm", "D"),
    **_norm_axes("pre_norm", "D"),
    "cls": "D",
    "distillation_token": "D",
    "registers": "R D",
    "positions/embedding": "N D",
    "positions/offsets_2d": "O H",
    BLOCK + "positions/offsets_2d": "L O H",
    **_dense_axes("positions/fc1", "2", "Q"),
    **_dense_axes("positions/fc2", "Q", "H"),
    **_dense_axes(BLOCK + "positions/fc1", "2", "Q", "L "),
    **_dense_axes(BLOCK + "positions/fc2", "Q", "H", "L "),
    **_norm_axes(BLOCK + "norm1", "L D"),
    **_dense_axes(BLOCK + "attention/qkv", "D", "3 H K", "L "),
    BLOCK + "attention/query_bias": "L H K",
    BLOCK + "attention/value_bias": "L H K",
    BLOCK + "attention/query_norm/scale": "L K",
    BLOCK + "attention/key_norm/scale": "L K",
    **_norm_axes(BLOCK + "attention/norm", "L D"),
    BLOCK + "frequencies": "L 2 H J",
    **_dense_axes(BLOCK + "attention/out", "H K", "D", "L "),
    **_norm_axes(BLOCK + "scale1", "L D"),  # of LayerScale, or of a norm
    **_norm_axes(BLOCK + "norm2", "L D"),
    **_dense_axes(BLOCK + "mlp/fc1", "D", "M", "L "),
    **_norm_axes(BLOCK + "mlp/norm", "L M"),
    **_dense_axes(BLOCK + "mlp/gate", "D", "M", "L "),
    **_dense_axes(BLOCK + "mlp/fc2", "M", "D", "L "),
    **_norm_axes(BLOCK + "scale2", "L D"),
    **_norm_axes("norm", "D"),
    **_norm_axes("feature_norm", "D"),
    "pooling/probe": "D",
    **_dense_axes("pooling/query", "D", "1 h k"),
    **_dense_axes("pooling/key_value", "D", "2 h k"),
    **_dense_axes("pooling/out", "h k", "D"),
    **_norm_axes("pooling/norm", "D"),
    **_dense_axes("pooling/mlp/fc1", "D", "m"),
    **_dense_axes("pooling/mlp/fc2", "m", "D"),
    **_dense_axes("pre_logits", "D", "E"),
    "projection/kernel": "D T",
    **_dense_axes("head", "D", "C"),
    **_dense_axes("distillation_head", "D", "C"),
    **_dense_axes("patches/projection", "P p F", "D"),
    **resnet_axes("patches/resnet", pre_activation=False),
    **resnet_axes("resnet", pre_activation=True),
}


# Suffixes of a layer's parameters. PyTorch's kernels are transposed: [outputs, inputs] of dense
# layers, [outputs, inputs, rows, columns] of convolutions.
TORCH = {
    "kernel": ".weight",
    "scale": ".weight",
    "bias": ".bias",
    RUNNING_MEAN: ".running_mean",
    RUNNING_VARIANCE: ".running_var",
}
FLAX = {leaf: f"/{leaf}" for leaf in ("kernel", "scale", "bias")}


class Rule(NamedTuple):
    """Names and axes of the parameter `ours` in another format."""

    ours: str
    names: tuple[str, ...]
    axes: str  # axes of each of the arrays
    own_axes: str  # axes of our parameter
    start: int = 0  # the number of the first layer

    @property
    def layers(self) -> str | None:
        """The letter of the axis that the names enumerate; None if they enumerate no layers."""
        return self.own_axes.split()[0] if "{" in self.names[0] else None


@dataclasses.dataclass(frozen=True)
class Layout:
    """The parsed table of one format's parameters.

    Attributes:
      title: what messages call the format.
      rules: one for each parameter that it can hold.
      prefixes: what may precede all names; "" stands for no prefix.
      ignored: patterns of whole names that are not part of the model.
      computes: fields of the model that the arrays do not show, as the format's readers have them.
      needed: optional parts that a model must have in this format.
      optional: further parts (match.parts) that a model need not have in this format.
      packs: arrays there that are several of its rules' names.
    """

    title: str
    rules: tuple[Rule, ...]
    prefixes: tuple[str, ...] = ("",)
    ignored: tuple[str, ...] = ()
    computes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    needed: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    packs: tuple["Pack", ...] = ()

    @functools.cached_property
    def places(self) -> frozenset[str]:
        """Our parameters that the format can hold."""
        return frozenset(r.ours for r in self.rules)


def rules(
    *tables: str,
    leaves: Mapping[str, str] = TORCH,
    own: Mapping[str, str] = OURS,
    stages: Iterable[int] = range(1, MAX_STAGES + 1),
    first: int = 0,
) -> tuple[Rule, ...]:
    """Parses tables into rules.

    Args:
      leaves: TORCH, FLAX, or one like them.
      own: axes of our parameters, by name.
      stages: those that "%" stands for.
      first: the number there of the first stage, and of a stage's first unit.
    """
    lines = [line.split(" : ") for line in "\n".join(tables).splitlines() if line]
    made: list[Rule] = []
    for has_stages, group in itertools.groupby(lines, lambda line: "%" in line[0]):
        block = [each for line in group for each in _lines(*map(str.strip, line))]
        units = itertools.product(stages, ("first", "rest")) if has_stages else [(0, "")]
        for (stage, unit), (name, theirs, axes) in itertools.product(units, block):
            ours = name.replace("%", f"stage{stage}/{unit}/block")
            names = tuple(x.replace("%", str(stage - 1 + first)) for x in theirs)
            if unit == "first":
                names = tuple(x.format(first) for x in names)
            start = first + 1 if unit == "rest" else 0
            several = _rules(ours, names, axes, start, leaves, own)
            assert several or has_stages, ours
            made += several
    return tuple(made)


def _lines(ours: str, theirs: str, axes: str = "*") -> Iterator[tuple[str, tuple[str, ...], str]]:
    """(the name here, the names there, axes) of each line that brackets make of one."""
    here, there = (re.search(r"\[(.*)\]", name) for name in (ours, theirs))
    names = [theirs.replace(there[0], word) for word in there[1].split()] if there else [theirs]
    if not here:
        yield ours, tuple(names), axes
        return
    for word, name in zip(here[1].split(), names, strict=True):
        yield ours.replace(here[0], word), (name,), axes


def _rules(
    ours: str,
    names: tuple[str, ...],
    axes: str,
    start: int,
    leaves: Mapping[str, str],
    own: Mapping[str, str],
) -> list[Rule]:
    for full in (ours, BLOCK + ours):
        there = {f"{full}/{leaf}": end for leaf, end in leaves.items() if f"{full}/{leaf}" in own}
        if full in own:
            there = {full: ""}
        if there:
            break
    return [
        Rule(
            name,
            tuple(theirs + end for theirs in names),
            # The axes that a line states are those of the kernel, not of the bias.
            (axes if name == full or name.endswith("/kernel") else "*").replace(
                "*", _axes_there(name, names, own, transposed=leaves is TORCH)
            ),
            own[name],
            start,
        )
        for name, end in there.items()
    ]


def _axes_there(
    name: str, names: tuple[str, ...], own: Mapping[str, str], *, transposed: bool
) -> str:
    """Axes of each array of a parameter, in our order or in PyTorch's."""

    def one_array(axes: str) -> list[str]:
        words = axes.split()
        if "{" in names[0] or "/first/" in name:
            del words[0]  # the layers
        if len(names) > 1:
            words.remove(str(len(names)))
        return words

    words, leaf = one_array(own[name]), name.rpartition("/")[2]
    if transposed and leaf.endswith("bias"):
        return _grouped(words)
    if not transposed or leaf != "kernel":
        return " ".join(words)
    bias = own.get(name.removesuffix(leaf) + "bias")
    last = len(one_array(bias)) if bias else 1
    inputs, outputs = words[:-last], _grouped(words[-last:])
    if len(inputs) == 3:  # of a convolution
        rows, columns, channels = inputs
        return f"{outputs} {channels} {rows} {columns}"
    if len(inputs) == 2 and inputs[0].isdigit():  # of a depthwise one
        return f"{outputs} 1 {' '.join(inputs)}"
    return f"{outputs} {_grouped(inputs)}"


def _grouped(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"({' '.join(words)})"


class Piece(NamedTuple):
    """An array in another format, and its place in one of ours."""

    name: str
    place: tuple[Any, ...]  # index into our array
    axes: str  # axes of our array at that place


def pieces(rule: Rule, sizes: Sizes) -> Iterator[Piece]:
    """All arrays of a rule; of one layer where `sizes` lacks the number of layers."""
    words = rule.own_axes.split()
    several = len(rule.names) > 1
    rest = [w for w in words if w != rule.layers]
    if several:
        rest.remove(str(len(rule.names)))
    for layer in range(sizes.get(rule.layers, 1) if rule.layers else 1):
        for number, name in enumerate(rule.names):
            fixed = {rule.layers: layer} if rule.layers else {}
            if several:
                fixed[str(len(rule.names))] = number
            index = tuple(fixed.get(word, slice(None)) for word in words)
            yield Piece(name.format(layer + rule.start), index, " ".join(rest))


def to_theirs(layout: Layout, params: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Renames and transposes our parameters, all in `layout.places`, each when it is read."""
    by_name = {r.ours: r for r in layout.rules}
    sizes: dict[str, int] = {}
    for name, array in params.items():
        words = by_name[name].own_axes.split()
        sizes |= {w: int(s) for w, s in zip(words, array.shape, strict=True) if is_letter(w)}
    theirs = {
        piece.name: _theirs(array, by_name[name], piece, sizes)
        for name, array in params.items()
        for piece in pieces(by_name[name], sizes)
    }
    return packed(layout.packs, theirs)


# --- arrays there that are several of a table's, one below the other


class Pack(NamedTuple):
    """The name of such an array, or a part of it, and those of its parts.

    widths: the rows of all parts but the first, as multiples of the columns; (): all are alike.
    """

    whole: str
    parts: tuple[str, ...]
    widths: tuple[int, ...] = ()

    def rows(self, name: str, tensors: Tensors) -> list[int] | None:
        """The rows of each part of the array `name`; None if it cannot be divided into them."""
        total, kernel = tensors[name].shape[:1], tensors.get(re.sub("bias$", "weight", name))
        if not total or kernel is None or len(kernel.shape) != 2:
            return None
        rest = [n * kernel.shape[1] for n in self.widths]
        if not rest:
            rest = [total[0] // len(self.parts)] * (len(self.parts) - 1)
        first = total[0] - sum(rest)
        is_valid = first > 0 and (self.widths or first == rest[0])
        return [first, *rest] if is_valid else None


def unpacked(packs: Iterable[Pack], tensors: Tensors) -> Tensors:
    """Arrays with each packed one in its parts."""
    arrays = dict(tensors)
    for pack, name in itertools.product(packs, tensors):
        if pack.whole not in name or not (rows := pack.rows(name, tensors)):
            continue
        whole, ends = arrays.pop(name), list(itertools.accumulate(rows))
        for part, size, end in zip(pack.parts, rows, ends, strict=True):
            place = slice(end - size, end)
            arrays[name.replace(pack.whole, part)] = Tensor(
                (size, *whole.shape[1:]), whole.dtype, functools.partial(_rows, whole, place)
            )
    return arrays


def _rows(whole: Tensor, place: slice) -> np.ndarray:
    return whole.read()[place]


def _joined(parts: list[Tensor]) -> np.ndarray:
    return np.concatenate([part.read() for part in parts])


def packed(packs: Iterable[Pack], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The opposite of `unpacked`."""
    arrays = dict(tensors)
    for pack, name in itertools.product(packs, tensors):
        if pack.parts[0] not in name:
            continue
        parts = [arrays.pop(name.replace(pack.parts[0], part)) for part in pack.parts]
        rows = sum(part.shape[0] for part in parts)
        arrays[name.replace(pack.parts[0], pack.whole)] = Tensor(
            (rows, *parts[0].shape[1:]), parts[0].dtype, functools.partial(_joined, parts)
        )
    return arrays


def _theirs(ours: np.ndarray, own: Rule, piece: Piece, sizes: Sizes) -> Tensor:
    def read() -> np.ndarray:
        array = rearrange(ours[piece.place], piece.axes, own.axes, sizes)
        return np.ascontiguousarray(array, np.float32)

    return Tensor(shape(own.axes, sizes), np.dtype(np.float32), read)
