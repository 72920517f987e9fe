"""Matches a file's arrays with a layout: sizes, what does not fit, and parameters by our names.

Trainers put prefixes such as "module." and "backbone." before all names. There is no list of them:
whatever precedes the name of the model's first array is one.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import jax.numpy as jnp
import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.models.efficientnet import STAGES
from vit_jax.models.layers.resnet import ResNetSpec
from vit_jax.weights.files import Tensors, listed
from vit_jax.weights.tables import (
    BLOCK,
    MAX_STAGES,
    Layout,
    Rule,
    groups,
    is_letter,
    pieces,
    rearrange,
    shape,
    unpacked,
)  # fmt: skip

T = TypeVar("T")
_POSITIONS = "positions/embedding"
_DISTILLATION_POSITION = "distillation_position"  # a row of the other projects' table
MAX_PROBLEMS_SHOWN = 40
# Parts that lie across layers, by the names of their parameters without BLOCK.
_ACROSS = {
    "qkv_bias": r"attention/qkv/bias",
    "dense_bias": r"(attention/out|mlp/(fc1|fc2|gate))/bias",
    "patch_bias": r"patches/(projection/)?bias",
    "patch_norm": r"patches/norm/.*",
    "attention_norm": r"attention/norm/.*",
    "mlp_norm": r"mlp/norm/.*",
    "norm_bias": r"(pre_|feature_|(patches|attention|mlp)/)?norm[12]?/bias",
}
_STAGES = range(1, max(MAX_STAGES, len(STAGES)) + 1)
# An optional part, which a model has in full or not at all -> the part that it requires.
OPTIONAL: dict[str, str | None] = {
    **dict.fromkeys(("cls", "registers", "scale1", "scale2", "pooling", "pre_logits", "head")),
    **dict.fromkeys(("qkv_bias", "patch_norm", "pre_norm", "feature_norm", "projection")),
    "distillation_token": "cls",
    "distillation_head": "head",
    **{f"stage{s}/first": f"stage{s - 1}/first" if s > 1 else None for s in _STAGES},
    **{f"stage{s}/rest": f"stage{s}/first" for s in _STAGES},
}


@dataclasses.dataclass(frozen=True)
class Match:
    """A file's arrays, matched with a layout.

    Attributes:
      sizes: sizes of axes by letter.
      tensors: the file's arrays by the layout's names.
      rules: the rules of the parameters that the file has.
      assumed: what neither the arrays nor the JSON beside them state (external.ExternalWeights).
      pads_class_position: whether the class token has no position, which equals one of zeros.
      register_positions: whether registers have positions, which equals adding these to them.
    """

    layout: Layout
    sizes: dict[str, int]
    tensors: Tensors
    rules: tuple[Rule, ...]
    assumed: tuple[str, ...] = ()
    pads_class_position: bool = False
    register_positions: bool = False

    @functools.cached_property
    def problems(self) -> tuple[str, ...]:
        """One line for each thing that does not fit; empty for a match."""
        return tuple(_problems(self)) or _contradictions(self)

    @property
    def is_bit(self) -> bool:
        """Returns whether the file is a ResNet without a ViT after it."""
        return self.has("resnet")

    @functools.cached_property
    def resnet(self) -> ResNetSpec | None:
        """The ResNet, or the one before a hybrid's blocks; None for a plain ViT."""
        if not self.sizes.get("W"):
            return None
        units: list[int] = []
        while self.has(f"stage{len(units) + 1}/first"):
            rest = f"stage{len(units) + 1}/rest"
            units.append(1 + (self.sizes[f"U{len(units) + 1}"] if self.has(rest) else 0))
        return ResNetSpec(units=tuple(units), root_width=self.sizes["W"])

    @property
    def first_tokens(self) -> int:
        """Tokens before the patches that may have positions: class and distillation token."""
        return self.has("cls") + self.has("distillation_token")

    @property
    def tokens_before_patches(self) -> int:
        """`first_tokens` and registers, which have positions in timm if those have."""
        return self.first_tokens + self.sizes.get("R", 0)

    @property
    def patch_pixels(self) -> int:
        """Pixels from one token of a ViT to the next."""
        return self.sizes["P"] * (self.resnet.map_stride if self.resnet else 1)

    def has(self, name: str) -> bool:
        """Returns whether the file has this part."""
        return any(name in parts(r.ours) for r in self.rules)

    @functools.cached_property
    def _position_rows(self) -> dict[str, list[int]]:
        """Rows of the file's positions by our parameters; -1: zeros, of a token without a row."""
        first, registers = self.first_tokens, self.register_positions * self.sizes.get("R", 0)
        start = 0 if self.pads_class_position else first
        tokens = [-1] * first if self.pads_class_position else list(range(first))
        patches = range(start + registers, self.sizes.get("N", 0))
        rows = {_POSITIONS: [*tokens[:1], *patches], _DISTILLATION_POSITION: tokens[1:]}
        return rows | {"registers": list(range(start, start + registers))}

    def array(self, name: str) -> np.ndarray:
        """Our parameter of this name, float32."""
        rows = self._position_rows.get(name)
        if not rows:
            return self._stored(name)
        # A row of zeros behind the others is that of -1.
        table = np.pad(self._stored(_POSITIONS), ((0, 1), (0, 0)))[rows]
        if name == "registers":
            return self._stored(name) + table
        return table[0] if name == _DISTILLATION_POSITION else table

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all parameters, by our names."""
        shapes = {r.ours: shape(r.own_axes, self.sizes) for r in self.rules}
        if _POSITIONS in shapes:
            width = shapes[_POSITIONS][1]
            shapes[_POSITIONS] = (len(self._position_rows[_POSITIONS]), width)
            if self.has("distillation_token"):
                shapes[_DISTILLATION_POSITION] = (width,)
        return shapes

    def _stored(self, name: str) -> np.ndarray:
        (own,) = [r for r in self.rules if r.ours == name]
        array = np.empty(shape(own.own_axes, self.sizes), np.float32)
        for piece in pieces(own, self.sizes):
            theirs = self.tensors[piece.name].read()
            array[piece.place] = rearrange(theirs, own.axes, piece.axes, self.sizes)
        return array


class MisfitError(Exception):
    """A file fits none of a format's layouts; the argument is its match with each of them."""


