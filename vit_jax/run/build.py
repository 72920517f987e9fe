"""From a config to the objects of a run: `Run.build`.

Everything that can be known before the chips start is checked, and all errors are reported at once.
Nothing is compiled, nothing allocated on the devices, nothing written. `train --check` (check.py)
looks closer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from etils import epath

from vit_jax import weights
from vit_jax.cluster.peers import Peers
from vit_jax.config import RunConfig
from vit_jax.core.arrays import RGB
from vit_jax.core.errors import NOT_MADE, ErrorCollector
from vit_jax.core.screen import Screen
from vit_jax.learning.feed import Feed
from vit_jax.learning.step import lower_update
from vit_jax.run import announce, memory, processes
from vit_jax.run.parts import evaluations, examples, inputs, networks, outputs, pins, updates
from vit_jax.run.parts.eval_data import declared_or_read
from vit_jax.run.parts.examples import SplitOfRun
from vit_jax.store import checkpoint_dir
from vit_jax.store import workdir as workdirs


class Run:
    """The objects of a run: shapes and shardings, and data that are not read yet.

    Parts that an error prevents are NOT_MADE, and the error is in `errors`.

    Attributes:
      requested: the config as it was given.
      config: the same, where names of weights (hf:...) are pinned to what they mean; see pins.py.
      mesh: the devices.
      source: the training data.
      batch_layout: shapes and shardings of a training batch.
      parts: the parts of a step, among them the model and the durations.
      description: the description in the run's own checkpoints.
      eval_data, evals: the data of the evaluations, and these.
      cached_bytes: bytes of the images that each device keeps.
      trained: the description of init.weights; None if the run does not start from them.
      shapes: shapes of the arrays taken from there, by the parameters' names.
    """

    def __init__(
        self,
        config: RunConfig,
        workdir: epath.Path,
        errors: ErrorCollector,
        requested: RunConfig | None = None,
    ) -> None:
        attempt, c = errors.attempt, config.input
        self.config, self.workdir, self.requested = config, workdir, requested or config
        # Devices and data.
        self.mesh = mesh = attempt("mesh", inputs.mesh, config.mesh)
        self.source = source = attempt("input", examples.source, c)
        attempt("input", examples.check_fields, config)
        attempt("input", examples.check_classes, config.method.kind, source)
        attempt("input", examples.check_channels, c, source)
        split = attempt("input", SplitOfRun, "input", source, c.preprocess)
        attempt("input", examples.check_maps, "method", config.method, split, c.cache)
        parts, pixels = config.optim.grad_accum_steps, RGB if source is NOT_MADE else source.pixels
        divides = attempt("input", inputs.check_batch, c, mesh, parts=parts, pixels=pixels)
        self.batch_layout = attempt("input", inputs.batch_layout, c, source, mesh, after=[divides])
        num_examples, classes = declared_or_read(c, source)

        # Model and step. Of a run that goes on, model.name=None means its own checkpoint.
        is_new = not checkpoint_dir.steps(workdir / "checkpoints")
        init = config.init if is_new else dataclasses.replace(config.init, weights=str(workdir))
        self.parts = step = updates.step_parts(
            dataclasses.replace(config, init=init),
            mesh,
            num_examples=num_examples,
            num_classes=classes.number,
            class_names=() if source is NOT_MADE else source.class_names,
            source=None if source is NOT_MADE else source,
            attempt=attempt,
        )
        self.description = attempt("model", networks.description, config.init, step.model, source)

        # Evaluations, and what the devices have to hold.
        self.eval_data, self.evals = evaluations.open_all(config, classes, mesh, step, attempt)
        self.cached_bytes = inputs.cached_bytes(c, mesh, source, self.eval_data.values(), attempt)
        sizes = step.layout, self.batch_layout, classes.number, self.cached_bytes
        attempt("memory", memory.check_fits, *sizes)

        # First parameters and outputs.
        self.trained: weights.CheckpointInfo | None = None
        self.shapes: dict[str, tuple[int, ...]] = {}
        if is_new and config.init.weights:
            from vit_jax.run.parts.warm_start import open_weights

            self.trained, self.shapes = open_weights(config, step, source, attempt)
        attempt("log", outputs.check_log, config.log)
        attempt("workdir", workdirs.check_writable, workdir)
        saved = (workdir, step.layout, step.durations)
        attempt("workdir", outputs.check_disk_space, config.checkpoint, *saved)

    @classmethod
    def build(cls, config: RunConfig, workdir: epath.Path, peers: Peers | None = None) -> Run:
        """The run of `config` in `workdir`.

        Weights by name mean the same at every start of a run, and to all of its processes, which
        have to find the same data and weights.

        Raises:
          UserError: config, data, weights or disk are wrong; lists all errors.
        """
        errors, peers = ErrorCollector(), Peers.alone() if peers is None else peers
        run = cls(pins.pin_weights(config, workdir, peers), workdir, errors, requested=config)
        errors.raise_all()
        if peers.several:
            processes.check_same_files(peers, run.fingerprints())
        return run

    def fingerprints(self) -> dict[str, list[str]]:
        """Fingerprints of all data and weights that are read, by the fields that name them."""
        teacher = self.parts.layout.teacher
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
        update, state = updates.update(self.config, self.parts), self.parts.layout.in_steps
        with announce.compiling(screen):
            return lower_update(update, state, self.batch_layout).compile()
