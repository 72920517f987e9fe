"""train --check: a close look for everything that would stop a run, without training.

Beyond the checks of every start (build.py), some examples of each data set are read and
decoded, the checksums of init.weights verified, the work directory's config compared, and the
state's size compared with the devices' memory. Nothing is compiled, unless steps are to be timed,
and nothing is written.
"""

import contextlib
import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils

from vit_jax import models
from vit_jax.cluster.peers import Peers
from vit_jax.config import RunConfig
from vit_jax.core.errors import NOT_MADE, ErrorCollector, UserError, naming
from vit_jax.core.screen import Screen, format_bytes, format_count, format_duration
from vit_jax.data.source import Source
from vit_jax.learning.losses import Batch
from vit_jax.learning.methods import SUPERVISED
from vit_jax.learning.state import StateLayout, device_bytes, total_bytes
from vit_jax.parallel import mesh as meshes
from vit_jax.run import announce
from vit_jax.run.build import Run
from vit_jax.run.memory import device_memory, explain_out_of_memory
from vit_jax.run.parts import device_cache, examples, inputs, outputs, pins
from vit_jax.run.parts.durations import Durations
from vit_jax.run.parts.examples import DEVICE, SplitOfRun
from vit_jax.store import checkpoint_dir

SAMPLES = 16  # of each data set, the first and the last among them
WARM_UP_STEPS, TIMED_STEPS = 2, 3
LONG_SECS = 3600  # of a CPU: then it is said what is shorter


def check(
    config: RunConfig,
    folder: epath.Path,
    peers: Peers | None = None,
    *,
    allow_config_change: bool,
    all_images: bool = False,
    time_steps: bool = False,
) -> None:
    """Checks everything that the run of `config` in `folder` needs, and prints the findings.

    With `all_images` every image of the training data and the evaluations is read and decoded; with
    `time_steps` a few steps are run, from random parameters, to tell how long all will take.
    """
    errors, given, screen = ErrorCollector(), config, Screen(quiet=jax.process_index() > 0)
    with contextlib.suppress(UserError):  # which is met again below
        config = pins.pin_weights(config, folder, Peers.alone() if peers is None else peers)
    run = Run(config, folder, errors)
    table = {"mesh": ""}
    if run.mesh is not NOT_MADE:
        devices = run.mesh.devices.ravel()
        axes = " x ".join(f"{name} {size}" for name, size in run.mesh.shape.items())
        kind = f"{len(devices)} x {devices[0].device_kind}"
        table["mesh"] = f"{kind}: {axes}{meshes.unused(run.mesh)}"
    table |= dict(_data(config, run, errors, screen, all_images))
    table |= dict(_model(config, run, errors, screen))
    table["workdir"] = _workdir(given, folder, run, errors, allow_config_change)
    _show(screen, table, errors)
    if run.parts.layout is not NOT_MADE and run.parts.objective is not NOT_MADE:
        announce.parameters(screen, run.parts.objective, run.parts.layout)
    errors.raise_all()
    if time_steps:
        with explain_out_of_memory(config):
            screen.say(_time(run, screen))


def _show(screen: Screen, table: dict[str, str], errors: ErrorCollector) -> None:
    """Prints the table: each part of the run, what was found, and whether it is right."""
    whats = [each.what for each in errors.found]
    rows = table | dict.fromkeys([what for what in whats if what not in table], "")
    widths = [max(map(len, column)) for column in (rows, rows.values())]
    for part, text in rows.items():
        numbers = [str(i) for i, what in enumerate(whats, start=1) if what == part]
        problem = f"problem {', '.join(numbers)}" if numbers and len(whats) > 1 else "problem"
        shown = text or ("" if numbers else "not looked at")
        state = problem if numbers else ("ok" if text else "-")
        screen.say(f"{part:{widths[0]}}  {shown:{widths[1]}}  {state}")


