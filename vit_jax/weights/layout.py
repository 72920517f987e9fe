"""Tables of parameters in other formats, and both directions from one table.

A rule says how one of this project's parameters is called elsewhere and how its axes lie there. In
the names "{}" stands for the number of the layer; without it the layers are an axis. Several names
are the parts of one parameter, along the axis that is called by their number.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from vit_jax.weights.files.tensors import Tensor, Tensors, is_floating
from vit_jax.weights.formats import resnet_axes
from vit_jax.weights.rearrange import groups, is_letter, rearrange, shape

BLOCK = "blocks/block/"
QKV_BIAS = BLOCK + "attention/qkv/bias"
MAX_NEAREST = 20  # names that are looked for
MAX_SEARCHED = 2000  # names among which the nearest one is looked for
# Letters: L layers, D width, H heads, K head size, M width of the MLP, P and p the height and width
# of a patch, N positions, R registers, C classes, E the pre-logits, F channels of the map that
# hybrids cut into patches; those of ResNets are in resnet_axes.py.
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
    **resnet_axes.of("patches/resnet", pre_activation=False),
    **resnet_axes.of("resnet", pre_activation=True),
}
_STAGES = range(1, resnet_axes.MAX_STAGES + 1)
# An optional part, of which a model has all or nothing -> the part that it cannot be without.
OPTIONAL: dict[str, str | None] = {
    **dict.fromkeys(("cls", "registers", "scale1", "scale2", "pooling", "pre_logits", "head")),
    "qkv_bias": None,
    **{f"stage{s}/first": f"stage{s - 1}/first" if s > 1 else None for s in _STAGES},
    **{f"stage{s}/rest": f"stage{s}/first" for s in _STAGES},
}


class Rule(NamedTuple):
    """How the parameter `ours` is called and lies in another format."""

    ours: str
    names: tuple[str, ...]
    axes: str  # of each of them
    start: int = 0  # the number of the first layer
    own: str = ""  # our axes, where they are not those of OURS

    @property
    def layers(self) -> str | None:
        """The letter of how many layers the names count; None: they do not."""
        return self.own_axes.split()[0] if "{" in self.names[0] else None

    @property
    def own_axes(self) -> str:
        """Of our parameter."""
        return self.own or OURS[self.ours]


@dataclasses.dataclass(frozen=True)
class Layout:
    """A format.

    Attributes:
      title: for messages.
      rules: one for each parameter that it can hold.
      prefixes: what may stand before all names, "" among them if it may lack.
      ignored: patterns of further names, in full, that are no part of the model.
      computes: the model's fields that its readers take for granted.
      needed: optional parts that a model cannot lack in this format.
    """

    title: str
    rules: tuple[Rule, ...]
    prefixes: tuple[str, ...] = ("",)
    ignored: tuple[str, ...] = ()
    computes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    needed: tuple[str, ...] = ()

    @functools.cached_property
    def places(self) -> frozenset[str]:
        """Our parameters that it can hold."""
        return frozenset(r.ours for r in self.rules)


def rule(ours: str, names: str, axes: str) -> Rule:
    """`ours` without "blocks/block/" where it is a block's; `names` separated by blanks."""
    full = ours if ours in OURS else BLOCK + ours
    assert full in OURS, ours
    return Rule(full, tuple(names.split()), axes)


def part(ours: str) -> str:
    """ "blocks/block/scale1/scale" -> "scale1", "resnet/stage1/rest/..." -> "stage1/rest"."""
    if ours == QKV_BIAS:
        return "qkv_bias"
    stage = re.search(r"stage\d/(first|rest)", ours)
    return stage[0] if stage else ours.removeprefix(BLOCK).split("/")[0]


class Piece(NamedTuple):
    """One array elsewhere, and its place in one of ours."""

    name: str
    place: tuple[Any, ...]  # of our array
    axes: str  # of ours at that place


