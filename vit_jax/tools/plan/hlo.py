"""Reads a compiled program, XLA's HLO as text: instructions, collectives, a GPU's kernels.

    compiled.as_text() -> instructions(...) -> [Instruction(runs=24, opcode="all-gather", ...)]
                       -> kernels(...) -> [Kernel(name="fusion.3", runs=1, nbytes=1024, flops=0)]

An instruction in the body of a loop runs as often as the loop does, times what runs the loop.

XLA gives no costs of kernels for GPUs, but its text has every operand. A kernel reads its operands
and writes its results. Where a fusion reads only slices of an operand, or writes a slice of a
result in place, these count, as they do in a scan over stacked parameters. A product's workspace
does not.
"""

import collections
import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from vit_jax.parallel import chips

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
    name: str  # name without the leading "%"
    result: str  # type of its result, such as "f32[8,128]{1,0}", or a tuple of these
    opcode: str  # "all-reduce", "fusion", "while" ..
    text: str  # the whole line
    computation: str  # name of its computation
    fused: bool  # True for a part of a fusion, which states the costs of all its parts
    runs: int  # number of runs in one run of the program
    # True if that is known; a loop that ends on a condition, such as drawing random numbers until
    # one is accepted, counts as if it ran once.
    counted: bool


def instructions(hlo: str) -> list[Instruction]:
    """All instructions that run, and those of all branches."""
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
    """Lines of the computations by name, and the name of the entry."""
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
    """Number of runs of a while's body, or None if only a condition ends it."""
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
    """An array that devices exchange."""

    kind: str  # one of KINDS
    dtype: str  # "f32", "bf16" ..
    array_bytes: int  # size of the array that a device reduces, or has after gathering
    runs: int  # number of runs in one run of the program
    axes: tuple[str, ...]  # the mesh axes along which the participating devices differ

    @property
    def total_bytes(self) -> int:
        """Bytes of all its runs."""
        return self.array_bytes * self.runs


