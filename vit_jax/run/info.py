"""Describes a run, weights, or this machine: vit-jax info [RUN or WEIGHTS]

Of a run: how far it is, its best step and by what, its checkpoints, its last rows, and where its
time went; of a folder of runs, such as a sweep's: a line for each; of weights: their model. Of
neither: versions, devices and settings for a bug report.
--json prints all of these and a run's config and starts; it has your paths in it.
"""

import dataclasses
import itertools
import json
import math
import os
import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from absl import flags
from etils import epath

from vit_jax import weights
from vit_jax.config import EarlyStoppingConfig
from vit_jax.core import cloud, command, machine
from vit_jax.core.errors import UserError, describe_error
from vit_jax.core.metric_names import best_mode, readable
from vit_jax.core.screen import aligned, format_bytes, format_duration
from vit_jax.evals.early_stopping import stopped
from vit_jax.run.environment import PACKAGES, versions
from vit_jax.store import checkpoint_dir, runs, workdir
from vit_jax.store.workdir import CONFIG_FILE, read_document

OTHERS = ("numpy", "tensorflow-datasets", "ml_collections", "clu", "torch", "timm", "transformers")
GOES_ON = "; the same command goes on from its newest checkpoint, if it has one"
LAST = 5  # rows and checkpoints that are shown
EVALUATED = re.compile("(?!train/).+/accuracy")
SHOWN = ("/loss", "/accuracy", "/learning_rate", "images_per_second")
SETTINGS = ("JAX_", "XLA_", "LIBTPU_", "TPU_", "NVIDIA_", "CUDA_", "GLIBC_TUNABLES", "MALLOC_")


def describe() -> dict[str, str]:
    """This machine and environment, by headings."""
    found, memory = versions([*PACKAGES, *OTHERS]), machine.memory_bytes()
    of_memory = "unknown" if memory == machine.UNLIMITED else format_bytes(memory)
    return {
        "versions": ", ".join(f"{name} {version}" for name, version in found.items()),
        "system": f"{platform.platform()}, {machine.cores()} cores, {of_memory} of memory",
        "devices": _devices(),
        "settings": ", ".join(
            f"{name}={value}"
            for name, value in sorted(os.environ.items())
            if name.startswith(SETTINGS)
        ),
    }


def _devices() -> str:
    """The devices; or the error, which may be what the report is about."""
    try:
        devices = jax.devices()
        kinds = {device.device_kind for device in devices}
        return f"{len(devices)} x {', '.join(sorted(kinds))} ({jax.default_backend()})"
    except Exception as error:
        return f"error: {describe_error(error)}"


def describe_runs(path: str, folders: Sequence[epath.Path]) -> str:
    """Describes the runs in a folder by a line for each: how far it is, its best step, by what."""
    rows = []
    for folder in folders:
        run = runs.read(folder, folder.name)
        metric, values, best = _best(run, read_document(folder)["config"].get("checkpoint", {}))
        shown = [f"{best[0]:,}", metric, readable(metric, values[best[0]])] if best else ["-"] * 3
        rows.append([run.name, f"{run.last_step:,}", f"{run.planned_steps or 0:,}", *shown])
    table = aligned(["run", "step", "of", "best", "by", "value"], rows, left=(0, 4))
    page = f"vit-jax report {shlex.quote(path.rstrip('/'))}/*/"
    return "\n".join([*table, "", f"vit-jax info RUN has more of one; {page} draws their curves."])


def last_step(run: runs.Run) -> int | None:
    """The step that a run ends at by what its folder says so far; None: its plan is not known."""
    fields = dataclasses.asdict(EarlyStoppingConfig())
    for name in fields:
        if stated := run.fields.get(f"early_stopping.{name}"):
            fields[name] = json.loads(stated)
    metric = fields.pop("metric") or ""
    series = run.series.get(metric)
    if series is None:
        return run.planned_steps
    fields["mode"] = best_mode(metric, fields["mode"])
    early = stopped(zip(series.steps, series.values, strict=True), **fields)
    return run.planned_steps if early is None else max(early.step, workdir.saved_step(run.folder))


def describe_run(path: str) -> str:
    """Describes a work directory on one screen."""
    folder = epath.Path(path)
    run, config = runs.read(folder, path), read_document(path)["config"]
    model = config["model"].get("name") or config["init"]["weights"]  # as configs/finetune.py
    begun = f"{run.starts[0]['time']}, starts: {len(run.starts)}" if run.starts else "not yet"
    devices = run.starts[-1]["devices"] if run.starts else {}
    of = f" of {run.planned_steps:,}" if run.planned_steps else ""
    lines = [
        f"run      {path}: {model}, {config['input']['source']}",
        f"started  {begun}, on {devices.get('count')} x {devices.get('kind')}",
        f"step     {run.last_step:,}{of}{'' if run.last_step == run.planned_steps else GOES_ON}",
        *_time(run),
        *_checkpoints(run, config.get("checkpoint", {})),
    ]
    shown = sorted(runs.rows_by_step(folder).items())[-LAST:]
    keys = [
        key for key in run.series if key.endswith(SHOWN) and any(key in row for _, row in shown)
    ]
    rows = [
        [f"{step:,}", *(readable(k, row[k]) if row.get(k) is not None else "-" for k in keys)]
        for step, row in shown
    ]
    return "\n".join([*lines, "", *aligned(["last rows", *keys], rows, left=())])


