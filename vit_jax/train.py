"""Trains a model: vit-jax train --config vit_digits --workdir DIR

Any field of the config can be overridden: --config.optim.lr=3e-4. Run the same command again to go
on where it stopped, for whatever reason it stopped; from an earlier step, if later folders are
moved out of DIR/checkpoints, which keeps the last two (--config.checkpoint.keep_last=N,
keep_every_steps=N); with other fields in a copy of DIR, by --allow_config_change. vit-jax info DIR
shows how far it is, its best step and its speed. To fine-tune weights on a folder of images:
--config finetune --config.init.weights=WEIGHTS --config.input.data_dir=FOLDER.
All configs: docs/configs.md.
"""

from vit_jax.core import machine

if __name__ == "__main__":
    machine.use_huge_pages()  # by another start of Python, which need not import twice

import contextlib
from collections.abc import Sequence

from absl import flags
from etils import epath

from vit_jax import config as configs
from vit_jax.cluster.peers import Peers
from vit_jax.cluster.stop import stop_request
from vit_jax.config import RunConfig
from vit_jax.core import command, compilation_cache
from vit_jax.core.signals import StopRequest, exit_immediately_on_signal
from vit_jax.learning.loggers import Logger
from vit_jax.learning.state import TrainState
from vit_jax.run import environment, processes
from vit_jax.run.build import Run
from vit_jax.run.folders import check_folders
from vit_jax.run.session import Opening
from vit_jax.store import workdir as workdirs


def train(
    config: RunConfig,
    workdir: epath.PathLike,
    *,
    allow_config_change: bool = False,
    stop: StopRequest | None = None,
    peers: Peers | None = None,
    loggers: Sequence[Logger] = (),
) -> TrainState:
    """Trains to the run's last step, resuming from workdir.

    Step k is the k-th update, counted from 1, and the state after it.

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
    workdir = workdirs.named(workdir)
    peers = Peers.alone() if peers is None else peers

    # Checks config, data, weights and disk, and raises all errors together; allocates nothing.
    run = Run.build(config, workdir, peers)
    with contextlib.ExitStack() as until_end:  # closes all that is open, whatever ends it
        opening = Opening(until_end, run, stop, peers, loggers, allow_config_change)
        # Resume; else init.weights, if given; else random parameters.
        with peers.barriers_around("restoring"):
            state = opening.restore_checkpoint() or opening.initial_state()
        # Opens log and feed, runs evaluations that were missed, compiles. The batch is a function
        # of the step's number: the input has no state to restore.
        session = opening.start(state)
        for step in session.steps:
            state, scalars = session.update(step, state)  # devices lag two steps at most
            due = session.due(step)
            if not any(due):
                continue
            row = session.fetch_scalars(step, state, scalars, due)  # waits for devices
            with session.clock.paused():
                state = session.stacked(state, due)  # as evaluations and checkpoints take it
                results = session.evaluate(step, state, row, due)
                session.write(step, row, results)
                session.save(step, state, results, due)
            if session.ended:
                break
        return session.finish(state)


FLAGS = flags.FLAGS
_ALIKE = {  # on all processes
    "allow_config_change": "Go on although fields differ that a resumed run must not change "
    "(docs/resuming.md).",
    "check": "Only look whether config, data, weights and disk are right; train nothing.",
    "all_images": "With --check: read and decode every image, which takes its time.",
    "time_steps": "With --check: run a few steps, to tell how long all will take.",
}
_NOT_BEGUN = "before anything was begun. Start the same command again."


def main(_: list[str]) -> None:
    """Trains, or only checks, as the flags say."""
    with exit_immediately_on_signal(_NOT_BEGUN):
        given = configs.load(FLAGS.config, FLAGS.config_override)
        if given.deterministic:
            environment.deterministic()
        cluster = processes.find_cluster()
        workdir = workdirs.named(FLAGS.workdir)
        # The commonest errors, at once. If one of several processes ended here, the others would
        # wait for it; --check looks later, with all its checks.
        if not cluster and not FLAGS.check:
            check_folders(given, workdir)
        compilation_cache.use()

    with processes.connect_processes(cluster, workdir) as peers:
        # Before the devices are requested, for which all processes wait for each other.
        with exit_immediately_on_signal(_NOT_BEGUN):
            config = processes.same_config(peers, given, workdir, _ALIKE)
        allow = FLAGS.allow_config_change
        if FLAGS.check:
            from vit_jax.run.check import check  # no part of a training

            looks = {"all_images": FLAGS.all_images, "time_steps": FLAGS.time_steps}
            with exit_immediately_on_signal("before the check was finished."):
                check(config, workdir, peers, allow_config_change=allow, **looks)
        else:
            with stop_request(peers) as stop:
                train(config, workdir, allow_config_change=allow, stop=stop, peers=peers)


if __name__ == "__main__":
    command.define_config(configs.fields)
    command.define_processes()
    flags.DEFINE_string(
        "workdir",
        None,
        "Where checkpoints and logs go, on several hosts one that all see; resumes what is there.",
    )
    for name, text in _ALIKE.items():
        flags.DEFINE_bool(name, False, text)
    flags.register_multi_flags_validator(
        ["check", "all_images", "time_steps"],
        lambda given: given["check"] or not (given["all_images"] or given["time_steps"]),
        "--all_images and --time_steps belong to --check.",
    )
    flags.mark_flag_as_required("workdir")
    command.run(main)