def pieces(rule: Rule, sizes: Mapping[str, int]) -> Iterator[Piece]:
    """All of a rule's arrays; of one layer, where its number of layers is no size."""
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


@dataclasses.dataclass(frozen=True)
class Match:
    """A file seen as a layout.

    Attributes:
      sizes: by letter.
      tensors: of the file, by the layout's names.
      rules: those of the parameters that the file has.
    """

    layout: Layout
    sizes: dict[str, int]
    tensors: Tensors
    rules: tuple[Rule, ...]

    @functools.cached_property
    def misfits(self) -> int:
        """How many problems there are; found much faster than their lines."""
        return sum(1 for _ in _problems(self, nearest=False))

    @functools.cached_property
    def problems(self) -> tuple[str, ...]:
        """What does not fit, a line each."""
        return tuple(_problems(self, nearest=True))

    def has(self, name: str) -> bool:
        """Whether there is such a part."""
        return any(part(r.ours) == name for r in self.rules)

    def ours(self, name: str) -> np.ndarray:
        """One of our parameters, float32."""
        (found,) = [r for r in self.rules if r.ours == name]
        array = np.empty(shape(found.own_axes, self.sizes), np.float32)
        for piece in pieces(found, self.sizes):
            theirs = self.tensors[piece.name].read()
            array[piece.place] = rearrange(theirs, found.axes, piece.axes, self.sizes)
        return array

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of all our parameters."""
        return {r.ours: shape(r.own_axes, self.sizes) for r in self.rules}


def match(layout: Layout, tensors: Tensors, known: Mapping[str, int]) -> Match:
    """How a file looks as `layout`; `known` sizes are those that its shapes do not tell."""
    named = _without_prefix(layout, tensors)
    counted = {**_counted(layout, named), **known}
    rules = _rules_of_parts_there(layout, named, counted)
    sizes = _sizes(rules, named, counted)
    return Match(layout, sizes, named, rules)


def to_theirs(
    layout: Layout, params: Mapping[str, np.ndarray], sizes: Mapping[str, int]
) -> dict[str, Tensor]:
    """Our parameters, all of `layout.places`, as it has them, each made when it is read."""
    by_name = {r.ours: r for r in layout.rules}
    return {
        piece.name: _theirs(np.asarray(array), by_name[name], piece, sizes)
        for name, array in params.items()
        for piece in pieces(by_name[name], sizes)
    }


def _theirs(ours: np.ndarray, own: Rule, piece: Piece, sizes: Mapping[str, int]) -> Tensor:
    read = lambda: np.ascontiguousarray(
        rearrange(ours[piece.place], piece.axes, own.axes, sizes), np.float32
    )
    return Tensor(shape(own.axes, sizes), np.dtype(np.float32), read)


def sizes_of(layout: Layout, params: Mapping[str, Any]) -> dict[str, int]:
    """The letters' sizes of our own parameters, by name (arrays, or whatever has a shape).

    Those that the layout has no place for are left out.
    """
    sizes: dict[str, int] = {}
    for r in layout.rules:
        if r.ours not in params:
            continue
        words, array = r.own_axes.split(), params[r.ours]
        sizes |= {w: int(s) for w, s in zip(words, array.shape, strict=True) if is_letter(w)}
    return sizes


def _without_prefix(layout: Layout, tensors: Tensors) -> Tensors:
    """By the names of the table; with the prefix that most of the table's names are behind."""
    firsts = {p.name for r in layout.rules for p in pieces(r, {})}
    best = max(layout.prefixes, key=lambda p: sum(p + n in tensors for n in firsts))
    if not best:
        return tensors
    # What is not behind it is known by its whole name, as a classifier beside "vit.".
    return {n.removeprefix(best): t for n, t in tensors.items()}


