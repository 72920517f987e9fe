"""The checkpoints of one work directory: asynchronous, self-describing, verified.

A save returns as soon as the arrays are copied from the devices; files are written during the next
steps and renamed into place when complete. A failed save surfaces in the next `save`, `wait` or
`close`. A new checkpoint is complete before an old one is deleted.
"""

import contextlib
import dataclasses
import itertools
import math
import shutil
import sys
import threading
import time
import zlib
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils
from orbax.checkpoint import checkpoint_managers as policies

from vit_jax.core import pytrees
from vit_jax.core.errors import UserError, describe_error, system_words, writing
from vit_jax.core.files import is_remote
from vit_jax.store import array_files, checkpoint_dir, workdir
from vit_jax.store.checkpoint_dir import DamagedError


class Checkpoints:
    """Saves and restores the states of one run in `directory` (`<workdir>/checkpoints`).

    keep_last: how many of the newest are kept; at least 1, so the newest is never lost.
    keep_every_steps: multiples of it are kept for good; None: none.
    best_metric: the step with its best value is kept as well; None: none. best_mode: "max" or
    "min". All processes of a multi-host run call every method alike.

    Attributes:
      run_id: as of workdir.write_record: `save` raises UserError if another run has started in the
        work directory since. "": that is not checked.
    """

    def __init__(
        self,
        directory: epath.PathLike,
        *,
        keep_last: int,
        keep_every_steps: int | None,
        best_metric: str | None,
        best_mode: str,
    ):
        array_files.mute_orbax()
        self.run_id = ""
        self._directory = checkpoint_dir.absolute(directory)
        _check_writable(self._directory)
        self._best = _Best(best_metric, best_mode)
        if best_metric is not None:  # what an earlier process has measured
            self._best.values = checkpoint_dir.metric_values(self._directory, best_metric)
        kept: list[policies.PreservationPolicy] = [policies.LatestN(keep_last), self._best]
        if keep_every_steps:
            kept.append(policies.EveryNSteps(keep_every_steps))
        handlers = ocp.handlers.DefaultCheckpointHandlerRegistry()
        self._handler = array_files.StateHandler()
        handlers.add(checkpoint_dir.STATE, ocp.args.PyTreeSave, self._handler)
        handlers.add(checkpoint_dir.DESCRIPTION, ocp.args.JsonSave, ocp.JsonCheckpointHandler())
        self._manager = ocp.CheckpointManager(
            self._directory,
            handler_registry=handlers,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=policies.AnyPreservationPolicy(kept),
                cleanup_tmp_directories=True,  # left by a killed process
                lightweight_initialize=True,  # orbax's own metadata are not needed
                # With asynchronous creation, a folder that cannot be created (read-only disk)
                # leaves threads that wait five minutes for it and keep the process from ending.
                async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
            ),
        )

    def latest_step(self) -> int | None:
        """The newest step saved or being saved; None if there is none."""
        return self._manager.latest_step()

    def save(
        self, step: int, state: Any, description: dict[str, Any], metrics: dict[str, float] | None
    ) -> None:
        """Starts saving and returns; the state's buffers may be donated right afterwards.

        description: any JSON value; see `checkpoint_dir` for the entries that are added.
        """
        self.wait()
        if self.run_id:
            workdir.check_owner(self._directory.parent, self.run_id)
        arrays = pytrees.flatten(state)
        assert len(arrays) == len(jax.tree.leaves(state)), "two leaves of one name"
        finite = {k: float(v) for k, v in (metrics or {}).items() if math.isfinite(v)}
        document = checkpoint_dir.describe(arrays, description, finite)
        self._best.values.pop(step, None)  # of a damaged checkpoint of this step
        self._best.add(step, finite)
        items = {
            checkpoint_dir.STATE: array_files.to_save(pytrees.unflatten(arrays)),
            checkpoint_dir.DESCRIPTION: ocp.args.JsonSave(document),
        }
        try:
            self._manager.save(step, args=ocp.args.Composite(**items), force=True)
        except Exception as error:
            self._fail(error)

    def add_metrics(self, step: int, metrics: dict[str, float]) -> None:
        """Adds what was measured after this step was saved; later starts read it from the log."""
        self._best.add(step, metrics)

    def restore(self, layout: Any) -> Any | None:
        """The newest valid state, sharded as `layout`; None if there is no checkpoint.

        layout: the state's pytree with jax.ShapeDtypeStructs that have shardings. A damaged
        checkpoint is skipped with a notice and moved to `<workdir>/damaged/<step>`, once a valid
        one was found.
        """
        if not (steps := self._steps()):
            return None
        step, state, damaged = checkpoint_dir.first_intact(
            self._directory, steps[::-1], lambda folder: checkpoint_dir.read(folder, layout)
        )
        self._move_aside(damaged, instead=step)
        return state

    def best(self) -> tuple[int, float] | None:
        """The step with the best metric, of those that are there, and its value; None of none."""
        step = self._best.step(workdir.steps(self._directory))
        return None if step is None else (step, self._best.values[step])

    def wait(self) -> None:
        """Returns when nothing is being saved any more. Raises UserError if saving failed."""
        try:
            while jax.process_count() > 1 and "save_finalize" in {
                thread.name for thread in threading.enumerate()
            }:
                if self._handler.errors:  # the others do not know, and would wait for this process
                    raise self._handler.errors[0]
                time.sleep(0.05)
            self._manager.wait_until_finished()
        except Exception as error:
            self._fail(error)

    def close(self) -> None:
        """Waits as `wait` does, and ends the threads."""
        if jax.process_count() > 1 and self._handler.errors:  # they would wait for other processes
            return
        try:
            self.wait()
        finally:
            self._manager.close()

    def _steps(self) -> list[int]:
        """Steps with a folder, valid or not. Raises UserError if processes see different ones."""
        steps = workdir.steps(self._directory)
        seen = multihost_utils.process_allgather(np.uint32(zlib.crc32(repr(steps).encode())))
        if len(set(seen.ravel().tolist())) > 1:
            rule = f"has the steps {steps} for process {jax.process_index()}, others for another."
            raise UserError(rule, field=str(self._directory), cure="It has to be shared.")
        return steps

    def _fail(self, error: Exception) -> NoReturn:
        """Cleans up after a failed save; raises a UserError if `error` is the disk's."""
        # Orbax reports the first error while other threads of the same save still write, and would
        # raise their errors in later calls.
        if jax.process_count() == 1:  # of several, the others may still write, or wait for this one
            for thread in threading.enumerate():
                if thread.name == "async_save" or type(thread).__module__.startswith("orbax."):
                    with contextlib.suppress(Exception):  # joining them raises
                        thread.join()
            for _ in range(10):  # each call raises one error: of its arrays, its description ...
                with contextlib.suppress(Exception):
                    self._manager.check_for_errors()
                    break
            self._remove_unfinished()
            self._manager.reload()
        latest = max(workdir.steps(self._directory), default=None)
        valid = "No earlier one exists." if latest is None else f"Step {latest} is still valid."
        from vit_jax.core import cloud  # needed on an error alone

        failed, words = cloud.failure(error), system_words(error)
        if failed is None and not words and not isinstance(error, OSError):
            raise error
        words = words or describe_error(failed or error)
        rule = f"A checkpoint could not be saved in {self._directory}: {words}. {valid}"
        cure = "Make room or keep fewer (checkpoint.keep_last), and start the same command again."
        raise UserError(rule, cure=cure) from error

    def _remove_unfinished(self) -> None:
        """Removes what a failed save has written, since it may be what fills the disk."""
        for _ in range(20):  # TensorStore's threads may write on, and make the folder anew
            for folder in self._directory.glob(workdir.UNFINISHED):
                with contextlib.suppress(OSError):  # on a broken disk; the next start removes it
                    folder.rmtree(missing_ok=True)
            time.sleep(0.1)
            if not list(self._directory.glob(workdir.UNFINISHED)):
                return

    def _move_aside(self, damaged: Sequence[DamagedError], *, instead: int) -> None:
        if jax.process_index() == 0:
            for error in damaged:
                folder, name = self._directory.parent / "damaged", error.folder.name
                names = itertools.chain([name], (f"{name}-{k}" for k in itertools.count(2)))
                target = next(folder / name for name in names if not (folder / name).exists())
                with writing(f"{error.folder}, which is damaged, moved to {target},"):
                    folder.mkdir(exist_ok=True)
                    if is_remote(target):
                        error.folder.rename(target)
                    else:  # perhaps to another disk
                        shutil.move(error.folder, target)
                damage = f"Notice: checkpoint {name} is damaged ({error.reason})."
                print(
                    f"{damage} It was moved to {target}; going on from step {instead}.",
                    file=sys.stderr,
                )
        multihost_utils.sync_global_devices("damaged checkpoints moved aside")
        self._manager.reload()