def best(layouts: Iterable[Layout], tensors: Tensors) -> Match:
    """The match with the first layout that a file fits; MisfitError if it fits none."""
    matches = []
    for layout in layouts:
        matches.append(_match(layout, tensors))
        if not matches[-1].problems:
            return matches[-1]
    raise MisfitError(matches)


def refusal(matches: Sequence[Match]) -> UserError:
    """The error for a file that fits none of these: all differences from the nearest layout.

    If most of its names are unexpected there, the first difference from each layout.
    """
    near = min(matches, key=lambda m: len(m.problems))
    unexpected = sum(" is unexpected" in line for line in near.problems)
    if len(matches) > 1 and 2 * unexpected >= len(near.tensors):
        first = "\n  ".join(f"{m.layout.title}: {m.problems[0]}" for m in matches)
        return UserError(f"It has none of the layouts that are known here:\n  {first}")
    lines = list(near.problems[:MAX_PROBLEMS_SHOWN])
    if len(near.problems) > len(lines):
        lines.append(f"... and {len(near.problems) - len(lines)} more")
    title = near.layout.title
    return UserError(f"It looks like {title}, but is not the same:\n  " + "\n  ".join(lines))


def _match(layout: Layout, tensors: Tensors) -> Match:
    tensors = unpacked(layout.packs, tensors)
    prefix = _prefix(layout, tensors)
    # A classifier beside "vit." has no prefix. A name that the file has with and without the prefix
    # keeps it, so that it is reported as unexpected.
    short = {n: n.removeprefix(prefix) for n in tensors}
    named = {n if short[n] in tensors else short[n]: t for n, t in tensors.items()}
    counted = _counted(layout, named)
    rules = _rules_of_parts_there(layout, named, counted)
    return Match(layout, _sizes(rules, named, counted), named, rules)


@functools.cache
def parts(ours: str) -> frozenset[str]:
    """ "blocks/block/mlp/norm/bias" -> "mlp", "mlp_norm" and "norm_bias"."""
    name = ours.removeprefix(BLOCK)
    stage = re.search(r"stage\d/(first|rest)", name)
    across = (part for part, names in _ACROSS.items() if re.fullmatch(names, name))
    return frozenset((stage[0] if stage else name.split("/")[0], *across))


def _prefix(layout: Layout, tensors: Tensors) -> str:
    firsts = {p.name for r in layout.rules for p in pieces(r, {})}
    return max(layout.prefixes, key=lambda p: sum(p + n in tensors for n in firsts))


def _counted(layout: Layout, named: Tensors) -> dict[str, int]:
    """The number of layers that the names show, by letter; at least 1.

    Not just the highest number: one stray name must not make a thousand layers missing.
    """
    numbers: dict[str, set[int]] = {}
    for r in layout.rules:
        if not r.layers:
            continue
        there = numbers.setdefault(r.layers, set())
        for theirs in r.names:
            pattern = re.compile(re.sub(r"\\{.*?\\}", r"(\\d{1,4})", re.escape(theirs)))
            matches = (pattern.fullmatch(name) for name in named)
            there.update(int(m[1]) - r.start + 1 for m in matches if m)
    # The highest number up to which at least half are present.
    counted = {letter: enumerate(sorted(n for n in x if n > 0), 1) for letter, x in numbers.items()}
    return {
        letter: max((n for count, n in pairs if 2 * count >= n), default=1)
        for letter, pairs in counted.items()
    }


def _rules_of_parts_there(
    layout: Layout, named: Tensors, counted: Mapping[str, int]
) -> tuple[Rule, ...]:
    """The rules of needed parts, and of optional ones of which the file has any array."""
    there = set(layout.needed)
    for r in layout.rules:
        if any(piece.name in named for piece in pieces(r, counted)):
            there |= parts(r.ours)
    for name in tuple(there):
        needed = OPTIONAL.get(name)
        while needed:
            there.add(needed)
            needed = OPTIONAL[needed]
    absent = {*OPTIONAL, *layout.optional} - there
    return tuple(r for r in layout.rules if absent.isdisjoint(parts(r.ours)))


