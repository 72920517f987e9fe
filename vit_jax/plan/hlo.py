"""Reads a compiled program, XLA's HLO as text: its instructions, and how often they run.

    compiled.as_text() -> instructions(...) -> [Instruction(runs=24, opcode="all-gather", ...)]

An instruction in the body of a loop runs as often as the loop does, times what runs the loop.
"""

import math
import re
from typing import NamedTuple

_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (.+?) ([a-z][a-z0-9-]*)\(")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_CONDITION = re.compile(r"\bcondition=%?([\w.-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_BODY = re.compile(r"\bbody=%?([\w.-]+)")
_CONSTANT = re.compile(r"%([\w.-]+) = [su]32\[\]\S* constant\((\d+)\)")
_ELEMENT = re.compile(r"get-tuple-element\(%[\w.-]+\), index=(\d+)")
_NAMES = re.compile(r"%([\w.-]+)")


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
            for called in _called(line):
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
        elif here:
            lines[here].append(line)
    return lines, entry


def _called(line: str) -> list[str]:
    branches = [b for group in _BRANCHES.findall(line) for b in re.split(r",\s*", group)]
    return [*_CALLED.findall(line), *(b.lstrip("%") for b in branches)]


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
