"""Collectives that devices run in one run of a compiled program."""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from vit_jax.plan.hlo import Instruction, instructions

KINDS = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute")

_ARRAY = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\]")
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_NAMED = re.compile(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}")
_MESH_AXIS = re.compile(r"('\w+')=(\d+)")
_CHANNEL = re.compile(r"channel_id=\d+")
_BITS = re.compile(r"\d+")


class Collective(NamedTuple):
    """An array that devices exchange.

    Attributes:
      kind: one of KINDS.
      dtype: "f32", "bf16" ...
      array_bytes: size of the array that a device reduces, or has after gathering.
      runs: how often it occurs in one run of the program.
      axes: the mesh axes along which the participating devices differ.
    """

    kind: str
    dtype: str
    array_bytes: int
    runs: int
    axes: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of all its runs."""
        return self.array_bytes * self.runs


def collectives(hlo: str, mesh_shape: Mapping[str, int]) -> list[Collective]:
    """Collectives of a program (compiled.as_text()) for a mesh with axes of these sizes.

    A collective that is split into several instructions, to overlap with others, counts once; an
    operation on several arrays counts as several. ValueError for one in a loop whose number of
    iterations is unknown.
    """
    result, channels = [], set()
    for one in instructions(hlo):
        kind, channel = _kind(one), _CHANNEL.search(one.text)
        if kind is None or (channel and channel[0] in channels):
            continue
        if not one.counted:
            raise ValueError(f"How often does this run? {one.text.strip()[:200]}")
        channels |= {channel[0]} if channel else set()
        result += _of_arrays(kind, one, mesh_shape)
    return result


def _kind(one: Instruction) -> str | None:
    name = one.opcode.removesuffix("-start")
    # A TPU compiler's form of a sum of which each device needs its part.
    if name == "all-reduce" and one.computation.startswith("all-reduce-scatter"):
        return "reduce-scatter"
    return name if name in KINDS else None


def _of_arrays(kind: str, one: Instruction, mesh_shape: Mapping[str, int]) -> list[Collective]:
    arrays = [(dtype, _bytes(dtype, shape)) for dtype, shape in _ARRAY.findall(one.result)]
    if one.opcode == "collective-permute-start":  # (operand, result, two counters)
        arrays = arrays[:1]
    elif one.opcode == "all-gather-start":  # (operands, results)
        arrays = arrays[len(arrays) // 2 :]
    groups = _groups(one.text, math.prod(mesh_shape.values()))
    # A reduce-scatter gives each device of a group its part.
    factor = len(groups[0]) if one.opcode.startswith("reduce-scatter") else 1
    axes = _axes(groups, mesh_shape)
    return [Collective(kind, dtype, n * factor, one.runs, axes) for dtype, n in arrays]


def _bytes(dtype: str, shape: str) -> int:
    bits = 8 if dtype == "pred" else int(_BITS.findall(dtype)[0])
    return math.prod(map(int, filter(None, shape.split(",")))) * bits // 8


def _groups(text: str, num_devices: int) -> list[list[int]]:
    """The groups of devices that exchange data, by their places on the mesh."""
    if named := _NAMED.search(text):
        sizes = {name: int(size) for name, size in _MESH_AXIS.findall(named[1])}
        together = [name in named[2].split(",") for name in sizes]
        last = np.argsort(together, kind="stable")  # the axes of a group behind the others
        places = np.arange(num_devices).reshape(tuple(sizes.values())).transpose(last)
        group_size = math.prod(n for n, own in zip(sizes.values(), together, strict=True) if own)
        return places.reshape(-1, group_size).tolist()
    if iota := _IOTA.search(text):
        shape, source, order = (_numbers(part) for part in iota.groups())
        places = np.arange(math.prod(source)).reshape(source)
        return places.transpose(order or None).reshape(shape).tolist()
    if listed := _LISTED.search(text):
        return [_numbers(group) for group in listed[1].strip("{}").split("},{")]
    return [list(range(num_devices))]


def _numbers(text: str | None) -> list[int]:
    return [int(n) for n in (text or "").split(",") if n]


def _axes(groups: list[list[int]], mesh_shape: Mapping[str, int]) -> tuple[str, ...]:
    """The axes of the mesh along which the members of a group have different coordinates."""
    differ = np.zeros(len(mesh_shape), bool)
    for group in groups:
        places = np.stack(np.unravel_index(group, tuple(mesh_shape.values())))
        differ |= (places != places[:, :1]).any(axis=1)
    return tuple(name for name, differs in zip(mesh_shape, differ, strict=True) if differs)
