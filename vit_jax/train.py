"""Trains a model: python -m vit_jax.train --config configs/vit_digits.py --workdir DIR

Any field of the config can be overridden: --config.optim.lr=3e-4. Run the same command again to go
on where it stopped, for whatever reason it stopped.
"""

from absl import flags

from vit_jax import config as configs
from vit_jax.core import command
from vit_jax.run import heap

if __name__ == "__main__":  # --help and a mistake do not wait for the imports below
    command.define_config(configs.fields())
    command.define_processes()
    flags.DEFINE_string("workdir", None, "Where checkpoints and logs go; resumes what is there.")
    flags.DEFINE_bool(
        "allow_config_change",
        False,
        "Go on although the config differs from the one it began with.",
    )
    flags.DEFINE_bool(
        "check", False, "Only look whether config, data, weights and disk are right; train nothing."
    )
    flags.DEFINE_bool(
        "all_images", False, "With --check: read and decode every image, which takes its time."
    )
    flags.mark_flag_as_required("workdir")
    command.parse(configs.load)
    heap.keep()  # before any import starts a thread

import collections
import contextlib
import functools
import math
from collections.abc import Collection, Sequence
from typing import Any

import jax
from etils import epath

from vit_jax.cluster.peers import Peers
from vit_jax.cluster.preemption import AgreedStop, stop_request
from vit_jax.config import RunConfig
from vit_jax.core import compilation_cache
from vit_jax.core.errors import NonFiniteError, Preempted, UserError
from vit_jax.core.screen import Screen
from vit_jax.core.signals import StopRequest, at_once
from vit_jax.models import ModelInfo
from vit_jax.run import announce, build, environment, preflight, processes
from vit_jax.run.check import check
from vit_jax.run.memory import explain_out_of_memory
from vit_jax.store.workdir import record
from vit_jax.store.workdir_lock import lock
from vit_jax.training.early_stopping import EarlyStopping
from vit_jax.training.histograms import make_distributions
from vit_jax.training.run_log import Logger, RunLog, write_parameters
from vit_jax.training.state import StateLayout, TrainState
from vit_jax.training.step import Scalars, leave_out, lower_update
from vit_jax.training.warm_start import warm_start


