"""train --check: a close look for everything that would stop a run, without training.

Beyond the checks of every start (preflight.py), some examples of each data set are read and
decoded, the checksums of init.weights verified, the work directory's config compared, and the
state's size compared with the devices' memory. Nothing is compiled, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from etils import epath

from vit_jax.config import RunConfig
from vit_jax.core.errors import UserError
from vit_jax.core.screen import Screen, format_bytes, format_count
from vit_jax.parallel import mesh as meshes
from vit_jax.run import announce, build, preflight
from vit_jax.run.memory import device_memory
from vit_jax.run.preflight import RunParts
from vit_jax.run.problems import MISSING, Problems
from vit_jax.store import checkpoint_dir
from vit_jax.training.objective import Batch
from vit_jax.training.state import StateLayout, device_bytes, total_bytes

if TYPE_CHECKING:
    from vit_jax.data.source import Source

SAMPLES = 16  # of each data set, the first and the last among them


class Row(NamedTuple):
    """A line of the table: a part of the run, and what was found."""

    what: str
    found: str


def check(
    config: RunConfig,
    folder: epath.Path,
    screen: Screen,
    *,
    allow_config_change: bool,
    all_images: bool = False,
) -> None:
    """Checks everything that the run of `config` in `folder` needs, and prints the findings.

    With `all_images` every image of the training data and the evaluations is read and decoded.

    Raises:
      UserError: something is wrong; lists all errors.
    """
    problems = Problems()
    parts = preflight.look(config, folder, problems)
    rows = [_mesh(parts)]
    rows += (_all_data if all_images else _data)(config, parts, problems, screen)
    rows += _model(config, parts, problems, screen)
    rows += _workdir(config, folder, parts, problems, allow_config_change)
    _show(screen, rows, problems)
    if parts.step.layout is not MISSING:
        announce.unsharded(screen, parts.step.layout)
    problems.tell()


def _show(screen: Screen, rows: list[Row], problems: Problems) -> None:
    """Prints the table: each part, what was found, and whether it is right."""
    whats = [problem.what for problem in problems.found]
    rows += [Row(what, "") for what in dict.fromkeys(whats) if what not in [r.what for r in rows]]
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    for row in rows:
        numbers = [str(i) for i, what in enumerate(whats, start=1) if what == row.what]
        said = f"problem {', '.join(numbers)}" if numbers and len(whats) > 1 else "problem"
        found = row.found or ("" if numbers else "not looked at")
        state = said if numbers else ("ok" if row.found else "-")
        screen.say(f"{row.what:{widths[0]}}  {found:{widths[1]}}  {state}")


def _mesh(parts: RunParts) -> Row:
    if parts.mesh is MISSING:
        return Row("mesh", "")
    devices = parts.mesh.devices.ravel()
    axes = " x ".join(f"{name} {size}" for name, size in parts.mesh.shape.items())
    unused = meshes.unused(parts.mesh)
    return Row("mesh", f"{len(devices)} x {devices[0].device_kind}: {axes}{unused}")


def _data(config: RunConfig, parts: RunParts, problems: Problems, screen: Screen) -> Iterator[Row]:
    c = config.input
    read = problems.look(
        "input",
        _samples,
        config,
        parts.source,
        c.preprocess,
        "input",
        after=[parts.batch_layout],
    )
    skipped = problems.look(
        "input",
        _first_batch,
        config,
        parts.source,
        parts.batch_layout,
        after=[parts.step.durations, read],  # a batch that is too large for a run is not read
    )
    found = "" if parts.source is MISSING else _describe(parts.source, build.title(c, parts.source))
    if skipped is not MISSING:
        found += f"; read the first batch and {read.examples} more{_bad(read.bad + skipped)}"
    yield Row("input", found)
    for number, (name, data) in enumerate(parts.eval_data.items()):
        screen.bar("reading examples", number, len(parts.eval_data))
        preprocess, split = config.evals[name].preprocess, config.evals[name].split
        where = f"evals.{name}"
        read = problems.look(where, _samples, config, data.source, preprocess, where)
        found = "" if data is MISSING else _describe(data.source, f"{data.source.name}, {split}")
        if read is not MISSING:
            found += f"; read {read.examples}{_bad(read.bad)}"
        yield Row(where, found)


def _all_data(
    config: RunConfig, parts: RunParts, problems: Problems, screen: Screen
) -> Iterator[Row]:
    """Like `_data`, but checks every image."""
    c = config.input
    sets: list[tuple[str, Any, str, str | None]] = []  # last: the split of an evaluation
    sets.append(("input", parts.source, c.preprocess, None))
    sets += [
        (f"evals.{name}", data.source, each.preprocess, each.split)
        for (name, data), each in zip(parts.eval_data.items(), config.evals.values(), strict=True)
    ]
    for where, source, preprocess, split in sets:
        bad = problems.look(where, _look_at_all, config, source, preprocess, where, screen)
        found = ""
        if source is not MISSING:
            title = build.title(c, source) if split is None else f"{source.name}, {split}"
            found = _describe(source, title)
        if bad is not MISSING:
            found += f"; read all{_bad(bad)}"
        yield Row(where, found)


def _look_at_all(
    config: RunConfig, source: Source, preprocess: str, where: str, screen: Screen
) -> int:
    """Counts the bad images, naming each on the screen; UserError if there may be none."""
    bar = lambda done, total: screen.bar(f"reading all of {where}", done, total)
    bad = 0
    for file in build.bad_images(config.input, source, preprocess, bar):
        screen.note(f"bad      {file}")
        bad += 1
    share = bad / source.num_examples
    if bad and config.input.on_bad_image == "fail":
        raise UserError(
            f"{where}: {bad:,} of {source.num_examples:,} images are bad, named above. Replace "
            'them, or set input.on_bad_image="skip" to give such images weight 0.'
        )
    if where != "input" and bad == source.num_examples:
        raise UserError(f"{where}: all of its {bad:,} images are bad, and none can be scored.")
    if where == "input" and share > config.input.max_bad_fraction:
        raise UserError(
            f"{where}: {bad:,} of {source.num_examples:,} images are bad, named above, more than "
            f"input.max_bad_fraction={config.input.max_bad_fraction:g} of them. Correct the data, "
            "or raise that."
        )
    return bad


class Read(NamedTuple):
    """The number of examples read, and of bad images among them, which will be skipped."""

    examples: int
    bad: int


def _samples(config: RunConfig, source: Source, preprocess: str, where: str) -> Read:
    """Reads and decodes some of a split, the first and the last among them."""
    indices = np.unique(np.linspace(0, source.num_examples - 1, SAMPLES).astype(np.int64))
    try:
        with build.samples(config.input, source, preprocess, indices) as batches:
            next(batches)
            return Read(len(indices), batches.num_bad)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def _first_batch(config: RunConfig, source: Source, layout: Batch) -> int:
    """Makes this process's part of the first batch; returns its number of skipped images."""
    with build.train_feed(config, source, layout, start_step=0) as feed:
        next(feed)
        return feed.skipped_images