def _data(
    config: RunConfig, run: Run, errors: ErrorCollector, screen: Screen, all_images: bool
) -> Iterator[tuple[str, str]]:
    """Findings in the data of training and of each evaluation, by section."""
    c, look = config.input, errors.attempt
    title = "" if run.source is NOT_MADE else examples.title(c, run.source)
    splits: list[tuple[str, Any, str, str]] = [("input", run.source, c.preprocess, title)]
    for (name, data), each in zip(run.eval_data.items(), config.evals.values(), strict=True):
        if data is NOT_MADE:
            splits.append((f"evals.{name}", NOT_MADE, each.preprocess, ""))
            continue
        for part in data.parts:
            split = each.split if part is data else each.train_split
            title = f"{part.source.name}, {split}"
            splits.append((part.split.where, part.source, each.preprocess, title))
    for number, (where, source, preprocess, title) in enumerate(splits):
        if all_images:
            read = "all"
            bad = look(where, _look_at_all, config, source, preprocess, where, screen)
        else:
            screen.bar("reading examples", number, len(splits))
            read = str(SAMPLES if source is NOT_MADE else min(SAMPLES, source.num_examples))
            after = [run.batch_layout] if where == "input" else []
            bad = look(where, _samples, config, source, preprocess, where, after=after)
        if where == "input" and not all_images:
            read = f"the first batch and {read} more"
            # A batch that is too large for a run is not read.
            needed = [run.parts.durations, bad]
            more = look(where, _first_batch, config, source, run.batch_layout, after=needed)
            bad = NOT_MADE if more is NOT_MADE else bad + more
        result = "" if source is NOT_MADE else f"{title}: {announce.size(source)}"
        if source is not NOT_MADE:
            announce.notes(screen, title, source)
        if bad is not NOT_MADE:
            result += f"; read {read}" + (f", {bad} of them bad images" if bad else "")
        yield where, result
    screen.bar("reading examples", len(splits), len(splits))  # ends it


def _look_at_all(
    config: RunConfig, source: Source, preprocess: str, where: str, screen: Screen
) -> int:
    """Counts the bad images, naming each on the screen; UserError if there may be none."""
    c, counts, examples = config.input, np.zeros(2, np.int32), source.num_examples
    bar = functools.partial(screen.bar, f"reading all of {where}")
    try:
        for fault in inputs.find_bad_images(c, source, preprocess, bar):
            screen.note(f"bad      {fault.text}")
            counts += (1, not fault.skippable)
    except UserError:
        multihost_utils.process_allgather(counts)  # the others wait for this process's
        raise
    every = multihost_utils.process_allgather(counts)  # each process has read a part
    bad, unreadable = every.reshape(-1, 2).sum(axis=0).tolist()
    if c.cache == DEVICE:
        device_cache.DeviceCache(c, SplitOfRun(where, source, preprocess)).check_images()
    if unreadable:
        raise UserError(
            f"{where}: {unreadable:,} of {examples:,} examples, named above, end a run whatever "
            "input.on_bad_image says."
        )
    if not bad:
        return 0
    reason = ""
    if c.on_bad_image == "fail":
        reason = 'replace them, or set input.on_bad_image="skip"'
    elif where != "input" and bad == examples:
        reason = "none can be scored"
    elif where == "input" and bad / examples > c.max_bad_fraction:
        reason = f"more than input.max_bad_fraction={c.max_bad_fraction:g} of them"
    if reason:
        raise UserError(f"{where}: {bad:,} of {examples:,} images, named above, are bad: {reason}.")
    return bad


def _samples(config: RunConfig, source: Source, preprocess: str, where: str) -> int:
    """Reads and decodes some of a split; returns the number of bad images, which are skipped."""
    indices = np.unique(np.linspace(0, source.num_examples - 1, SAMPLES).astype(np.int64))
    with naming(where), inputs.samples(config.input, source, preprocess, indices) as batches:
        next(batches)
        return batches.num_bad


def _first_batch(config: RunConfig, source: Source, layout: Batch) -> int:
    """Makes this process's part of the first batch; returns its number of skipped images.

    On the host, with any input.cache: nothing is to be decoded for later, and it is the same.
    """
    config = dataclasses.replace(config, input=dataclasses.replace(config.input, cache=None))
    with inputs.train_feed(config.input, source, layout, seed=config.seed, start_step=0) as feed:
        next(feed)
        return feed.skipped_images


def _model(
    config: RunConfig, run: Run, errors: ErrorCollector, screen: Screen
) -> Iterator[tuple[str, str]]:
    durations, model, _, layout, *_ = run.parts
    yield "plan", "" if durations is NOT_MADE else _plan(config, durations)
    if model is NOT_MADE:
        yield "model", ""
    else:
        yield "model", f"{model.info.name}, {format_count(model.info.parameters)} parameters"
    yield "memory", "" if layout is NOT_MADE else _memory(layout, run.cached_bytes)
    if config.init.weights is not None:
        needed = [run.trained, run.shapes]
        verified = errors.attempt("init", _verify, config, run, screen, after=needed)
        yield "init", "" if verified is NOT_MADE else verified


def _plan(config: RunConfig, durations: Durations) -> str:
    epochs = durations.total_steps / durations.steps_per_epoch
    examples = f"{config.input.batch_size:,} examples"
    return f"{durations.total_steps:,} steps of {examples}, {epochs:.3g} epochs"


