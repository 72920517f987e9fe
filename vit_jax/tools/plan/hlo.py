"""Reads a compiled program, XLA's HLO as text: instructions, their runs, and the collectives.

    compiled.as_text() -> instructions(...) -> [Instruction(runs=24, opcode="all-gather", ...)]

An instruction in the body of a loop runs as often as the loop does, times what runs the loop.
"""

import collections
import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

# Kinds of collectives.
KINDS = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute")

_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (.+?) ([a-z][a-z0-9-]*)\(")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_CONDITION = re.compile(r"\bcondition=%?([\w.-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_BODY = re.compile(r"\bbody=%?([\w.-]+)")
_CONSTANT = re.compile(r"%([\w.-]+) = [su]32\[\]\S* constant\((\d+)\)")
_ELEMENT = re.compile(r"get-tuple-element\(%[\w.-]+\), index=(\d+)")
_NAMES = re.compile(r"%([\w.-]+)")
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\]")
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_NAMED = re.compile(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}")
_CHANNEL = re.compile(r"channel_id=\d+")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
# Pallas kernels have no estimate. Attention's have schedules of 27 to 64 thousand FLOPs a cycle on
# a v5e, by head size and length (benchmarks/results/attention.csv).
_KERNEL = re.compile(
    r'custom_call_target="tpu_custom_call".*"cost_estimate":\s*\{[^}]*"flops":\s*"?(\d+)'
)
KERNEL_FLOPS_A_CYCLE = 40_000


class Instruction(NamedTuple):
    """An instruction that the program executes.

    Attributes:
      name: without the leading "%".
      result: type of its result, as written: "f32[8,128]{1,0}", or a tuple of these.
      opcode: "all-reduce", "fusion", "while" ...
      text: the whole line.
      computation: name of the computation that it is in.
      fused: whether it is a part of a fusion, whose costs the fusion itself states.
      runs: how often it runs in one run of the program.
      counted: whether that is known; an instruction in a loop that ends on a condition, such as
        drawing random numbers until one is accepted, counts as if the loop ran once.
    """

    name: str
    result: str
    opcode: str
    text: str
    computation: str
    fused: bool
    runs: int
    counted: bool


def instructions(hlo: str) -> list[Instruction]:
    """All instructions that run. Each branch of a conditional counts as if it were taken."""
    computations, entry = _computations(hlo)
    executed: list[Instruction] = []

    def visit(computation: str, runs: int, fused: bool, counted: bool) -> None:
        for line in computations[computation]:
            match = _INSTRUCTION.match(line)
            if match is None:
                continue
            name, result, opcode = match.groups()
            executed.append(
                Instruction(name, result, opcode, line, computation, fused, runs, counted)
            )
            if opcode.endswith("-done"):  # repeats the operation of its start
                continue
            turns = _turns(line, computations) if opcode == "while" else 1
            branches = [b for group in _BRANCHES.findall(line) for b in re.split(r",\s*", group)]
            for called in [*_CALLED.findall(line), *(b.lstrip("%") for b in branches)]:
                inside = fused or opcode == "fusion"
                visit(called, runs * (turns or 1), inside, counted and turns is not None)

    visit(entry, 1, fused=False, counted=True)
    return executed


def _computations(hlo: str) -> tuple[dict[str, list[str]], str]:
    """The lines of each computation by its name, and the name of the one that is run."""
    lines: dict[str, list[str]] = {}
    entry = here = ""
    for line in hlo.splitlines():
        if line.endswith("{") and not line.startswith((" ", "HloModule")):
            here = line.removeprefix("ENTRY ").split()[0].lstrip("%")
            entry = here if line.startswith("ENTRY ") else entry
            lines[here] = []
        elif here and line.startswith(('"', "}, ")):  # goes on with an instruction's attributes
            lines[here][-1] += line
        elif here:
            lines[here].append(line)
    return lines, entry


def _turns(line: str, computations: dict[str, list[str]]) -> int | None:
    """The number of runs of a while's body; None if only a condition ends it."""
    if known := _TRIPS.search(line):
        return int(known[1])
    # A loop that counts from 0: its condition compares with a constant.
    (condition,), (body,) = _CONDITION.findall(line), _BODY.findall(line)
    limits = _CONSTANT.findall("\n".join(computations[condition]))
    if len(limits) != 1:
        return None
    return math.ceil(int(limits[0][1]) / _step(computations[condition], computations[body]))


def _step(condition: list[str], body: list[str]) -> int:
    """The step of a loop's counter: more than 1 where the compiler has unrolled the loop."""
    compared = _ELEMENT.findall("\n".join(condition))
    results = [_NAMES.findall(line) for line in body if line.lstrip().startswith("ROOT ")]
    if len(compared) != 1 or not results:
        return 1
    counter = results[0][1 + int(compared[0])]  # after the name of the tuple itself
    constants = {name: int(value) for name, value in _CONSTANT.findall("\n".join(body))}
    for line in body:
        if line.lstrip().startswith(f"%{counter} = ") and " add(" in line:
            added = [constants[name] for name in _NAMES.findall(line) if name in constants]
            return added[0] if len(added) == 1 else 1
    return 1


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


def sent_bytes(hlo: str, mesh_shape: Mapping[str, int]) -> collections.Counter[str]:
    """Bytes that a device sends or reduces in one run, by kind; arguments as of `collectives`."""
    sent: collections.Counter[str] = collections.Counter()
    for one in collectives(hlo, mesh_shape):
        sent[one.kind] += one.total_bytes
    return sent


def _kind(one: Instruction) -> str | None:
    name = one.opcode.removesuffix("-start")
    # A TPU compiler's form of a sum of which each device needs its part.
    if name == "all-reduce" and one.computation.startswith("all-reduce-scatter"):
        return "reduce-scatter"
    return name if name in KINDS else None


def arrays(result: str) -> list[tuple[str, int]]:
    """Dtype and bytes of each array in a type as written, such as "(f32[8]{0}, pred[2,2]{1,0})"."""
    bits = lambda dtype: 8 if dtype == "pred" else int(re.findall(r"\d+", dtype)[0])
    return [
        (dtype, math.prod(_numbers(shape)) * bits(dtype) // 8)
        for dtype, shape in _ARRAY.findall(result)
    ]


def _of_arrays(kind: str, one: Instruction, mesh_shape: Mapping[str, int]) -> list[Collective]:
    exchanged = arrays(one.result)
    if one.opcode == "collective-permute-start":  # (operand, result, two counters)
        exchanged = exchanged[:1]
    elif one.opcode in ("all-gather-start", "reduce-scatter-start"):  # (operands, results)
        exchanged = exchanged[len(exchanged) // 2 :]
    groups = _groups(one.text, math.prod(mesh_shape.values()))
    # A reduce-scatter gives each device of a group its part.
    factor = len(groups[0]) if one.opcode.startswith("reduce-scatter") else 1
    axes = _axes(groups, mesh_shape)
    return [Collective(kind, dtype, n * factor, one.runs, axes) for dtype, n in exchanged]


def _groups(text: str, num_devices: int) -> list[list[int]]:
    """The groups of devices that exchange data, by their places on the mesh."""
    if named := _NAMED.search(text):
        sizes = {name: int(size) for name, size in re.findall(r"('\w+')=(\d+)", named[1])}
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


def mega_cycles(hlo: str) -> float:
    """Sum of the compiler's own estimates for a TPU; it has none for collectives."""
    cycles = 0.0
    for one in instructions(hlo):
        if not one.fused and (estimate := _CYCLES.search(one.text)):
            cycles += one.runs * int(estimate[1])
        elif kernel := _KERNEL.search(one.text):
            cycles += one.runs * int(kernel[1]) / KERNEL_FLOPS_A_CYCLE
    return cycles / 1e6