def _describe(source: Source, title: str) -> str:
    classes = f"{source.num_classes:,} classes{', weighted labels' if source.weighted else ''}"
    return f"{title}: {source.num_examples:,} examples, {classes}"


def _bad(number: int) -> str:
    return f", {number} of them bad images" if number else ""


def _model(config: RunConfig, parts: RunParts, problems: Problems, screen: Screen) -> Iterator[Row]:
    durations, model, _, layout, _ = parts.step
    yield Row("plan", "" if durations is MISSING else f"{durations.total_steps:,} steps")
    if model is MISSING:
        yield Row("model", "")
    else:
        yield Row("model", f"{model.info.name}, {format_count(model.info.parameters)} parameters")
    yield Row("memory", "" if layout is MISSING else _memory(layout))
    if config.init.weights is not None:
        needed = [parts.trained, parts.shapes]
        verified = problems.look("init", _verify, config, parts, screen, after=needed)
        yield Row("init", "" if verified is MISSING else verified)


def _memory(layout: StateLayout) -> str:
    """The memory that the state takes on each device."""
    state = layout.state
    sizes = {"parameters": state.params, "optimizer": state.opt_state, "average": state.ema}
    parts = [f"{name} {format_bytes(device_bytes(tree))}" for name, tree in sizes.items() if tree]
    there = device_memory(layout.mesh.local_devices[0])
    of = "" if there is None else f" of {format_bytes(there)}"
    return f"state {format_bytes(device_bytes(state))}{of} a device: {', '.join(parts)}"


def _verify(config: RunConfig, parts: RunParts, screen: Screen) -> str:
    """Reads the arrays of a warm start on the host, one after the other."""
    trained = parts.trained
    if trained is None:
        return "not needed any more: the run goes on from its own checkpoint"
    host = jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    for number, (name, shape) in enumerate(parts.shapes.items()):
        screen.bar("verifying init.weights", number + 1, len(parts.shapes))
        array = jax.ShapeDtypeStruct(shape, np.float32, sharding=host)
        trained.read({name: array}, ema=config.init.ema)
    right = "" if trained.external else ", checksums right"
    return f"{trained.name} from {trained.folder}: {len(parts.shapes)} arrays fit{right}"


def _workdir(
    config: RunConfig,
    folder: epath.Path,
    parts: RunParts,
    problems: Problems,
    allow_config_change: bool,
) -> Iterator[Row]:
    there = checkpoint_dir.steps(folder / "checkpoints")
    if folder.exists():
        entry = problems.look(
            "workdir",
            build.entry,
            config,
            folder,
            parts.source,
            allow_config_change=allow_config_change,
        )
        if there:
            problems.look(
                "workdir",
                _check_checkpoint,
                folder,
                parts.step.layout,
                parts.step.durations,
                after=[entry],
            )
    begins = f"goes on from step {there[-1]:,}" if there else "begins anew"
    size = ""
    if parts.step.layout is not MISSING:
        size = f"; a checkpoint is {format_bytes(total_bytes(parts.step.layout.state))}"
    yield Row("workdir", f"{folder}: {begins}{size}")


def _check_checkpoint(folder: epath.Path, layout: StateLayout, durations: build.Durations) -> None:
    """UserError unless the run can go on from the newest checkpoint."""
    newest = checkpoint_dir.find(folder)
    checkpoint_dir.check_layout(newest, layout.state)
    durations.check_start(int(newest.name), folder)
