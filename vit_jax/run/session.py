"""The lines of the training loop, in the order in which train.py calls them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from vit_jax.cluster.peers import Peers
from vit_jax.core.errors import Preempted
from vit_jax.core.screen import Screen
from vit_jax.core.signals import StopRequest
from vit_jax.learning.clock import InFlightSteps
from vit_jax.learning.feed import SKIPPED_IMAGES
from vit_jax.learning.loggers import Logger, write_parameters
from vit_jax.learning.state import TrainState, skip_update, stop_if_not_finite
from vit_jax.learning.step import Scalars
from vit_jax.run import announce
from vit_jax.run.build import Run
from vit_jax.run.memory import explain_out_of_memory
from vit_jax.run.parts import outputs
from vit_jax.run.parts.close_ups import CloseUps
from vit_jax.run.parts.evaluations import RunEvals
from vit_jax.store.workdir_lock import lock


class Due(NamedTuple):
    """The events that are due after a step."""

    log: bool
    eval: bool
    save: bool
    stop: bool

    @property
    def needs_state(self) -> bool:
        """Returns whether more than the step's scalars are read."""
        return self.eval or self.save or self.stop


class Opening:
    """A run that has its work directory to itself, and no state yet; `until_end` closes all."""

    def __init__(
        self,
        until_end: contextlib.ExitStack,
        run: Run,
        stop: StopRequest,
        peers: Peers,
        loggers: Sequence[Logger],
        allow_config_change: bool,
    ) -> None:
        self.enter = until_end.enter_context
        self.run, self.stop, self.peers, self.loggers = run, stop, peers, loggers
        self.layout = run.parts.layout
        self.screen = Screen(quiet=jax.process_index() > 0)
        self.enter(contextlib.closing(self.screen))
        self.enter(lock(run.workdir))
        self.record = outputs.workdir_record(
            run.requested, run.workdir, run.source, self.layout.teacher, allow_config_change
        )
        changes = self.record.changes
        announce.run(
            self.screen, run.config, run.source, run.mesh, run.parts, run.eval_data, changes
        )
        self.enter(explain_out_of_memory(run.config))
        with peers.barriers_around("opening the checkpoints"):
            self.teacher_params = self.layout.read_teacher_params()
            self.checkpoints = outputs.store(run.config.checkpoint, run.workdir)
        self.enter(contextlib.closing(self.checkpoints))

    def restore_checkpoint(self) -> TrainState | None:
        """The newest valid state, or None."""
        return self.checkpoints.restore(self.layout.state)

    def initial_state(self) -> TrainState:
        """The state after 0 steps: with the parameters of init.weights, or from scratch."""
        run = self.run
        if run.trained is None:
            return self.layout.init(run.config.seed)
        from vit_jax.run.parts.warm_start import initial_state

        info = run.parts.model.info
        return initial_state(run.config, self.layout, info, run.trained, self.screen)

    def start(self, state: TrainState) -> Session:
        """Opens the log and the feed at this state, and compiles."""
        return Session(self, state)