@dataclasses.dataclass
class _Best:
    """Preserves the step with the best metric; the newest of equals, none if none has a value.

    orbax's BestN reads its own file at the start and fails if it is damaged.
    """

    metric: str | None
    mode: str
    values: dict[int, float] = dataclasses.field(default_factory=dict)  # by step

    def add(self, step: int, metrics: dict[str, float]) -> None:
        if self.metric in metrics and math.isfinite(metrics[self.metric]):
            self.values[step] = metrics[self.metric]

    def step(self, steps: Collection[int]) -> int | None:
        """The best of these steps."""
        values = {step: value for step, value in self.values.items() if step in steps}
        return next(iter(checkpoint_dir.rank(values, self.mode)), None)

    def should_preserve(
        self, checkpoints: Sequence[Any], *, context: policies.PreservationContext
    ) -> Sequence[bool]:
        del context
        steps = [c.step for c in checkpoints]
        best = self.step(steps)
        return [s == best for s in steps]


def _check_writable(directory: epath.Path) -> None:
    """Checks by writing: permissions alone are not reliable, least of all for root or on gs://."""
    workdir.check_name(directory)
    trial = directory / f".writable_{jax.process_index()}"
    with writing("--workdir", directory):
        directory.mkdir(parents=True, exist_ok=True)
        trial.touch()
        trial.unlink()
