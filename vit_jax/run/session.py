"""The steps of a training loop, and what is open meanwhile: the lock, the log, the feed.

train.py says in what order things happen; here is what each of them does. Whatever ends the run,
what was opened is closed in reverse order.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.experimental import multihost_utils

from vit_jax import weights
from vit_jax.cluster.peers import Peers
from vit_jax.cluster.start import AgreedStop
from vit_jax.config import RunConfig
from vit_jax.core.errors import NonFiniteError, Preempted, UserError
from vit_jax.core.screen import Screen
from vit_jax.core.signals import StopRequest
from vit_jax.learning.feed import SKIPPED_IMAGES
from vit_jax.learning.histograms import make_distributions
from vit_jax.learning.loggers import Logger, write_parameters
from vit_jax.learning.losses import Batch
from vit_jax.learning.state import StateLayout, TrainState
from vit_jax.learning.step import Scalars
from vit_jax.learning.updates import Updates, lower_update
from vit_jax.models import ModelInfo
from vit_jax.run import announce, environment, heap
from vit_jax.run.build import Run
from vit_jax.run.memory import explain_out_of_memory
from vit_jax.run.parts import evaluations, outputs, pins, updates
from vit_jax.run.parts.warm_start import warm_start
from vit_jax.store.workdir import write_record
from vit_jax.store.workdir_lock import lock

_NEVER = np.iinfo(np.int32).max  # no step


class Due(enum.Flag):
    """The events that are due after a step."""

    LOG = enum.auto()
    EVAL = enum.auto()
    SAVE = enum.auto()
    STOP = enum.auto()


class Session:
    """A run that has its work directory to itself, from entering this context on.

    Its methods are called in the order in which they stand here. Layers are stacked and unstacked
    only where `StateLayout.unstacked_steps` is true, by default on GPUs and TPUs.

    Attributes, from `begin` on:
      clock: measures the speed, but for what happens while it is paused.
      last_step: number of the run's last step; it may have `ended` before.
    """

    def __init__(
        self,
        run: Run,
        stop: StopRequest | AgreedStop,
        peers: Peers,
        loggers: Sequence[Logger],
        allow_config_change: bool,
    ) -> None:
        self._run, self._stop, self._peers, self._loggers = run, stop, peers, loggers
        self._allow_config_change = allow_config_change
        self._early = evaluations.early_stopping(run.config)
        self._stopping = False
        self._unread: tuple[int, UserError | None] = (_NEVER, None)  # the first step without batch
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Session:
        run, layout = self._run, self._run.step.layout
        with contextlib.ExitStack() as opened:
            screen = Screen(quiet=jax.process_index() > 0)
            self._screen = opened.enter_context(contextlib.closing(screen))
            opened.enter_context(lock(run.workdir))
            self._record = outputs.workdir_record(
                run.requested, run.workdir, run.source, layout.teacher, self._allow_config_change
            )
            announce.run(
                screen, run.config, run.source, run.mesh, run.step, run.eval_data,
                self._record.changes,
            )  # fmt: skip
            announce.parameters(screen, run.step.objective, layout)
            opened.enter_context(explain_out_of_memory(run.config))
            self._open = opened.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    # The start.

    def restore_checkpoint(self) -> TrainState | None:
        """The newest valid state, or None; reads a teacher's parameters too, if there is one."""
        self._teacher_params = self._run.step.layout.read_teacher_params()  # in no checkpoint
        store = outputs.store(self._run.config, self._run.workdir)
        self._checkpoints = self._open.enter_context(contextlib.closing(store))
        return self._checkpoints.restore(self._run.step.layout.state)

    def initial_state(self) -> TrainState:
        """The state of a run that has no checkpoint yet."""
        run, step = self._run, self._run.step
        return initial_state(run.config, step.layout, step.model.info, run.trained, self._screen)

    def begin(self, state: TrainState) -> int:
        """Prepares the loop from this state on; returns the number of its step.

        Opens the log and the feed, runs the evaluations that were missed if the run was stopped
        during the last ones, and compiles the update, unless no step is left or it stops again.
        """
        run, config, start = self._run, self._run.config, int(state.step)
        self._start = start
        layout, durations = run.step.layout, run.step.durations
        durations.check_start(start, run.workdir)
        announce.resumed(self._screen, start)
        if jax.process_index() == 0:
            described = environment.describe(run.mesh) | pins.describe_pins(run.requested, config)
            write_record(self._record, run=described | {"total_steps": durations.total_steps})
        write_parameters(run.workdir, layout.state.params)
        self._log = self._open.enter_context(
            outputs.log(config, run.workdir, start_step=start, more=self._loggers)
        )
        self._feed = self._open.enter_context(run.feed(start_step=start))
        logged = self._peers.from_first("skipped images", self._log.values(SKIPPED_IMAGES))
        self._skipped = outputs.skipped_images(
            config, run.source, self._feed, logged, start_step=start
        )
        self._catch_up(start, layout.weights(state))
        self.last_step = start if self.ended else durations.total_steps
        if start < self.last_step:
            with announce.compiling(self._screen):
                compiled = lower_update(
                    updates.update(config, run.step), layout.in_steps, run.batch_layout
                ).compile()
            heap.make_room(compiled)
            self._updates = Updates(layout, compiled, self._teacher_params, durations.skips)
        self._distributions = make_distributions(layout, run.step.objective, config.seed)
        self.clock = outputs.clock(
            config, run.step.products, durations, run.mesh, self._feed, start_step=start
        )
        self._progress = announce.Progress(self._screen, durations, run.step.objective)
        return start

    # The steps.

    def update(self, step: int, state: TrainState) -> tuple[TrainState, Scalars]:
        """Begins update number `step`, on the next batch; devices may still compute the result.

        If this process cannot read its part of the batch, all of them learn it from the loss, which
        is NaN: they do not update the state, and end in `fetch_scalars`.
        """
        durations = self._run.step.durations
        try:
            batch = next(self._feed)
        except UserError as error:
            batch = self._feed.unread_batch()
            if self._unread[1] is None:
                self._unread = (step, error)
                self._peers.stop.request(str(error))  # all of them, lest they go on until a row
        if durations.skips(step):
            self._screen.say(f"step {step:,} | its batch is left out, as input.skip_steps says")
        elif durations.histograms(step):
            state = self._write_distributions(step, state, batch)
        state, scalars = self._updates(step, state, batch)
        self._skipped.add(scalars)
        self._log.after_step(step)
        return state, scalars

    def _write_distributions(self, step: int, state: TrainState, batch: Batch) -> TrainState:
        """Logs the distributions of the next update; returns the state with stacked layers."""
        self._updates.finish()  # else the clock would take the devices' work for a pause
        with self.clock.paused():
            state = self._run.step.layout.stack_layers(state)
            distributions = self._distributions(state, batch, *self._teacher_params)
            self._log.write_distributions(step, fetch(distributions))
        return state

    def due(self, step: int) -> Due:
        """The events that are due after this step; false if there are none."""
        durations, due = self._run.step.durations, Due(0)
        for event, is_due in (
            (Due.LOG, durations.log(step)),
            (Due.EVAL, self._run.evals.due(step)),
            (Due.SAVE, durations.save(step)),
            (Due.STOP, bool(self._stop) or (not self._peers.several and step >= self._unread[0])),
        ):
            due |= event if is_due else Due(0)
        return due

    def fetch_scalars(
        self, step: int, state: TrainState, scalars: Scalars, due: Due
    ) -> dict[str, float]:
        """Waits for the step's scalars, and returns the numbers to log.

        Steps that are not due wait for the devices only as `Updates` does, or for histograms.

        Raises:
          NonFiniteError: a loss or gradient was not finite.
          UserError: there were too many bad images, or a batch could not be read. Then the state
            before it is saved.
          PeerLost: that was another process.
        """
        scalars, counts = fetch((scalars, self._skipped.uncommitted))
        if bad_step := int(scalars["first_bad_step"]):
            self._end_if_unread(bad_step, state, counts[: bad_step - 1 - step])
        stop_if_not_finite(scalars, self._run.config.input.skip_steps, self._run.workdir)
        announce.bad_images(self._screen, self._feed.bad_images)
        row = self._skipped.commit(counts)
        if Due.LOG in due:
            row = {k: float(x) for k, x in scalars.items() if k.startswith("train/")}
            row |= self.clock.tick(step) | self._skipped.row()
            self._progress.show(step, row, self.clock.eta_secs)
        return row

    def stacked(self, state: TrainState, due: Due) -> TrainState:
        """The state for evaluations and saves: its layers stacked, if more than LOG is due."""
        return state if due == Due.LOG else self._run.step.layout.stack_layers(state)

    def evaluate(
        self, step: int, state: TrainState, row: Mapping[str, float], due: Due
    ) -> dict[str, float]:
        """The results of the evaluations that are due; after it, `ended` is known.

        One that fails, by bad data or for want of memory, is no reason to lose the training: its
        row is written and the state saved, unless other processes would have to come to save.
        """
        results: dict[str, float] = {}
        try:
            if Due.EVAL in due and Due.STOP not in due:
                results = self._evaluate(step, self._run.step.layout.weights(state))
        except Exception:
            if not self._peers.several:
                self._save_before_error(step, state, row)
            raise
        if due != Due.LOG:
            self._stopping = bool(self._stop)  # a signal may have come meanwhile
        return results

    def write(self, step: int, row: Mapping[str, float], results: Mapping[str, float]) -> None:
        """Shows the results, and writes all numbers to the log."""
        announce.results(self._screen, step, results)
        if row or results:
            self._log.write(step, {**row, **results}, self._run.evals.take_pictures())

    def save(self, step: int, state: TrainState, results: dict[str, float], due: Due) -> None:
        """Begins to save the state, if it is due or the run ends."""
        if Due.SAVE in due or self.ended:
            self._log.flush()
            with self._peers.barriers_around(f"saving step {step}"):
                self._checkpoints.save(step, state, self._run.description, results)

    def _end_if_unread(self, bad_step: int, state: TrainState, counts: Sequence[Any]) -> None:
        """Saves the state before `bad_step` and raises, if a process could not read that batch.

        counts: images that were skipped in the steps before it.
        """
        unread_step, error = self._unread
        if multihost_utils.process_allgather(np.int32(unread_step)).min() > bad_step:
            return
        done, last_row = bad_step - 1, self._skipped.commit(counts)
        if done > self._start and not self._run.step.durations.save(done):
            values = {"step": done, "first_bad_step": 0, "first_bad_values": 0.0}
            good = {name: jnp.full_like(getattr(state, name), x) for name, x in values.items()}
            self._save_before_error(done, state._replace(**good), last_row)
        if error is not None:
            raise error
        self._peers.barrier("after a batch that another process could not read")

    def _save_before_error(self, step: int, state: TrainState, row: Mapping[str, float]) -> None:
        """Writes the row of a step, and saves what was trained, for which all processes come."""
        self.write(step, row, {})
        self.save(step, self._run.step.layout.stack_layers(state), {}, Due.SAVE)
        self._checkpoints.wait()

    @property
    def ended(self) -> bool:
        """Returns whether the run ends here, before its last step."""
        return self._stopping or self._early.stopped is not None

    def finish(self, state: TrainState) -> TrainState:
        """Waits for the last save, and announces the results; returns the state, layers stacked.

        Raises:
          Preempted: the run was stopped.
        """
        run, step = self._run, int(state.step)
        self._checkpoints.wait()
        if self._stopping:
            raise Preempted(
                f"Stopped by {self._stop}; step {step:,} is saved in {run.workdir}. "
                "Start the same command again to go on."
            )
        announce.stopped_early(self._screen, self._early, run.step.durations)
        best = self._checkpoints.best()
        announce.best(self._screen, run.config.checkpoint, best, run.workdir)
        announce.finished(
            self._screen, step, run.step.model, self._log.row(step), run.workdir, best and best[0]
        )
        return run.step.layout.stack_layers(state)

    # Evaluations.

    def _evaluate(self, step: int, weights: Any, done: Collection[str] = ()) -> dict[str, float]:
        """The results of the evaluations that are due, without those in `done`.

        If by these results the run ends early, then of all, as after the last step.
        """
        run = functools.partial(
            self._run.evals.run, step, weights, self._screen.bar, self._stop,
            self._peers.barriers_around,
        )  # fmt: skip
        with explain_out_of_memory(self._run.config, evaluating=True):
            # Each process rounds what it computes by itself, such as a probe, as its devices do.
            results = self._peers.from_first(f"results of step {step}", run(done))
            self._early.add(step, results)
            if self._early.stopped:
                results |= run({*done, *results}, last=True)
        parts = [part for data in self._run.eval_data.values() for part in data.parts]
        announce.bad_images(self._screen, *(part.bad_images for part in parts))
        return results

    def _catch_up(self, step: int, weights: Any) -> None:
        """Runs the evaluations that this step missed; reads from the log what was measured."""
        known = self._peers.from_first("what was measured", self._log.values(self._early.metric))
        for at, value in known:
            self._early.add(at, {str(self._early.metric): value})
        done = self._peers.from_first(
            "before the evaluations that were missed", self._log.row(step)
        )
        if missed := self._evaluate(step, weights, done):
            self._checkpoints.add_metrics(step, missed)
            self.write(step, {}, missed)
            self._log.flush()  # what is known is not measured again after a kill
        if step:  # of step 0 nothing is saved
            self._stopping = bool(self._stop)  # a signal may have come meanwhile