def _sizes(rules: Iterable[Rule], named: Tensors, known: Mapping[str, int]) -> dict[str, int]:
    """Sizes from the first array that shows each; 0 for what none shows."""
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
    # Where no array shows the number of heads, any will do until `external.with_heads`.
    if "K" in sizes and "H" not in sizes:  # shown by norms of queries
        sizes["H"] = sizes.get("D", 0) // max(1, sizes["K"])
    sizes.setdefault("K", sizes.get("D", 0) // max(1, sizes.setdefault("H", 1)))
    sizes.setdefault("k", sizes.get("D", 0) // max(1, sizes.setdefault("h", 1)))
    letters = {w for r in rules for w in r.own_axes.split() if is_letter(w)}
    return {letter: sizes.get(letter, 0) for letter in letters}


def _problems(match: Match) -> Iterator[str]:
    named = match.tensors
    wanted = {p.name: r for r in match.rules for p in pieces(r, match.sizes)}
    yield from (f"{name} is missing" for name in wanted if name not in named)
    for name in (name for name in wanted if name in named):
        expected, tensor = shape(wanted[name].axes, match.sizes), named[name]
        if _without_ones(tensor.shape) != _without_ones(expected):
            yield f"{name} has the shape {tensor.shape}, expected {expected}"
        elif not jnp.issubdtype(tensor.dtype, jnp.floating):  # quantised, perhaps
            yield f"{name} is of {tensor.dtype}, expected floating-point numbers"
    ignored = re.compile("|".join(match.layout.ignored) or "(?!)")
    for name in named:
        if name not in wanted and not ignored.fullmatch(name):
            yield f"{name} is unexpected"


def _contradictions(match: Match) -> tuple[str, ...]:
    sizes, resnet = match.sizes, match.resnet
    features = sizes["D"] if match.is_bit else sizes.get("F", 0)
    lines = []
    if resnet and features != resnet.map_channels:
        given = resnet.map_channels
        lines.append(f"what follows its ResNet takes {features} channels, not {given}")
    if "P" not in sizes:  # no ViT
        return tuple(lines)
    if sizes["P"] != sizes["p"]:
        lines.append(f"its patches are {sizes['P']} x {sizes['p']} pixels; they must be square")
    if match.has("pre_logits") and sizes["E"] != sizes["D"]:
        lines.append(f"its pre-logits are {sizes['E']} wide, its tokens {sizes['D']}")
    if match.has("distillation_token") and match.has("head") != match.has("distillation_head"):
        lines.append("its distillation token has no head; here both tokens have one, or none")
    return tuple(lines)


def _without_ones(shape_: tuple[int, ...]) -> tuple[int, ...]:
    """Drops axes of size 1, which norms of the released hybrids have: [1, 1, 1, C]."""
    return tuple(size for size in shape_ if size != 1)


# --- prefixes


def read_without(
    tensors: Tensors, matches: Sequence[Match], read: Callable[[Tensors], T]
) -> tuple[T, str]:
    """Reads the arrays without their prefix; also returns a sentence that says so.

    `matches` are those of the arrays with it, none of which fits; `read` raises MisfitError.
    """
    prefixes = _prefixes([m.layout for m in matches], tensors)
    if not prefixes:
        raise refusal(matches)
    if len(prefixes) > 1:
        raise UserError(f"It has several models, under {listed(prefixes)}: save one.")
    (prefix,) = prefixes
    # For "module.backbone." these are "module." and "module.backbone.".
    for start in itertools.accumulate(re.findall(r"[^.]*\.", prefix)):
        inside = {n.removeprefix(start): x for n, x in tensors.items() if n.startswith(start)}
        others = {n: x for n, x in tensors.items() if not n.startswith(start)}
        counters = [n for n, x in others.items() if not x.shape]  # such as "n_averaged"
        if not others.keys() - set(counters):
            counted = f"; {listed(counters)} is left out" if counters else ""
        elif others.keys() & inside.keys() or len(others) > len(inside):
            continue
        else:  # a classifier beside a backbone, perhaps
            inside, counted = inside | others, ""
        try:
            return read(inside), f"the prefix {start!r} of its names is taken off{counted}."
        except MisfitError as misfit:
            matches = misfit.args[0]
    raise refusal(matches)


def _prefixes(layouts: Iterable[Layout], tensors: Tensors) -> list[str]:
    """Prefixes of a layout's first array; of the layout with the fewest, if several have some."""
    found = []
    for layout in layouts:
        first = "." + next(pieces(layout.rules[0], {})).name
        there = [n.removesuffix(first) + "." for n in tensors if n.endswith(first)]
        found.append([prefix for prefix in there if prefix not in layout.prefixes])
    return min(filter(None, found), key=len, default=[])
