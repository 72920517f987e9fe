"""A table of the operations that took longest, from a trace of JAX's profiler."""

import collections
import csv
import gzip
import json
from pathlib import Path
from typing import Any

ROWS = 60


def write(folder: Path, table: Path, steps: int) -> str:
    """Writes the table; returns a line about the whole.

    Columns: the operation's name, microseconds of a step, how often in a step, share of the whole.
    Operations are those on a GPU's or TPU's lines of the trace; without one, of all lines that
    name an operation of XLA.
    """
    (file,) = folder.glob("**/*.trace.json.gz")
    with gzip.open(file, "rt") as opened:
        events = json.load(opened)["traceEvents"]
    micros: collections.Counter[str] = collections.Counter()
    times: collections.Counter[str] = collections.Counter()
    for event in _operations(events):
        micros[event["name"]] += event["dur"]
        times[event["name"]] += 1
    total = sum(micros.values()) or 1
    with table.open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(["operation", "micros_of_a_step", "times_in_a_step", "share"])
        for name, spent in micros.most_common(ROWS):
            row = [name, round(spent / steps, 1), times[name] / steps, round(spent / total, 4)]
            writer.writerow(row)
    kernels = sum(times.values()) / steps
    return f"{kernels:.0f} operations and {total / steps / 1e3:.2f} ms of them in a step"


def _operations(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events of kernels, or else of XLA's operations on the host."""
    names = {"process_name": {}, "thread_name": {}}
    for event in events:
        if event.get("ph") == "M" and event["name"] in names:
            key = (event["pid"], event.get("tid") if event["name"] == "thread_name" else None)
            names[event["name"]][key] = event["args"]["name"]
    complete = [event for event in events if event.get("ph") == "X" and event.get("dur")]

    def on_line(event: dict[str, Any], beginning: str) -> bool:
        process = names["process_name"].get((event["pid"], None), "")
        thread = names["thread_name"].get((event["pid"], event["tid"]), "")
        return "/device:" in process and thread.startswith(beginning)

    # A GPU's streams, a TPU's operations. Other lines of a device repeat the same time, by modules,
    # steps and scopes.
    for beginning in ("Stream", "XLA Ops"):
        if found := [event for event in complete if on_line(event, beginning)]:
            return found
    return [event for event in complete if "hlo_op" in event.get("args", {})]