def _time(run: Run, screen: Screen) -> str:
    """Measures how long the steps of a run take, by a few; evaluations and saving not counted."""
    layout, secs = run.parts.layout, []
    update = run.compile_update(screen)
    state, teacher_params = layout.in_steps.init(run.config.seed), layout.read_teacher_params()
    with run.feed(start_step=0) as feed:
        for _ in range(WARM_UP_STEPS + TIMED_STEPS):
            start = time.perf_counter()
            state, scalars = update(state, next(feed), *teacher_params)
            jax.block_until_ready(scalars)
            secs.append(time.perf_counter() - start)
    each, steps = statistics.median(secs[WARM_UP_STEPS:]), run.parts.durations.total_steps
    in_all = format_duration(each * steps)
    said = f"time     {each:.3g} s a step: {steps:,} steps take {in_all}, besides evaluations"
    if each * steps < LONG_SECS or run.mesh.devices.flat[0].platform != "cpu":
        return said
    return ". ".join([said, *_shorter(run, each)])


def _shorter(run: Run, step_secs: float) -> Iterator[str]:
    """Ways to a shorter run: as many epochs as take LONG_SECS; half the side, by its FLOPs."""
    durations, model, c = run.parts.durations, run.parts.model, run.config
    most = int(LONG_SECS / step_secs)
    epochs = int(most / durations.steps_per_epoch)
    steps = math.ceil(epochs * durations.steps_per_epoch) if epochs else most
    if steps > durations.warmup_steps + durations.cooldown_steps:
        field = f"epochs={epochs}" if epochs else f"steps={steps}"
        yield f"With --config.total.{field} they take {format_duration(step_secs * steps)}"
    sides = model.preprocess.image_size
    half = tuple(side // 2 // model.info.stride * model.info.stride for side in sides)
    if all(half) and c.method.kind == SUPERVISED:
        spec = models.spec(model.info.name, **model.info.spec)
        here, there = (models.forward_flops(spec, model.num_classes, s) for s in (sides, half))
        share = there / here
        in_all = format_duration(share * step_secs * durations.total_steps)
        yield f"With images of {' x '.join(map(str, half))} pixels all take about {in_all}"


def _memory(layout: StateLayout, cached_bytes: int) -> str:
    """The memory that the state and the images of input.cache=device take on each device."""
    state = layout.state
    sizes = {"parameters": state.params, "optimizer": state.opt_state, "average": state.ema}
    sizes |= {"method": state.method_state}
    parts = [f"{name} {format_bytes(device_bytes(tree))}" for name, tree in sizes.items() if tree]
    there = device_memory(layout.mesh.local_devices[0])
    of = "" if there is None else f" of {format_bytes(there)}"
    if layout.teacher is not None:
        parts.append(f"the teacher beside it {format_bytes(device_bytes(layout.teacher_params))}")
    if cached_bytes is not NOT_MADE and cached_bytes:
        parts.append(f"images beside it {format_bytes(cached_bytes)}")
    return f"state {format_bytes(device_bytes(state))}{of} a device: {', '.join(parts)}"


def _verify(config: RunConfig, run: Run, screen: Screen) -> str:
    """Reads the arrays of a warm start on the host, one after the other."""
    trained = run.trained
    if trained is None:
        return "not needed any more: the run goes on from its own checkpoint"
    host = jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    for number, (name, shape) in enumerate(run.shapes.items()):
        screen.bar("verifying init.weights", number + 1, len(run.shapes))
        array = jax.ShapeDtypeStruct(shape, np.float32, sharding=host)
        trained.read({name: array}, ema=config.init.ema)
    right = "" if trained.external else ", checksums right"
    return f"{trained.name} from {trained.origin}: {len(run.shapes)} arrays fit{right}"


def _workdir(
    config: RunConfig, folder: epath.Path, run: Run, errors: ErrorCollector, allow_change: bool
) -> str:
    there = checkpoint_dir.steps(folder / "checkpoints")
    layout, durations, look = run.parts.layout, run.parts.durations, errors.attempt
    if folder.exists():
        teacher = None if layout is NOT_MADE else layout.teacher
        record = look(
            "workdir", outputs.workdir_record, config, folder, run.source, teacher, allow_change
        )
        if there:
            look("workdir", _check_checkpoint, folder, layout, durations, after=[record])
    begins = f"goes on from step {there[-1]:,}" if there else "begins anew"
    size = ""
    if layout is not NOT_MADE:
        size = f"; a checkpoint is {format_bytes(total_bytes(layout.state))}"
    return f"{folder}: {begins}{size}"


def _check_checkpoint(folder: epath.Path, layout: StateLayout, durations: Durations) -> None:
    newest = checkpoint_dir.find(folder)
    checkpoint_dir.check_layout(newest, layout.state)
    durations.check_start(int(newest.name), folder)
