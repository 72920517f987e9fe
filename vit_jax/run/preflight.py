"""What can be known before the chips start: looked at first, and all that is wrong told at once.

Nothing is compiled, nothing allocated on the devices, nothing written. `train --check` (check.py)
looks closer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from etils import epath
from jax.sharding import Mesh

from vit_jax.config import InputConfig, RunConfig
from vit_jax.core.errors import UserError
from vit_jax.core.problems import MISSING, Problems
from vit_jax.optim.schedules import Schedule
from vit_jax.run import build, memory
from vit_jax.store import checkpoint_dir, disk_space
from vit_jax.training.evals import Evals
from vit_jax.training.objective import Batch, Objective
from vit_jax.training.state import Layout, total_bytes
from vit_jax.training.warm_start import shapes_to_take
from vit_jax.weights import CheckpointInfo

if TYPE_CHECKING:
    from vit_jax.data.source import Source


class Prepared(NamedTuple):
    """The parts of a run; shapes and shardings only.

    Attributes:
      eval_data: the data of each evaluation.
      trained: what init.weights says about itself; None if the run does not start from it.
      shapes: of what is taken from there, by the parameters' names.
      description: what the run's checkpoints say about themselves.
    """

    mesh: Mesh
    source: Source
    batch_layout: Batch
    plan: build.Plan
    model: build.Model
    schedule: Schedule
    layout: Layout
    objective: Objective
    eval_data: dict[str, build.EvalData]
    evals: Evals
    trained: CheckpointInfo | None
    shapes: dict[str, tuple[int, ...]]
    description: dict[str, Any]


class Counts(NamedTuple):
    """What of the data the plan and the model depend on."""

    num_examples: int
    num_classes: int
    class_names: tuple[str, ...] | None


def prepare(config: RunConfig, workdir: epath.Path) -> Prepared:
    """The parts of the run of `config` in `workdir`.

    Raises:
      UserError: config, data, weights or disk are not right; lists all that is wrong.
    """
    problems = Problems()
    parts = look(config, workdir, problems)
    problems.tell()
    return parts


def look(config: RunConfig, workdir: epath.Path, problems: Problems) -> Prepared:
    """As `prepare`, but adds to `problems` instead; what they prevent is MISSING."""
    look = problems.look
    # Where.
    mesh = look("mesh", lambda: build.mesh(config.mesh))
    source = look("input", lambda: build.source(config.input))
    look("input", lambda mesh: build.check_batch(config, mesh), mesh)
    batch_layout = look("input", lambda s, m: build.batch_layout(config, s, m), source, mesh)
    counts = _declared(config.input) if source is MISSING else _found(source)
    plan = look("plan", lambda c: build.plan(config, num_examples=c.num_examples), counts)

    # What.
    model = look("model", lambda c: build.model(config, num_classes=c.num_classes), counts)
    schedule = look("optim", lambda plan: build.schedule(config.optim, plan), plan)
    layout = look(
        "optim",
        lambda model, schedule, mesh: build.layout(config, model.make, schedule, mesh),
        model,
        schedule,
        mesh,
    )
    look(
        "memory",
        lambda layout, batch, c: memory.check_fits(layout, batch, c.num_classes),
        layout,
        batch_layout,
        counts,
    )
    objective = look("loss", lambda c: build.objective(config, num_classes=c.num_classes), counts)
    description = look("model", build.description, model, source)

    # How good.
    kinds = look("evals", lambda: build.check_evals(config))
    eval_data = {
        name: look(
            f"evals.{name}",
            lambda counts, mesh, model, _, name=name: build.eval_data(
                name,
                config,
                build.Classes(counts.num_classes, counts.class_names),
                mesh,
                model.preprocess.image_size,
            ),
            counts,
            mesh,
            model,
            kinds,
        )
        for name in config.evals
    }
    evals = look(
        "evals",
        lambda layout, mesh, objective, plan, *_: build.evals(
            config, eval_data, layout.graph, mesh, objective, total_steps=plan.total_steps
        ),
        layout,
        mesh,
        objective,
        plan,
        *eval_data.values(),
    )

    # From where, and where to.
    is_new = not checkpoint_dir.steps(workdir / "checkpoints")
    init = look("init", lambda: build.check_init(config.init))
    # With model.name=None the model was made from them: what is wrong with them is told already.
    needed = (init, model) if config.model.name is None else (init,)
    trained = look(
        "init",
        lambda *_: build.trained_weights(config.init) if config.init.weights and is_new else None,
        *needed,
    )
    shapes = look("init", lambda *parts: _shapes(config, *parts), trained, layout, model)
    look("log", lambda: build.check_log(config.log))
    look("workdir", lambda: disk_space.check_writable(workdir))
    look(
        "workdir",
        lambda layout, plan: disk_space.check_disk_space(
            workdir,
            checkpoint_bytes=total_bytes(layout.state),
            keep_last=config.checkpoint.keep_last,
            every_steps=config.checkpoint.every_steps,
            total_steps=plan.total_steps,
        ),
        layout,
        plan,
    )
    return Prepared(
        mesh,
        source,
        batch_layout,
        plan,
        model,
        schedule,
        layout,
        objective,
        eval_data,
        evals,
        trained,
        shapes,
        description,
    )


def _found(source: Source) -> Counts:
    return Counts(source.num_examples, source.num_classes, source.class_names)


def _declared(c: InputConfig) -> Counts:
    """What the config says of data that are not there: enough to look at all the rest."""
    try:
        num_examples = build.declared_examples(c)
    except UserError:  # told by what looked at the data
        return MISSING
    if num_examples is None or c.num_classes is None:
        return MISSING
    return Counts(num_examples, c.num_classes, None)


def _shapes(
    config: RunConfig, trained: CheckpointInfo | None, layout: Layout, model: build.Model
) -> dict[str, tuple[int, ...]]:
    """Of the parameters that init.weights gives."""
    if trained is None:
        return {}
    return shapes_to_take(
        layout.state.params, trained, model.info, head=config.init.head, ema=config.init.ema
    )