class Session:
    """The loop's objects from a state on.

    Made, it has run the evaluations that a stop kept from running, and compiled the update, unless
    no step is left. Layers are stacked and unstacked only where `StateLayout.unstacked_steps` is
    true, by default on GPUs and TPUs.

    Attributes:
      steps: numbers of the steps to do.
      clock: measures the speed, but for what happens while it is paused.
    """

    def __init__(self, opening: Opening, state: TrainState) -> None:
        run, step = opening.run, int(state.step)
        self._run, self._stop, self._peers = run, opening.stop, opening.peers
        self._screen, self._checkpoints = opening.screen, opening.checkpoints
        self._layout, self._durations = opening.layout, run.parts.durations
        self._teacher_params, self._start = opening.teacher_params, step
        self._durations.check_start(step, run.workdir)
        announce.resumed(self._screen, step)
        starts = run.requested, run.config, run.mesh, self._durations
        self._checkpoints.run_id = outputs.record_start(opening.record, *starts)
        write_parameters(run.workdir, self._layout.state.params)
        log = outputs.log(run.config, run.workdir, start_step=step, more=opening.loggers)
        self._log = opening.enter(log)
        self._feed = opening.enter(run.feed(start_step=step))
        logged = self._peers.from_first("skipped images", log.values(SKIPPED_IMAGES))
        images = run.config.input, run.source, self._feed
        self._skipped = outputs.skipped_images(*images, logged, start_step=step)
        with_run = self._stop, self._peers, self._screen
        self._evals = RunEvals(run.config, run.evals, run.eval_data, *with_run)
        self.clock = outputs.clock(run.config, run.parts, run.mesh, self._feed, start_step=step)
        with self.clock.paused():
            with self.clock.timed("evaluating"):
                missed = self._evals.catch_up(step, self._layout.weights(state), log)
            if missed:
                self._checkpoints.add_metrics(step, missed)
                self.write(step, {}, missed)
                log.flush()  # what is known is not measured again after a kill
            self._stopping = step > 0 and bool(self._stop)  # of step 0 nothing is saved
            last = step if self.ended else self._durations.total_steps
            self.steps = range(step + 1, last + 1)
            with self.clock.timed("compiling"):
                self._update = run.compile_update(self._screen) if self.steps else skip_update
        self._in_flight = InFlightSteps(run.mesh.devices.flat[0].platform)
        self._progress = announce.Progress(self._screen, self._durations, run.parts.objective)
        parts = run.config, run.source, run.parts, self._teacher_params
        at_rest = log, self.clock, self._in_flight.finish
        self._close_ups = CloseUps(*parts, *at_rest, title=run.workdir.name)

    def update(self, step: int, state: TrainState) -> tuple[TrainState, Scalars]:
        """Begins update number `step`, on the next batch; devices may still compute the result.

        If this process cannot read its part of the batch, all of them learn it from the loss, which
        is NaN: they do not update the state, and end in `fetch_scalars`.
        """
        # If it fails, all are asked to stop, lest they go on until a row.
        batch = self._feed.batch_of(step, tell=self._peers.request_stop)
        state = self._close_ups.add(step, state, batch)
        update = self._update
        if self._durations.skips(step):
            self._screen.say(f"step {step:,} | its batch is left out, as input.skip_steps says")
            update = skip_update
        state, scalars = update(self._layout.unstack_layers(state), batch, *self._teacher_params)
        self._in_flight.add(scalars)
        self._skipped.add(scalars)
        self._log.after_step(step)
        return state, scalars

    def due(self, step: int) -> Due:
        """The events that are due after this step."""
        return Due(
            log=self._durations.log(step),
            eval=self._run.evals.due(step),
            save=self._durations.save(step),
            stop=bool(self._stop) or (self._feed.unread is not None and not self._peers.several),
        )

    def fetch_scalars(
        self, step: int, state: TrainState, scalars: Scalars, due: Due
    ) -> dict[str, float]:
        """Waits for the step's scalars, and returns the numbers to log.

        Steps that are not due wait for the devices only as `InFlightSteps` does, or for histograms.

        Raises:
          NonFiniteError: a loss or gradient was not finite.
          UserError: there were too many bad images, or a batch could not be read. Then the state
            before it is saved.
          PeerLost: that was another process.
        """
        scalars, counts = jax.device_get((scalars, self._skipped.uncommitted))
        if bad_step := int(scalars["first_bad_step"]):
            self._end_if_unread(bad_step, state, counts[: bad_step - 1 - step])
        stop_if_not_finite(scalars, self._run.config.input.skip_steps, self._run.workdir)
        announce.bad_images(self._screen, self._feed.bad_images)
        row = self._skipped.commit(counts)
        if due.log:
            row = {k: float(x) for k, x in scalars.items() if k.startswith("train/")}
            row |= self.clock.tick(step) | self._skipped.row()
            self._progress.show(step, row, self.clock.eta_secs)
        return row

    def stacked(self, state: TrainState, due: Due) -> TrainState:
        """The state for evaluations and saves: its layers stacked, if it is read."""
        return self._layout.stack_layers(state) if due.needs_state else state

    def evaluate(
        self, step: int, state: TrainState, row: Mapping[str, float], due: Due
    ) -> dict[str, float]:
        """The results of the evaluations that are due; after it, `ended` is known.

        One that fails, by bad data or for want of memory, is no reason to lose the training: its
        row is written and the state saved, unless other processes would have to come to save.
        """
        results: dict[str, float] = {}
        try:
            if due.eval and not due.stop:
                with self.clock.timed("evaluating"):
                    results = self._evals.run(step, self._layout.weights(state))
        except Exception:
            if not self._peers.several:
                self._save_before_error(step, state, row)
            raise
        self._stopping = due.needs_state and bool(self._stop)  # a signal may have come meanwhile
        return results

    def write(self, step: int, row: Mapping[str, float], results: Mapping[str, float]) -> None:
        """Shows the results, and writes all numbers to the log."""
        announce.results(self._screen, step, results)
        if row or results:
            row = {**row, **results, **self.clock.elsewhere()}
            self._log.write(step, row, self._run.evals.take_pictures())

    def save(self, step: int, state: TrainState, results: dict[str, float], due: Due) -> None:
        """Begins to save the state, if it is due or the run ends."""
        if due.save or self.ended:
            self._log.flush()
            saving = self._peers.barriers_around(f"saving step {step}")
            with saving, self.clock.timed("saving"):
                self._checkpoints.save(step, state, self._run.description, results)

    def _end_if_unread(self, bad_step: int, state: TrainState, counts: Sequence[Any]) -> None:
        """Saves the state before `bad_step` and raises, if a process could not read that batch.

        counts: images that were skipped in the steps before it.
        """
        if not self._feed.is_unread(bad_step):
            return
        done, last_row = bad_step - 1, self._skipped.commit(counts)
        if done > self._start and not self._durations.save(done):
            values = {"step": done, "first_bad_step": 0, "first_bad_values": 0.0}
            good = {name: jnp.full_like(getattr(state, name), x) for name, x in values.items()}
            self._save_before_error(done, state._replace(**good), last_row)
        self._feed.raise_unread()
        self._peers.barrier("after a batch that another process could not read")

    def _save_before_error(self, step: int, state: TrainState, row: Mapping[str, float]) -> None:
        """Writes the row of a step, and saves what was trained, for which all processes come."""
        self.write(step, row, {})
        due = Due(log=False, eval=False, save=True, stop=False)
        self.save(step, self._layout.stack_layers(state), {}, due)
        self._checkpoints.wait()

    @property
    def ended(self) -> bool:
        """Returns whether the run ends here, before its last step."""
        return self._stopping or self._evals.early.stopped is not None

    def finish(self, state: TrainState) -> TrainState:
        """Waits for the last save, and announces the results; returns the state, layers stacked."""
        step, workdir = int(state.step), self._run.workdir
        self._checkpoints.wait()
        if self._stopping:
            told = f"Stopped by {self._stop}; step {step:,} is saved in {workdir}."
            raise Preempted(f"{told} Start the same command again to go on.")
        announce.stopped_early(self._screen, self._evals.early, self._durations)
        best, row = self._checkpoints.best(), self._log.row(step)
        announce.best(self._screen, self._run.config.checkpoint, best, workdir)
        announce.finished(self._screen, step, self._run.parts.model, row, workdir, best and best[0])
        return self._layout.stack_layers(state)