def collectives(hlo: str, mesh_shape: Mapping[str, int]) -> list[Collective]:
    """Collectives of a program (compiled.as_text()) for a mesh with axes of these sizes.

    A collective that is split into several instructions counts once, and one on several arrays as
    several.

    Raises:
      ValueError: a collective is in a loop whose number of iterations is unknown.
    """
    result, channels = [], set()
    for one in instructions(hlo):
        kind, channel = _kind(one), _CHANNEL.search(one.text)
        if kind is None or (channel and channel[0] in channels):
            continue
        if not one.counted:
            raise ValueError(f"How often does this run? {one.text.strip()[:200]}")
        channels |= {channel[0]} if channel else set()
        result += _split_arrays(kind, one, mesh_shape)
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
    return [
        (dtype, math.prod(_integers(shape)) * int((re.findall(r"\d+", dtype) or [8])[0]) // 8)
        for dtype, shape in _ARRAY.findall(result)
    ]


def _split_arrays(kind: str, one: Instruction, mesh_shape: Mapping[str, int]) -> list[Collective]:
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
        grouped = named[2].split(",")
        last = np.argsort([name in grouped for name in sizes], kind="stable")  # behind the others
        places = np.arange(num_devices).reshape(tuple(sizes.values())).transpose(last)
        group_size = math.prod(n for name, n in sizes.items() if name in grouped)
        return places.reshape(-1, group_size).tolist()
    if iota := _IOTA.search(text):
        shape, source, order = (_integers(part) for part in iota.groups())
        places = np.arange(math.prod(source)).reshape(source)
        return places.transpose(order or None).reshape(shape).tolist()
    if listed := _LISTED.search(text):
        return [_integers(group) for group in listed[1].strip("{}").split("},{")]
    return [list(range(num_devices))]


def _integers(text: str | None) -> list[int]:
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


# They start no kernel: they rename, or run what is counted by itself.
_FREE = (
    *("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "opt-barrier"),
    *("after-all", "partition-id", "replica-id", "while", "conditional", "call", "async-start"),
)
_SLICES = ("slice", "dynamic-slice", "gather")
_CALLS = re.compile(r"\bcalls=%?([\w.-]+)")
_APPLIED = re.compile(r"\bto_apply=%?([\w.-]+)")
_NUMBER = re.compile(r"\bparameter\((\d+)\)")
_SHAPE = re.compile(r"\[([\d,]*)\]")
_CONTRACTED = re.compile(
    r'(?:lhs_contracting_dims=\{|"lhs_contracting_dimensions":\[)([\d,"]*)[\}\]]'
)
_PRODUCT = re.compile(r'custom_call_target="__cublas[^"]*"')


class Kernel(NamedTuple):
    name: str  # name of the instruction that starts it
    runs: int  # number of runs in one run of the program
    nbytes: int  # bytes read and written in one run
    flops: int  # FLOPs of a matrix product in one run; 0 for all others, attention's included


def kernels(hlo: str) -> list[Kernel]:
    """The kernels of a program (compiled.as_text()), without those between devices."""
    by_computation: dict[str, dict[str, Instruction]] = collections.defaultdict(dict)
    listed = instructions(hlo)
    for one in listed:
        by_computation[one.computation][one.name] = one
    sums = {name for one in listed if one.opcode != "call" for name in _APPLIED.findall(one.text)}
    result = []
    for one in listed:
        is_free = one.opcode in _FREE or one.opcode.endswith("-done")
        if one.fused or one.computation in sums or is_free or _kind(one) is not None:
            continue
        siblings, called = by_computation[one.computation], _CALLS.search(one.text)
        inside = by_computation[called[1]] if called and one.opcode == "fusion" else {}
        nbytes = _bytes(one, siblings, inside)
        flops = _flops(one, siblings) + sum(_flops(each, inside) for each in inside.values())
        result.append(Kernel(one.name, one.runs, nbytes, flops))
    return result


def kernel_secs(step_kernels: list[Kernel], device_kind: str) -> float | None:
    """Seconds of kernels one by one, by products' rate or bandwidth, for a GPU of chips.GPUS."""
    chip = next((c for c in chips.GPUS.values() if c.device_kind == device_kind), None)
    peak = chips.peak_flops(device_kind)
    if chip is None or peak is None:
        return None
    a_byte = 1 / (chip.hbm_gbps * 1e9)
    return sum(k.runs * max(k.flops / peak, k.nbytes * a_byte) for k in step_kernels)


def operands(one: Instruction) -> list[str]:
    """Names of the instructions whose results an instruction takes."""
    start = one.text.index(f" {one.opcode}(", one.text.index(" = ")) + len(one.opcode) + 2
    depth, end = 1, start
    while depth:
        depth += {"(": 1, ")": -1}.get(one.text[end], 0)
        end += 1
    return _NAMES.findall(one.text[start:end])


def _bytes(
    one: Instruction, siblings: dict[str, Instruction], inside: dict[str, Instruction]
) -> int:
    """Bytes read and written by a kernel; `inside`: the instructions of a fusion."""
    taken = [_size(siblings[name].result) for name in operands(one)]
    if not inside:
        written = arrays(one.result)
        if one.opcode == "custom-call":  # a workspace is the last of several results
            written = [a for a in written if a[0] != "s8"] or written
        return sum(taken) + sum(n for _, n in written)
    users: dict[str, list[Instruction]] = collections.defaultdict(list)
    for each in inside.values():
        for name in operands(each) if each.opcode not in ("parameter", "constant") else ():
            users[name].append(each)
    parameters = {
        int(number[1]): each.name
        for each in inside.values()
        if each.opcode == "parameter" and (number := _NUMBER.search(each.text))
    }
    read = sum(_read(parameters[i], size, users) for i, size in enumerate(taken))
    (root,) = (each for each in inside.values() if each.text.lstrip().startswith("ROOT "))
    return read + _written(root, inside)


def _read(name: str, size: int, users: dict[str, list[Instruction]]) -> int:
    """Bytes that a fusion reads of an array of `size` bytes."""
    total = 0
    for user in users[name]:
        if user.opcode == "bitcast":
            total += _read(user.name, size, users)
        elif user.opcode in _SLICES and operands(user)[0] == name:
            total += _size(user.result)
        elif user.opcode != "dynamic-update-slice" or operands(user)[0] != name:
            return size
    return min(total, size)


def _written(one: Instruction, inside: dict[str, Instruction]) -> int:
    """Bytes that a fusion writes for its result `one`."""
    if one.opcode == "tuple":
        return sum(_written(inside[name], inside) for name in operands(one))
    if one.opcode == "bitcast":
        return _written(inside[operands(one)[0]], inside)
    updated = one.opcode == "dynamic-update-slice"
    return _size(inside[operands(one)[1]].result if updated else one.result)


def _flops(one: Instruction, siblings: dict[str, Instruction]) -> int:
    """FLOPs of a matrix product; 0 for another instruction."""
    contracted = _CONTRACTED.search(one.text)
    if contracted is None or not (one.opcode == "dot" or _PRODUCT.search(one.text)):
        return 0
    shapes = _SHAPE.search(one.result), _SHAPE.search(siblings[operands(one)[0]].result)
    result, left = (_integers(shape[1]) for shape in shapes if shape)
    sides = [left[n] for n in _integers(contracted[1].replace('"', ""))]
    return 2 * math.prod(result) * math.prod(sides)


def _size(result: str) -> int:
    return sum(n for _, n in arrays(result))
