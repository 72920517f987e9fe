"""A file seen as a layout: sizes, what does not fit, and parameters in this project's order.

Prefixes that trainers put before all names, as "module." and "backbone.", are found by the model's
first array rather than by a list of them: they are what precedes its name.
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
    DISPENSABLE,
    MAX_STAGES,
    QKV_BIAS,
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
    """A file seen as a layout.

    Attributes:
      sizes: sizes of axes by letter.
      tensors: the file's arrays by the layout's names.
      rules: the rules of the parameters that the file has.
      assumed: what nothing states about it (external.ExternalWeights).
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
        """Lines about what does not fit."""
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
        return any(part(r.ours) == name for r in self.rules)

    def array(self, name: str) -> np.ndarray:
        """Our parameter of this name, float32."""
        if name == _DISTILLATION_POSITION:
            table = self._stored(_POSITIONS)
            return np.zeros_like(table[0]) if self.pads_class_position else table[1]
        array = self._stored(name)
        if self.register_positions and name in ("registers", _POSITIONS):
            table, first = self._stored(_POSITIONS), self.first_tokens
            rows = slice(first, first + self.sizes["R"])
            return array + table[rows] if name == "registers" else np.delete(table, rows, axis=0)
        if name == _POSITIONS and self.pads_class_position:
            return np.concatenate([np.zeros_like(array[:1]), array])
        if name == _POSITIONS and self.has("distillation_token"):
            return np.delete(array, 1, axis=0)
        return array

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all parameters, by our names."""
        shapes = {r.ours: shape(r.own_axes, self.sizes) for r in self.rules}
        if self.pads_class_position:
            rows, width = shapes[_POSITIONS]
            shapes[_POSITIONS] = (rows + 1, width)
        elif self.register_positions:
            rows, width = shapes[_POSITIONS]
            shapes[_POSITIONS] = (rows - self.sizes["R"], width)
        elif self.has("distillation_token"):
            rows, width = shapes[_POSITIONS]
            shapes[_POSITIONS] = (rows - 1, width)
        if self.has("distillation_token"):
            shapes[_DISTILLATION_POSITION] = shapes[_POSITIONS][1:]
        return shapes

    def _stored(self, name: str) -> np.ndarray:
        (own,) = [r for r in self.rules if r.ours == name]
        array = np.empty(shape(own.own_axes, self.sizes), np.float32)
        for piece in pieces(own, self.sizes):
            theirs = self.tensors[piece.name].read()
            array[piece.place] = rearrange(theirs, own.axes, piece.axes, self.sizes)
        return array


class MisfitError(Exception):
    """A file that fits none of a format's layouts; the argument is its match with each."""


def best(layouts: Iterable[Layout], tensors: Tensors) -> Match:
    """A file seen as the first layout that it fits. MisfitError if there is none."""
    matches = []
    for layout in layouts:
        matches.append(_match(layout, tensors))
        if not matches[-1].problems:
            return matches[-1]
    raise MisfitError(matches)


def refusal(matches: Sequence[Match]) -> UserError:
    """The error about a file that fits none of these, with all differences from the nearest layout.

    Or with the first one from each, if most of the file's names are unexpected.
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
    # Arrays without the prefix keep their names, as a classifier beside "vit." does; one of a name
    # that is there without it keeps it, and is unexpected.
    short = {n: n.removeprefix(prefix) for n in tensors}
    named = {n if short[n] in tensors else short[n]: t for n, t in tensors.items()}
    counted = _counted(layout, named)
    rules = _rules_of_parts_there(layout, named, counted)
    return Match(layout, _sizes(rules, named, counted), named, rules)


def part(ours: str) -> str:
    """ "blocks/block/scale1/scale" -> "scale1", "resnet/stage1/rest/..." -> "stage1/rest"."""
    if ours == QKV_BIAS:
        return "qkv_bias"
    if ours in DISPENSABLE:
        return DISPENSABLE[ours]
    if ours.startswith("patches/norm/"):
        return "patch_norm"
    stage = re.search(r"stage\d/(first|rest)", ours)
    return stage[0] if stage else ours.removeprefix(BLOCK).split("/")[0]


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
    """Rules that the file has to satisfy: for needed parts, and optional ones that it starts."""
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
    optional = {*OPTIONAL, *layout.optional}
    return tuple(r for r in layout.rules if part(r.ours) in there or part(r.ours) not in optional)


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
    # In some layouts no array shows the number of heads, which makes no difference to the rest.
    if "K" in sizes and "H" not in sizes:  # norms of queries show only that
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
    """A shape without axes of size 1: norms of the released hybrids have the shape [1, 1, 1, C]."""
    return tuple(size for size in shape_ if size != 1)


# --- prefixes


def read_without(
    tensors: Tensors, matches: Sequence[Match], read: Callable[[Tensors], T]
) -> tuple[T, str]:
    """(what `read` makes of the arrays without their prefix, a sentence that says so)

    `matches`: of the arrays as they are, none of which fits; `read` raises MisfitError.
    """
    prefixes = _prefixes([m.layout for m in matches], tensors)
    if not prefixes:
        raise refusal(matches)
    if len(prefixes) > 1:
        raise UserError(f"It has several models, under {listed(prefixes)}: save one.")
    (prefix,) = prefixes
    # Of "module.backbone." these are "module." and "module.backbone.".
    for start in itertools.accumulate(re.findall(r"[^.]*\.", prefix)):
        inside = {n.removeprefix(start): x for n, x in tensors.items() if n.startswith(start)}
        others = {n: x for n, x in tensors.items() if not n.startswith(start)}
        counters = [n for n, x in others.items() if not x.shape]  # as of a moving average
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
