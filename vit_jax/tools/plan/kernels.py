"""The kernels of a program compiled for a GPU, and the bytes that each reads and writes.

    compiled.as_text() -> kernels(...) -> [Kernel(name="fusion.3", runs=1, nbytes=1024, flops=0)]

XLA gives no such figures for GPUs, but its text has every operand. A kernel reads its operands and
writes its results. Where a fusion reads only slices of an operand, or writes a slice of a result in
place, these count, as they do in a scan over stacked parameters. A product's workspace does not.
"""

import collections
import math
import re
from typing import NamedTuple

from vit_jax.parallel import chips
from vit_jax.tools.plan.hlo import KINDS, Instruction, arrays, instructions

# They start no kernel: they rename, or run what is counted by itself.
_FREE = (
    *("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "opt-barrier"),
    *("after-all", "partition-id", "replica-id", "while", "conditional", "call", "async-start"),
)
_SLICES = ("slice", "dynamic-slice", "gather")
_CALLS = re.compile(r"\bcalls=%?([\w.-]+)")
_APPLIED = re.compile(r"\bto_apply=%?([\w.-]+)")
_NUMBER = re.compile(r"\bparameter\((\d+)\)")
_NAME = re.compile(r"%([\w.-]+)")
_SHAPE = re.compile(r"\[([\d,]*)\]")
_CONTRACTED = re.compile(
    r'(?:lhs_contracting_dims=\{|"lhs_contracting_dimensions":\[)([\d,"]*)[\}\]]'
)
_PRODUCT = re.compile(r'custom_call_target="__cublas[^"]*"')


class Kernel(NamedTuple):
    """What a GPU is given to do.

    Attributes:
      name: of the instruction that starts it.
      runs: how often it runs in one run of the program.
      nbytes: read and written in one run.
      flops: of a matrix product, in one run; 0 for all others, attention's kernels included.
    """

    name: str
    runs: int
    nbytes: int
    flops: int


def kernels(hlo: str) -> list[Kernel]:
    """The kernels of a program (compiled.as_text()), without those between devices."""
    by_computation: dict[str, dict[str, Instruction]] = collections.defaultdict(dict)
    listed = instructions(hlo)
    for one in listed:
        by_computation[one.computation][one.name] = one
    sums = {name for one in listed if one.opcode != "call" for name in _APPLIED.findall(one.text)}
    found = []
    for one in listed:
        kind = one.opcode.removesuffix("-start")
        if one.fused or one.computation in sums or kind in KINDS:
            continue
        if one.opcode in _FREE or one.opcode.endswith("-done"):
            continue
        siblings, called = by_computation[one.computation], _CALLS.search(one.text)
        inside = by_computation[called[1]] if called and one.opcode == "fusion" else {}
        nbytes = _bytes(one, siblings, inside)
        flops = _flops(one, siblings) + sum(_flops(each, inside) for each in inside.values())
        found.append(Kernel(one.name, one.runs, nbytes, flops))
    return found


def kernel_secs(found: list[Kernel], device_kind: str) -> float | None:
    """Seconds of a step's kernels by roofline; None for a GPU that is not in chips.GPUS.

    One after the other, each at the rate of matrix products or at the memory's bandwidth, whichever
    is slower.
    """
    chip = next((c for c in chips.GPUS.values() if c.device_kind == device_kind), None)
    peak = chips.peak_flops(device_kind)
    if chip is None or peak is None:
        return None
    a_byte = 1 / (chip.hbm_gbps * 1e9)
    return sum(k.runs * max(k.flops / peak, k.nbytes * a_byte) for k in found)


def operands(one: Instruction) -> list[str]:
    """Names of the instructions whose results an instruction takes."""
    start = one.text.index(f" {one.opcode}(", one.text.index(" = ")) + len(one.opcode) + 2
    depth, end = 1, start
    while depth:
        depth += {"(": 1, ")": -1}.get(one.text[end], 0)
        end += 1
    return _NAME.findall(one.text[start:end])


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
    result, left = ([int(n) for n in shape[1].split(",") if n] for shape in shapes if shape)
    sides = [left[int(n)] for n in contracted[1].replace('"', "").split(",") if n]
    return 2 * math.prod(result) * math.prod(sides)


def _size(result: str) -> int:
    return sum(n for _, n in arrays(result))
