"""The part of a table that is a ResNet's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from vit_jax.weights.formats import resnet_axes
from vit_jax.weights.layout import Rule


@dataclasses.dataclass(frozen=True)
class Names:
    """What another format calls a ResNet's parts.

    Attributes:
      root, unit: by the names here, such as "conv1" or "projection_norm".
      folder: what a unit's names start with; "%d" stands for the stage, "{}" for the unit.
      first: the number of the first stage, and of a stage's first unit.
      leaves: by "kernel", "scale" and "bias".
      torch: whether kernels lie as [O, I, k, k], and not as here.
    """

    root: Mapping[str, str]
    unit: Mapping[str, str]
    folder: str
    first: int
    leaves: Mapping[str, str]
    torch: bool


TORCH = {"kernel": ".weight", "scale": ".weight", "bias": ".bias"}


def rules(under: str, names: Names, *, pre_activation: bool) -> tuple[Rule, ...]:
    """Of the ResNet whose names here start with `under`."""
    return tuple(
        _rule(name, name.removeprefix(f"{under}/"), axes, names)
        for name, axes in resnet_axes.of(under, pre_activation=pre_activation).items()
    )


def _rule(ours: str, inside: str, axes: str, names: Names) -> Rule:
    folders, leaf = inside.rsplit("/", 1)
    if folders in names.root:
        return Rule(ours, (names.root[folders] + names.leaves[leaf],), _theirs(axes, names))
    stage, place, _, part = folders.split("/")
    folder = names.folder % (int(stage.removeprefix("stage")) - 1 + names.first)
    if place == "first":
        folder = folder.format(names.first)
    theirs = folder + names.unit[part] + names.leaves[leaf]
    _, of_a_unit = axes.split(maxsplit=1)
    return Rule(ours, (theirs,), _theirs(of_a_unit, names), start=names.first + 1)


def _theirs(axes: str, names: Names) -> str:
    words = axes.split()
    if len(words) == 1 or not names.torch:
        return axes
    rows, columns, inputs, outputs = words
    return f"{outputs} {inputs} {rows} {columns}"