def train(
    config: RunConfig,
    workdir: epath.Path,
    *,
    allow_config_change: bool = False,
    stop: StopRequest | AgreedStop | None = None,
    peers: Peers | None = None,
    loggers: Sequence[Logger] = (),
) -> TrainState:
    """Trains to the end of the durations, resuming from workdir; step k means: after k updates.

    As soon as bool(stop) is true the state is saved, and training ends. `peers` are the processes
    that call this together, each on its own host; default: this one alone. The `loggers` get the
    rows of the log too.

    Raises:
      UserError: config, data, weights or work directory are wrong.
      NonFiniteError: a loss or gradient is NaN or infinite.
      Preempted: `stop` became true; the state is saved.
      PeerLost: another process did not come to a barrier, or has ended.
    """
    stop = StopRequest() if stop is None else stop
    peers = Peers.alone() if peers is None else peers

    # Weights by name mean the same at every start of a run.
    given, config = config, build.pinned(config, workdir, peers)

    # Where and what: nothing is allocated yet, and all errors are reported at once.
    run = preflight.prepare(config, workdir)
    mesh, source, evals = run.mesh, run.source, run.evals
    durations, model, _, layout, objective, products = run.step

    with contextlib.ExitStack() as until_the_end:
        enter = until_the_end.enter_context
        screen = enter(contextlib.closing(Screen(quiet=jax.process_index() > 0)))
        # Claim the work directory: no other process uses it, and it belongs to this run.
        enter(lock(workdir))
        entry = build.entry(given, workdir, source, layout.teacher, allow_config_change)
        announce.run(screen, config, source, mesh, run.step, run.eval_data, entry.changes)
        announce.parameters(screen, objective, layout)

        # Start: resume, else warm start, else scratch, always in this order.
        enter(explain_out_of_memory(config))
        with peers.together("restoring"):
            store = enter(contextlib.closing(build.store(config, workdir)))
            state = store.restore(layout.state) or first_state(config, layout, model.info, screen)
            fixed = layout.read_fixed()  # a teacher's parameters, if there is one
        start = int(state.step)
        durations.check_start(start, workdir)
        announce.resumed(screen, start)
        if jax.process_index() == 0:
            described = environment.describe(mesh) | build.pins(given, config)
            record(entry, run=described | {"total_steps": durations.total_steps})
        write_parameters(workdir, layout.state.params)

        # Repeat. The batch of step k is a function of k, so nothing else needs to be restored.
        log = enter(build.log(config, workdir, start_step=start, more=loggers))
        feed = enter(run.feed(config, start_step=start))
        # Stopped during the last evaluation?
        evaluations = RunEvaluations(run, build.early_stopping(config), screen, stop, peers)
        evaluations.catch_up(start, state.weights(), log)
        end = start if evaluations.ended else durations.total_steps
        if start < end:
            with announce.compiling(screen):
                update = compiled_update(config, run)
        distributions = make_distributions(layout, objective, config.seed)
        clock = build.clock(config, products, durations, mesh, feed, start_step=start)
        skipped = build.skipped_images(config, source, feed, log, start_step=start)
        progress = announce.Progress(screen, durations, objective)
        under_way = UnderWay()
        for step in range(start + 1, end + 1):
            batch = next(feed)
            if durations.histograms(step):
                under_way.finish()
                with clock.paused():
                    state = layout.together(state)
                    log.write_distributions(step, fetch(distributions(state, batch, *fixed)))
            if durations.skips(step):
                screen.say(f"step {step:,} | its batch is left out, as input.skip_steps says")
            advance = leave_out if durations.skips(step) else update
            state, scalars = advance(layout.apart(state), batch, *fixed)  # returns at once
            under_way.add(scalars)
            skipped.add(scalars)
            log.after_step(step)
            row: dict[str, float] = {}
            if durations.log(step) or durations.save(step) or evals.due(step) or stop:
                # The only sync, except for histograms, done before the clock is stopped: otherwise
                # the devices' pending work would count as a pause.
                scalars, counts = fetch((scalars, skipped.pending))
                stop_if_not_finite(scalars)
                announce.bad_images(screen, feed.bad_images)
                row = skipped.settle(counts)
            if durations.log(step):
                row = {k: float(x) for k, x in scalars.items() if k.startswith("train/")}
                row |= clock.tick(step) | skipped.row()
                progress.show(step, row, clock.eta_secs)
            with clock.paused():
                results: dict[str, float] = {}
                if evals.due(step) or durations.save(step) or stop:
                    state = layout.together(state)
                try:
                    if not stop:
                        results = evaluations.run(step, state.weights())
                except UserError:  # bad data of an evaluation are no reason to lose the training
                    if not peers.several:  # the others would not come to save
                        stop_if_not_finite(scalars)
                        store.save(step, state, run.description, {})
                    raise
                stopping = bool(stop)  # once: a signal may come between two looks
                if stopping:
                    row |= skipped.settle(fetch(skipped.pending))
                if results:
                    announce.results(screen, step, results)
                if row | results:
                    log.write(step, row | results, evals.drawn())
                if durations.save(step) or stopping or evaluations.ended:
                    stop_if_not_finite(scalars)
                    state = layout.together(state)
                    log.flush()
                    with peers.together(f"saving step {step}"):
                        store.save(step, state, run.description, results)
            if stopping:
                store.wait()
                raise preempted(stop, step, workdir)
            if evaluations.ended:
                break
        store.wait()
        announce.stopped_early(screen, evaluations.early, durations)
        end = int(state.step)
        announce.finished(screen, end, model, log.row(end), workdir)
    return layout.together(state)


class RunEvaluations:
    """The evaluations of a run, and whether it ends by what they have measured."""

    def __init__(
        self,
        run: preflight.RunParts,
        early: EarlyStopping,
        screen: Screen,
        stop: StopRequest | AgreedStop,
        peers: Peers,
    ):
        self.early, self._evals = early, run.evals
        self._screen, self._stop, self._peers = screen, stop, peers
        parts = [part for data in run.eval_data.values() for part in data.parts]
        self._bad_images = [part.bad_images for part in parts]

    @property
    def ended(self) -> bool:
        """Whether the run ends before its last step."""
        return self.early.stopped is not None

    def run(self, step: int, weights: Any, done: Collection[str] = ()) -> dict[str, float]:
        """The results of those that are due, but for `done`; of all, if the run ends by them."""
        run = functools.partial(
            self._evals.run, step, weights, self._screen.bar, self._stop, self._peers.together
        )
        found = run(done)
        self.early.add(step, found)
        if self.ended:
            found |= run({*done, *found}, last=True)
        announce.bad_images(self._screen, *self._bad_images)
        return found

    def catch_up(self, step: int, weights: Any, log: RunLog) -> None:
        """Runs those that were missed; before it, takes from the log what had been measured."""
        known = self._peers.from_first("what was measured", log.values(self.early.metric))
        for at, value in known:
            self.early.add(at, {str(self.early.metric): value})
        done = self._peers.from_first("before the evaluations that were missed", log.row(step))
        if missed := self.run(step, weights, done):
            announce.results(self._screen, step, missed)
            log.write(step, missed, self._evals.drawn())


