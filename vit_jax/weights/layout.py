"""Tables of parameters in other formats, and writing parameters by them.

A rule gives the name of one of this project's parameters in another format and the order of its
axes there. In the names "{}" is the number of the layer; without it the layers are an axis. Several
names are the parts of one parameter, along the axis that is called by their number.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from vit_jax.weights.axes import BLOCK, OURS, is_letter, rearrange, resnet_axes, shape
from vit_jax.weights.files.tensors import Tensor


class Rule(NamedTuple):
    """Names and axes of the parameter `ours` in another format."""

    ours: str
    names: tuple[str, ...]
    axes: str  # axes of each of the arrays
    start: int = 0  # the number of the first layer
    own: str = ""  # our axes, where they differ from OURS

    @property
    def layers(self) -> str | None:
        """The letter of the layers that the names count; None: they count none."""
        return self.own_axes.split()[0] if "{" in self.names[0] else None

    @property
    def own_axes(self) -> str:
        """Axes of our parameter."""
        return self.own or OURS[self.ours]


@dataclasses.dataclass(frozen=True)
class Layout:
    """A table of one format's parameters.

    Attributes:
      title: what messages call the format.
      rules: one for each parameter that it can hold.
      prefixes: what may precede all names; "" if nothing may.
      ignored: patterns of whole names that are not part of the model.
      computes: fields of the model that the format's readers imply.
      needed: optional parts that a model must have in this format.
    """

    title: str
    rules: tuple[Rule, ...]
    prefixes: tuple[str, ...] = ("",)
    ignored: tuple[str, ...] = ()
    computes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    needed: tuple[str, ...] = ()

    @functools.cached_property
    def places(self) -> frozenset[str]:
        """Our parameters that the format can hold."""
        return frozenset(r.ours for r in self.rules)


def rule(ours: str, names: str, axes: str) -> Rule:
    """A rule; `ours` may omit "blocks/block/", `names` are separated by blanks."""
    full = ours if ours in OURS else BLOCK + ours
    assert full in OURS, ours
    return Rule(full, tuple(names.split()), axes)


_TORCH_LEAVES = {"kernel": ".weight", "scale": ".weight", "bias": ".bias"}


@dataclasses.dataclass(frozen=True)
class ResNetNames:
    """Names of a ResNet's parts in another format.

    Attributes:
      root, unit: their names by the names here, such as "conv1" or "projection_norm".
      folder: how a unit's names start; "%d" is the stage, "{}" the unit.
      first: the number of the first stage, and of a stage's first unit.
      leaves: names by "kernel", "scale" and "bias"; None: PyTorch's, and kernels are [O, I, k, k].
    """

    root: Mapping[str, str]
    unit: Mapping[str, str]
    folder: str
    first: int = 0
    leaves: Mapping[str, str] | None = None


def resnet_rules(under: str, names: ResNetNames, *, pre_activation: bool) -> tuple[Rule, ...]:
    """Rules of the ResNet whose names here start with `under`."""
    return tuple(
        _resnet_rule(name, name.removeprefix(f"{under}/"), axes, names)
        for name, axes in resnet_axes(under, pre_activation=pre_activation).items()
    )


def _resnet_rule(ours: str, inside: str, axes: str, names: ResNetNames) -> Rule:
    folders, leaf = inside.rsplit("/", 1)
    suffix = (names.leaves or _TORCH_LEAVES)[leaf]
    if folders in names.root:
        theirs = names.root[folders] + suffix
        return Rule(ours, (theirs,), _resnet_axes_there(axes, names))
    stage, place, _, part = folders.split("/")
    folder = names.folder % (int(stage.removeprefix("stage")) - 1 + names.first)
    if place == "first":
        folder = folder.format(names.first)
    theirs = folder + names.unit[part] + suffix
    _, of_a_unit = axes.split(maxsplit=1)
    return Rule(ours, (theirs,), _resnet_axes_there(of_a_unit, names), start=names.first + 1)


def _resnet_axes_there(axes: str, names: ResNetNames) -> str:
    words = axes.split()
    if len(words) == 1 or names.leaves:
        return axes
    rows, columns, inputs, outputs = words
    return f"{outputs} {inputs} {rows} {columns}"


class Piece(NamedTuple):
    """An array in another format, and its place in one of ours."""

    name: str
    place: tuple[Any, ...]  # index into our array
    axes: str  # axes of our array at that place


def pieces(rule: Rule, sizes: Mapping[str, int]) -> Iterator[Piece]:
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


def to_theirs(
    layout: Layout, params: Mapping[str, np.ndarray], sizes: Mapping[str, int]
) -> dict[str, Tensor]:
    """Our parameters, all in `layout.places`, in its names and axes; each is made when read."""
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
    """Sizes by letter, from our parameters by name (anything with a shape).

    Parameters without a place in the layout are left out.
    """
    sizes: dict[str, int] = {}
    for r in layout.rules:
        if r.ours not in params:
            continue
        words, array = r.own_axes.split(), params[r.ours]
        sizes |= {w: int(s) for w, s in zip(words, array.shape, strict=True) if is_letter(w)}
    return sizes
