"""From a config to the objects of a run: `Run.build`.

Everything that can be known before the chips start is checked, and all errors are reported at once.
Nothing is compiled, nothing allocated on the devices, nothing written. `train --check` (check.py)
looks closer.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from etils import epath
from jax.sharding import Mesh

from vit_jax import weights
from vit_jax.cluster.peers import Peers
from vit_jax.config import RunConfig
from vit_jax.core.errors import NOT_MADE, Attempt, ErrorCollector
from vit_jax.core.screen import Screen
from vit_jax.data.source import Source
from vit_jax.evals import Evals
from vit_jax.learning.feed import Feed
from vit_jax.learning.losses import Batch
from vit_jax.learning.step import lower_update
from vit_jax.run import announce, memory, processes
from vit_jax.run.parts import evaluations, examples, inputs, networks, outputs, pins, updates
from vit_jax.run.parts.eval_data import EvalData, declared_or_read
from vit_jax.run.parts.updates import StepParts
from vit_jax.store import checkpoint_dir
from vit_jax.store import workdir as workdirs


@dataclasses.dataclass(frozen=True)
class Run:
    """The objects of a run: shapes and shardings, and data that are not read yet.

    Attributes:
      requested: the config as it was given.
      config: the same, where names of weights (hf:...) are pinned to what they mean; see pins.py.
      batch_layout: shapes and shardings of a training batch.
      step: the parts of a step, among them the model and the durations; not a number.
      cached_bytes: bytes of the images that each device keeps.
      trained: the description of init.weights; None if the run does not start from them.
      shapes: shapes of the arrays taken from there, by the parameters' names.
      description: the description in the run's own checkpoints.
    """

    requested: RunConfig
    config: RunConfig
    workdir: epath.Path
    mesh: Mesh
    source: Source
    batch_layout: Batch
    step: StepParts
    eval_data: dict[str, EvalData]
    cached_bytes: int
    evals: Evals
    trained: weights.CheckpointInfo | None
    shapes: dict[str, tuple[int, ...]]
    description: dict[str, Any]

    @classmethod
    def build(cls, config: RunConfig, workdir: epath.Path, peers: Peers | None = None) -> Run:
        """The run of `config` in `workdir`.

        Weights by name mean the same at every start of a run, and to all of its processes, which
        have to find the same data and weights.

        Raises:
          UserError: config, data, weights or disk are wrong; lists all errors.
        """
        errors, peers = ErrorCollector(), Peers.alone() if peers is None else peers
        pinned = pins.pin_weights(config, workdir, peers)
        run = cls.attempt(pinned, workdir, errors, requested=config)
        errors.raise_all()
        if peers.several:
            processes.check_same_files(peers, run.fingerprints())
        return run

    @classmethod
    def attempt(
        cls,
        config: RunConfig,
        workdir: epath.Path,
        errors: ErrorCollector,
        requested: RunConfig | None = None,
    ) -> Run:
        """As `build`, but adds the errors to `errors`; parts that they prevent are NOT_MADE.

        config: with weights by name pinned, in place of `requested`, if there are any.
        """
        attempt, c = errors.attempt, config.input
        # Devices and data.
        mesh = attempt("mesh", inputs.mesh, config.mesh)
        source = attempt("input", examples.source, c)
        attempt("input", examples.check_fields, config)
        attempt("input", examples.check_classes, config.method.kind, source)
        divides = attempt("input", inputs.check_batch, c, mesh, parts=config.optim.grad_accum_steps)
        batch_layout = attempt("input", inputs.batch_layout, c, source, mesh, after=[divides])
        num_examples, classes = declared_or_read(c, source)

        # Model and step. Of a run that goes on, model.name=None means its own checkpoint.
        is_new = not checkpoint_dir.steps(workdir / "checkpoints")
        init = config.init if is_new else dataclasses.replace(config.init, weights=str(workdir))
        step = updates.step_parts(
            dataclasses.replace(config, init=init),
            mesh,
            num_examples=num_examples,
            num_classes=classes.number,
            class_names=() if source is NOT_MADE else source.class_names,
            source=None if source is NOT_MADE else source,
            attempt=attempt,
        )
        description = attempt("model", networks.description, config.init, step.model, source)

        # Evaluations, and what the devices have to hold.
        data, evals = evaluations.open_all(config, classes, mesh, step, attempt)
        cached = inputs.cached_bytes(c, mesh, source, data.values(), attempt)
        attempt("memory", memory.check_fits, step.layout, batch_layout, classes.number, cached)

        # First parameters and outputs.
        trained, shapes = _first_weights(config, is_new, step, source, attempt)
        attempt("log", outputs.check_log, config.log)
        attempt("workdir", workdirs.check_writable, workdir)
        saved = (workdir, step.layout, step.durations)
        attempt("workdir", outputs.check_disk_space, config.checkpoint, *saved)
        return cls(
            requested=config if requested is None else requested,
            config=config,
            workdir=workdir,
            mesh=mesh,
            source=source,
            batch_layout=batch_layout,
            step=step,
            eval_data=data,
            cached_bytes=cached,
            evals=evals,
            trained=trained,
            shapes=shapes,
            description=description,
        )

    def fingerprints(self) -> dict[str, list[str]]:
        """Fingerprints of all data and weights that are read, by the fields that name them."""
        teacher = self.step.layout.teacher
        read = {"init.weights": self.trained, "method.teacher": teacher and teacher.model.about}
        data = {f"evals.{name}": each.parts for name, each in self.eval_data.items()}
        return (
            {"input": [self.source.fingerprint]}
            | {name: [part.source.fingerprint for part in parts] for name, parts in data.items()}
            | {name: [about.fingerprint()] for name, about in read.items() if about}
        )

    def feed(self, *, start_step: int) -> Feed:
        """The batches from a step on."""
        c, layout = self.config, self.batch_layout
        return inputs.train_feed(c.input, self.source, layout, seed=c.seed, start_step=start_step)

    def compile_update(self, screen: Screen) -> Callable[..., Any]:
        """The program of a step, for the state as in `layout.in_steps`."""
        update, state = updates.update(self.config, self.step), self.step.layout.in_steps
        with announce.compiling(screen):
            return lower_update(update, state, self.batch_layout).compile()

    @functools.cached_property
    def distributions(self) -> Callable[..., Any]:
        """Computes the histograms of an update; see learning/histograms.py."""
        from vit_jax.learning.histograms import make_distributions

        return make_distributions(self.step.layout, self.step.objective, self.config.seed)


def _first_weights(
    config: RunConfig, is_new: bool, step: StepParts, source: Source, attempt: Attempt
) -> tuple[weights.CheckpointInfo | None, dict[str, tuple[int, ...]]]:
    """init.weights, None if a run does not start from them, and the shapes that it takes."""
    c = config.init
    checked = attempt("init", networks.check_init, c)
    if not (is_new and c.weights):
        return None, {}
    from vit_jax.run.parts import warm_start

    # With model.name=None the model was made from them: their errors are reported already.
    needed = [checked, step.model] if config.model.name is None else [checked]
    trained = attempt("init", networks.trained_weights, c, after=needed)
    shapes = attempt("init", warm_start.shapes_by_config, c, trained, step.layout, step.model)
    attempt("init", warm_start.check_head, c, trained, source, after=[shapes])
    return trained, shapes