def compiled_update(config: RunConfig, run: preflight.RunParts) -> Any:
    """The update of `layout.in_steps`."""
    update = build.update(config, run.step)
    return lower_update(update, run.step.layout.in_steps, run.batch_layout).compile()


def first_state(
    config: RunConfig, layout: StateLayout, model: ModelInfo, screen: Screen
) -> TrainState:
    """The state after 0 steps: from scratch, or with the parameters that `init` names."""
    state, init = layout.init(config.seed), config.init
    if init.weights is None:
        return state
    trained = build.trained_weights(init)
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


class UnderWay:
    """The steps that the devices have yet to finish: one that is computed, and one that is ready.

    A loop that ran further ahead would hold a batch for each such step, and a request to stop would
    wait for them all.
    """

    def __init__(self) -> None:
        self._scalars: collections.deque[Scalars] = collections.deque()

    def add(self, scalars: Scalars) -> None:
        """Adds the scalars of a step in progress; waits until at most two are under way."""
        self._scalars.append(scalars)
        if len(self._scalars) > 2:
            jax.block_until_ready(self._scalars.popleft())

    def finish(self) -> None:
        """Waits for all of them."""
        jax.block_until_ready(self._scalars)
        self._scalars.clear()


def fetch(numbers: Any) -> Any:
    """Waits for the devices: the one place where the loop does."""
    return jax.device_get(numbers)


def preempted(stop: StopRequest | AgreedStop, step: int, workdir: epath.Path) -> Preempted:
    """What a run ends with that was told to stop, after its state is saved."""
    return Preempted(
        f"Stopped by {stop}; step {step:,} is saved in {workdir}. "
        "Start the same command again to go on."
    )


def stop_if_not_finite(scalars: Scalars) -> None:
    """Raises NonFiniteError if this step or one before it had no finite loss and gradients."""
    step = int(scalars["first_bad_step"])
    if step:
        loss, norm = (float(x) for x in scalars["first_bad_values"])
        finite = math.isfinite(loss) and math.isfinite(norm)
        update = ", and an update that is not finite (optim.eps, perhaps)" if finite else ""
        raise NonFiniteError(
            f"Step {step:,}: loss {loss}, gradient norm {norm}{update}. Nothing was saved "
            "from that step on. Usual cures: a lower optim.lr, a longer optim.warmup_*, "
            "optim.grad_clip_norm, model.dtype=float32. Started again, the run meets the same "
            f"batch: look at its images (vit-jax preview --config FILE --step {step} "
            f"--output step{step}.png), or leave it out by --config.input.skip_steps={step}."
        )


FLAGS = flags.FLAGS
_NOT_BEGUN = "before anything was begun. Start the same command again."


def main(_: list[str]) -> None:
    """The command."""
    with at_once(_NOT_BEGUN):
        config = configs.load(FLAGS.config, FLAGS.config_override)
        if config.deterministic:
            environment.deterministic()
        cluster = processes.find()
        if not FLAGS.workdir:
            raise UserError("--workdir is empty: give the folder for checkpoints and logs.")
        workdir = epath.Path(FLAGS.workdir).expanduser()
        if not cluster and not FLAGS.check:  # others would wait; a check reports all at once
            preflight.check_folders(config, workdir)
        compilation_cache.use()
    allow = FLAGS.allow_config_change
    options = {"--check": FLAGS.check, "--allow_config_change": allow}
    if FLAGS.all_images and not FLAGS.check:
        raise UserError("--all_images belongs to --check: give both, or neither.")
    with processes.together(cluster) as peers:
        # Before the devices are requested, for which all processes wait for each other.
        with at_once(_NOT_BEGUN):
            processes.check_same(peers, config, workdir, options)
        if FLAGS.check:
            with at_once("before the check was finished."):
                screen = Screen(quiet=jax.process_index() > 0)
                every = FLAGS.all_images
                check(config, workdir, screen, peers, allow_config_change=allow, all_images=every)
        else:
            with stop_request(peers) as stop:
                train(config, workdir, allow_config_change=allow, stop=stop, peers=peers)


if __name__ == "__main__":
    command.run(main)