def _time(run: runs.Run) -> list[str]:
    """Where the time went, by the rows."""
    speeds, waits = (run.series.get(f"speed/{key}") for key in ("images_per_second", "input_wait"))
    if not speeds or not waits:
        return []
    num_steps = [step - before for before, step in itertools.pairwise([0, *speeds.steps])]
    batch_size = int(run.fields["input.batch_size"])
    secs = [n * batch_size / speed for n, speed in zip(num_steps, speeds.values, strict=True)]
    waited = sum(each * wait for each, wait in zip(secs, waits.values, strict=True)) / sum(secs)
    text = f"time     {format_duration(sum(secs))} in steps, {waited:.0%} of it waiting for images"
    for what in ("compiling", "evaluating", "saving"):
        spent = run.series.get(f"speed/{what}_secs", runs.Series([], []))
        text += f", {format_duration(sum(spent.values))} {what}"
    return [text]


def _best(run: runs.Run, checkpoint: Mapping[str, Any]) -> tuple[str, dict[int, float], list[int]]:
    """The metric that the best step is by, its values, and their steps, the best first."""
    scores = (key for key in run.series if EVALUATED.fullmatch(key))
    metric = checkpoint.get("best_metric") or next(scores, "train/loss")
    series = run.series.get(metric, runs.Series([], []))
    values = {step: x for step, x in zip(*series, strict=True) if not math.isnan(x)}
    mode = best_mode(metric, checkpoint.get("best_mode"))
    return metric, values, checkpoint_dir.rank(values, mode)


def _checkpoints(run: runs.Run, checkpoint: Mapping[str, Any]) -> list[str]:
    """The best step and by what; and a line for each of the last checkpoints, with its size."""
    directory = run.folder / "checkpoints"
    saved, lines = workdir.steps(directory), []
    metric, values, best = _best(run, checkpoint)
    for step in best[:1]:
        where = f"{run.folder}@{step}" if step in saved else "not kept, see checkpoint.best_metric"
        lines = [f"best     step {step:,}, by {metric} {readable(metric, values[step])}: {where}"]
    for step in saved[-LAST:]:
        folder = directory / str(step)
        size = "" if cloud.is_remote(folder) else format_bytes(workdir.folder_bytes(folder))
        value = f"{metric} {readable(metric, values[step])}" if step in values else ""
        lines.append("saved    " + ", ".join(filter(None, (f"{run.folder}@{step}", size, value))))
    return lines


def _document(path: str) -> dict[str, Any]:
    """A run's config.json and rows for --json; of weights their description in words."""
    if _is_run(path):
        rows = runs.rows_by_step(epath.Path(path))
        return {"run": read_document(path), "rows": list(rows.values())}
    if folders := _runs_below(path):
        return {"runs": {str(folder): _document(str(folder)) for folder in folders}}
    return {"weights": describe_path(path)}


def _is_run(path: str) -> bool:
    return not weights.is_external(path) and (epath.Path(path) / CONFIG_FILE).exists()


def _runs_below(path: str) -> list[epath.Path]:
    folder = epath.Path(path)
    if weights.is_external(path) or not folder.is_dir():
        return []
    return sorted(each for each in folder.iterdir() if _is_run(str(each)))


def describe_path(path: str) -> str:
    """Describes a work directory, those in a folder, or weights' model. UserError for others."""
    if _is_run(path):
        return describe_run(path)
    if folders := _runs_below(path):
        return describe_runs(path, folders)
    info = weights.checkpoint_info(path)
    height, width = info.preprocess.image_size
    what = f"images of {height} x {width} pixels, {info.num_classes:,} classes"
    return f"The weights {path}: {info.name}, {info.parameters(ema=False):,} parameters, {what}."


FLAGS = flags.FLAGS


def main(arguments: list[str]) -> None:
    """The command."""
    if len(arguments) > 1:
        raise UserError(f"{' '.join(arguments)}: give one run or weights, or none.")
    if FLAGS.json:
        print(json.dumps(describe() | (_document(arguments[0]) if arguments else {}), indent=1))
    elif arguments:
        print(describe_path(arguments[0]))
    else:
        for heading, text in describe().items():
            print(f"- {heading}: {text or 'none'}")


if __name__ == "__main__":
    flags.DEFINE_bool("json", False, "Print all as one JSON object, for a bug report or a program.")
    command.run(main, positional=True)