def initial_state(
    config: RunConfig,
    layout: StateLayout,
    model: ModelInfo,
    trained: weights.CheckpointInfo | None,
    screen: Screen,
) -> TrainState:
    """The state after 0 steps: from scratch, or with the parameters of `trained`."""
    state, init = layout.init(config.seed), config.init
    if trained is None:
        return state
    state = warm_start(
        state,
        trained,
        model,
        head=init.head,
        position_resize=init.position_resize,
        ema=init.ema,
    )
    announce.warm_start(screen, trained, model)
    return layout.with_params(state, state.params)


def fetch(arrays: Any) -> Any:
    """Copies a tree of arrays to the host, which waits for the devices."""
    return jax.device_get(arrays)


def stop_if_not_finite(scalars: Scalars, skipped: Collection[int], workdir: epath.PathLike) -> None:
    """Raises NonFiniteError if this step or one before it had no finite loss and gradients.

    skipped: steps that are left out already, which the advice to leave this one out repeats.
    workdir: of the run, which the advice to look at the step's images names.
    """
    step = int(scalars["first_bad_step"])
    if step:
        loss, norm = (float(x) for x in scalars["first_bad_values"])
        finite = math.isfinite(loss) and math.isfinite(norm)
        skip_steps = ",".join(map(str, sorted({*skipped, step})))
        update = ", and an update that is not finite (optim.eps, perhaps)" if finite else ""
        raise NonFiniteError(
            f"Step {step:,}: loss {loss}, gradient norm {norm}{update}. Nothing was saved "
            "from that step on. Usual cures: a lower optim.lr, a longer optim.warmup_*, "
            "optim.grad_clip_norm, model.dtype=float32. Started again, the run meets the same "
            f"batch: look at its images (vit-jax preview --workdir {workdir} --step {step} "
            f"--output step{step}.png), or leave it out by --config.input.skip_steps={skip_steps}."
        )