def _counted(layout: Layout, named: Tensors) -> dict[str, int]:
    """By letter how many layers the names tell, at least 1.

    Not just the highest number: a stray name makes no thousand layers missing.
    """
    numbers: dict[str, set[int]] = {}
    for r in layout.rules:
        if not r.layers:
            continue
        there = numbers.setdefault(r.layers, set())
        for theirs in r.names:
            pattern = re.compile(re.sub(r"\\{.*?\\}", r"(\\d{1,4})", re.escape(theirs)))
            found = (pattern.fullmatch(name) for name in named)
            there.update(int(m[1]) - r.start + 1 for m in found if m)
    return {letter: _last(sorted(n for n in there if n > 0)) for letter, there in numbers.items()}


def _last(numbers: list[int]) -> int:
    """The highest one up to which at least half are there."""
    return max((n for count, n in enumerate(numbers, 1) if 2 * count >= n), default=1)


def _rules_of_parts_there(
    layout: Layout, named: Tensors, counted: Mapping[str, int]
) -> tuple[Rule, ...]:
    """Those that the file has to have: of needed parts, and of optional ones that it has any of."""
    there = {
        part(r.ours)
        for r in layout.rules
        if any(piece.name in named for piece in pieces(r, counted))
    } | set(layout.needed)
    for name in tuple(there):
        needed = OPTIONAL.get(name)
        while needed:
            there.add(needed)
            needed = OPTIONAL[needed]
    return tuple(r for r in layout.rules if part(r.ours) in there or part(r.ours) not in OPTIONAL)


def _sizes(rules: Iterable[Rule], named: Tensors, known: Mapping[str, int]) -> dict[str, int]:
    """From the shapes of arrays, the first that tells; 0 for what none tells."""
    sizes = dict(known)
    for r in rules:
        for piece in pieces(r, {}):
            tensor = named.get(piece.name)
            words = groups(r.axes)
            if tensor is None or len(words) != len(tensor.shape):
                continue
            for group, size in zip(words, tensor.shape, strict=True):
                if len(group) == 1 and is_letter(group[0]):
                    sizes.setdefault(group[0], size)
    if "H" in sizes and "D" in sizes:
        sizes.setdefault("K", sizes["D"] // max(1, sizes["H"]))
    letters = {w for r in rules for w in r.own_axes.split() if is_letter(w)}
    return {letter: sizes.get(letter, 0) for letter in letters}


def _problems(found: Match, *, nearest: bool) -> Iterator[str]:
    """A line each; the nearest names take longer to find than anything else."""
    named = found.tensors
    wanted = {p.name: r for r in found.rules for p in pieces(r, found.sizes)}
    ignored = [re.compile(pattern) for pattern in found.layout.ignored]
    extra = [
        name
        for name in named
        if name not in wanted and not any(pattern.fullmatch(name) for pattern in ignored)
    ]
    for number, name in enumerate(n for n in wanted if n not in named):
        near = _nearest(name, extra, "there", number) if nearest else ""
        yield f"{name} is missing{near}"
    for name, r in wanted.items():
        if name not in named:
            continue
        expected, there = shape(r.axes, found.sizes), named[name]
        if _without_ones(there.shape) != _without_ones(expected):
            yield f"{name} has the shape {there.shape}, expected {expected}"
        elif not is_floating(there.dtype):  # quantised, perhaps
            yield f"{name} is of {there.dtype}, expected floating-point numbers"
    for number, name in enumerate(extra):
        near = _nearest(name, wanted, "expected", number) if nearest else ""
        yield f"{name} is unexpected{near}"


def _without_ones(found: tuple[int, ...]) -> tuple[int, ...]:
    """Axes of size 1 come and go: norms of the released hybrids have the shape [1, 1, 1, C]."""
    return tuple(size for size in found if size != 1)


def _nearest(name: str, names: Iterable[str], where: str, number: int) -> str:
    # A search through all names takes long for a file with thousands that do not fit.
    searched = itertools.islice(names, MAX_SEARCHED)
    near = difflib.get_close_matches(name, searched, n=1) if number < MAX_NEAREST else ()
    return f" (nearest {where}: {near[0]})" if near else ""
