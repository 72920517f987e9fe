"""The state that training carries from step to step, and its sharding."""

from __future__ import annotations

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from etils import epath
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax.core import axes, pytrees
from vit_jax.core.errors import NonFiniteError
from vit_jax.learning.method import STATELESS, Method, with_state
from vit_jax.parallel import mesh as meshes
from vit_jax.parallel import zero1

if TYPE_CHECKING:
    from vit_jax.learning.teacher import Teacher

EMA_ENDING = "_ema"  # for evaluations of the EMA: "test_ema/accuracy"


class TrainState(NamedTuple):
    """The state after `step` updates: a pure function of (config, seed, step)."""

    step: Any  # int32 [], number of updates
    # Nested dictionary of float32 parameters, repeated blocks stacked; among them the running
    # statistics of batch norms.
    params: Any
    opt_state: Any  # optax's, for all but these statistics
    ema: Any  # exponential moving average of the parameters, as `params`; {} if there is none
    # Arrays that the method carries from step to step, nested; {} for most methods.
    method_state: Any
    # int32 [], the first update that was not finite, or whose loss or gradient was not; or 0.
    first_bad_step: Any
    first_bad_values: Any  # float32 [2], its loss and its gradients' norm

    @property
    def first_bad(self) -> dict[str, Any]:
        """The scalars by which a run learns of a step that was not finite."""
        return {"first_bad_step": self.first_bad_step, "first_bad_values": self.first_bad_values}


def random_stream(seed: int, name: str) -> jax.Array:
    """The key of one named stream ("params", "dropout", "mixing") of a run.

    Each step folds its number into it: no random state is saved or carried along, so step k draws
    the same numbers in a run that was killed ten times as in one that never was.
    """
    # A checksum, not hash(), which Python salts anew in every process.
    return jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()) & 0x7FFFFFFF)


def moving_average(ema: Any, decay: Any, params: Any, opt_state: Any) -> Any:
    """The exponential moving average after an update."""
    return jax.tree.map(lambda a, p: a + (1.0 - decay) * (p - a), ema, params)


def kept_by(average: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any, Any], Any]:
    """`moving_average` of weights that an optimizer keeps; running statistics are as trained."""

    def after(ema: Any, decay: Any, params: Any, opt_state: Any) -> Any:
        averaged = average(opt_state, pytrees.without_statistics(params))
        return pytrees.unflatten({**pytrees.flatten(params), **pytrees.flatten(averaged)})

    return after


def pure_dict(module: nnx.Module) -> Any:
    """The parameters of a module, as nested dictionaries; grouped layers are stacked."""
    layers = lambda x: isinstance(x, pytrees.Layers)
    params = nnx.to_pure_dict(nnx.state(module, nnx.Param))
    return jax.tree.map(lambda x: jnp.stack(x.each) if layers(x) else x, params, is_leaf=layers)


@dataclasses.dataclass(frozen=True)
class StateLayout:
    """Shapes, dtypes and shardings of a TrainState, and the graph that its parameters belong to."""

    # `nnx.Rngs` -> the model, and the module of the method's state.
    make: Callable[[nnx.Rngs], tuple[nnx.Module, nnx.Module]]
    # Merges with parameters to the model; `method_graph` likewise with its state.
    graph: nnx.GraphDef
    method_graph: nnx.GraphDef
    optimizer: optax.GradientTransformation
    state: TrainState  # of `jax.ShapeDtypeStruct` with shardings
    mesh: Mesh  # the mesh of these shardings
    ema_decay: float | None  # the EMA's decay per step, unless a method has its own; None: no EMA
    # `jax.ShapeDtypeStruct`, nested as the parameters, of what a step computes with; its dtype is
    # that of the products.
    computed: Any
    # The same of gradients and updates; its dtype holds all values of the float32 gradients of one
    # pass through the model, but not of sums of several.
    gradients: Any
    # Axes of parameters in steps that are sharded less than the rules say, with their names.
    unsharded: dict[axes.UnshardedAxis, list[str]]
    # Further such axes of the state, gradients and updates.
    unsharded_state: dict[axes.UnshardedAxis, list[str]]
    # Whether steps work on a state whose stacked kernels are one array per layer (core/pytrees.py),
    # as by default on GPUs and TPUs: gradients then need not be stacked. Nothing else sees that
    # form.
    unstacked_steps: bool = False
    stored: TrainState | None = None  # of the layout in steps: that of checkpoints
    # A model beside the state, which no step changes; None for most runs.
    teacher: Teacher | None = None
    # (the EMA, decay, parameters and optimizer's state after an update) -> the next EMA.
    average: Callable[[Any, Any, Any, Any], Any] = moving_average

    @property
    def teacher_params(self) -> tuple[Any, ...]:
        """The step's arguments behind state and batch, by shapes and shardings: () or (params,)."""
        return () if self.teacher is None else (self.teacher.model.layout,)

    def read_teacher_params(self) -> tuple[Any, ...]:
        """The arrays of `teacher_params`. DamagedError if they cannot be read."""
        return () if self.teacher is None else (self.teacher.model.read(),)

    @property
    def update_shardings(self) -> Any:
        """Shardings of gradients and updates, nested as the parameters."""
        return jax.tree.map(lambda x: x.sharding, self.gradients)

    @functools.cached_property
    def in_steps(self) -> StateLayout:
        """The layout that steps are compiled for: with unstacked layers, or this one."""
        if not self.unstacked_steps:
            return self
        state, computed, gradients = (
            pytrees.unstack_layers(x, _layers) for x in (self.state, self.computed, self.gradients)
        )
        state = state._replace(method_state=self.state.method_state)
        layouts = {"state": state, "computed": computed, "gradients": gradients}
        return dataclasses.replace(self, **layouts, stored=self.state)

    def unstack_layers(self, state: TrainState) -> TrainState:
        """Brings the state into the form of `in_steps`; its arrays are freed as they are cut."""
        form: Any = jax.tree.structure(self.in_steps.state.params)
        if not self.unstacked_steps or jax.tree.structure(state.params) == form:
            return state
        rest = state._replace(method_state={})  # which stays stacked
        return pytrees.unstack_layers(rest, _cut)._replace(method_state=state.method_state)

    def stack_layers(self, state: TrainState) -> TrainState:
        """Undoes `unstack_layers`: checkpoints, evaluations and reports see this form."""
        return pytrees.stack_layers(state, _join) if self.unstacked_steps else state

    def init(self, seed: int) -> TrainState:
        """A fresh state; every device computes only its shard."""

        def fresh(key: jax.Array) -> TrainState:
            params, method_state = map(pure_dict, self.make(nnx.Rngs(params=key)))
            return _start(params, method_state, self.optimizer, with_ema=self.ema_decay is not None)

        shardings = jax.tree.map(lambda x: x.sharding, self.stored or self.state)
        with jax.set_mesh(self.mesh):
            state = jax.jit(fresh, out_shardings=shardings)(random_stream(seed, "params"))
        return self.unstack_layers(state) if self.stored else state

    def weights(self, state: TrainState) -> dict[str, Any]:
        """The parameters to evaluate: the model's, and their EMA, if there is one.

        Returns them by the ending of their evaluations' names, "" and EMA_ENDING. They lie on the
        devices as in a step.
        """
        weights = {"": state.params} | ({EMA_ENDING: state.ema} if state.ema else {})
        if not any(jax.tree.leaves(zero1.divided(self.state.params, self.computed))):
            return weights
        return {ending: self._gather(params) for ending, params in weights.items()}

    @functools.cached_property
    def _gather(self) -> Callable[[Any], Any]:
        """Parameters as they lie between steps -> as they lie in one."""
        shardings = jax.tree.map(lambda x: x.sharding, self.computed)
        return jax.jit(lambda params: params, out_shardings=shardings)

    def with_params(self, state: TrainState, params: Any) -> TrainState:
        """`state` with other parameters, at which its EMA starts too."""
        ema = {} if self.ema_decay is None else jax.tree.map(jnp.copy, params)
        return state._replace(params=params, ema=ema)


def state_layout(
    make_model: Callable[[nnx.Rngs], nnx.Module],
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    ema_decay: float | None,
    shard_optimizer: bool,
    unstacked_steps: bool = False,
    teacher: Teacher | None = None,
    average: Callable[[Any, Any], Any] | None = None,
    method: Method = STATELESS,
) -> StateLayout:
    """The layout of a run's state; nothing is allocated.

    The EMA is sharded as the parameters are, and so are the optimizer's arrays that have
    a parameter's shape; with `shard_optimizer` all of them over `data` too (parallel/zero1.py). The
    others, such as the rows' and columns' means of a factored moment, are small and replicated.
    `unstacked_steps` is for optimizers that treat every number of an array alike. `average`, of the
    optimizer's state and the parameters that it has, stands in for the EMA.
    """
    make = functools.partial(with_state, method, make_model)
    both = nnx.eval_shape(lambda: make(nnx.Rngs(params=0)))
    (graph, variables), (method_graph, carried) = (nnx.split(x, nnx.Param) for x in both)
    rules = meshes.SHARDED_STATE_RULES if shard_optimizer else meshes.RULES
    shardings = meshes.param_shardings(variables, mesh, rules)
    params = nnx.to_pure_dict(variables)
    with_ema = ema_decay is not None
    shapes = jax.eval_shape(lambda p: _start(p, {}, optimizer, with_ema), params)
    replicated = meshes.replicated(mesh)
    placed = meshes.param_layout(variables, mesh, rules)

    def like(x: Any, param: jax.ShapeDtypeStruct, sharding: Any) -> Any:
        if isinstance(x, optax.MaskedNode):  # nothing is kept for this parameter
            return x
        return _placed(x, sharding if x.shape == param.shape else replicated)

    state = TrainState(
        step=_placed(shapes.step, replicated),
        params=placed,
        opt_state=optax.tree_map_params(
            optimizer,
            like,
            shapes.opt_state,
            pytrees.without_statistics(placed),
            pytrees.without_statistics(shardings),
            transform_non_params=lambda x: _placed(x, replicated),
            is_leaf=lambda x: isinstance(x, optax.MaskedNode),
        ),
        ema=placed if with_ema else {},
        method_state=meshes.param_layout(carried, mesh, rules),
        first_bad_step=_placed(shapes.first_bad_step, replicated),
        first_bad_values=_placed(shapes.first_bad_values, replicated),
    )
    unsharded = meshes.unsharded_params(variables, mesh, meshes.RULES)
    further = meshes.unsharded_params(variables, mesh, rules)
    return StateLayout(
        make,
        graph,
        method_graph,
        optimizer,
        state,
        mesh,
        ema_decay,
        _in_dtype("compute", variables, meshes.param_shardings(variables, mesh)),
        _in_dtype("gradient", variables, shardings),
        unsharded,
        {cause: names for cause, names in further.items() if cause not in unsharded},
        unstacked_steps,
        teacher=teacher,
        average=moving_average if average is None else kept_by(average),
    )


def total_bytes(tree: object) -> int:
    """Bytes of the whole arrays of a tree, however they are sharded."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def device_bytes(tree: object) -> int:
    """Bytes of a tree of arrays on one device, by their shardings."""
    return sum(
        int(np.prod(x.sharding.shard_shape(x.shape))) * x.dtype.itemsize
        for x in jax.tree.leaves(tree)
    )


def _start(
    params: Any, method_state: Any, optimizer: optax.GradientTransformation, with_ema: bool
) -> TrainState:
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=optimizer.init(pytrees.without_statistics(params)),
        ema=params if with_ema else {},
        method_state=method_state,
        first_bad_step=jnp.zeros((), jnp.int32),
        first_bad_values=jnp.zeros(2, jnp.float32),
    )


def _placed(x: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def _in_dtype(metadata: str, variables: nnx.State, shardings: Any) -> Any:
    """Layouts like the parameters', in the dtype that their metadata of this name say."""
    dtypes = jax.tree.map(
        lambda v: jnp.dtype(v.get_metadata().get(metadata, jnp.float32)),
        variables,
        is_leaf=lambda x: isinstance(x, nnx.Param),
    )
    return jax.tree.map(
        lambda x, dtype, sharding: jax.ShapeDtypeStruct(x.shape, dtype, sharding=sharding),
        nnx.to_pure_dict(variables),
        nnx.to_pure_dict(dtypes),
        shardings,
    )


def _layers(x: jax.ShapeDtypeStruct) -> list[jax.ShapeDtypeStruct]:
    """The layouts of a stacked array's layers."""
    one = jax.ShapeDtypeStruct(x.shape[1:], x.dtype, sharding=_without_layers(x.sharding))
    return [one] * x.shape[0]


def _without_layers(s: Any) -> NamedSharding:
    return NamedSharding(s.mesh, PartitionSpec(*s.spec[1:]))


def _of_stack(s: Any) -> NamedSharding:
    return NamedSharding(s.mesh, PartitionSpec(None, *s.spec))


def _cut(x: jax.Array) -> tuple[jax.Array, ...]:
    """The layers of a stacked array, which is freed."""
    cut = jax.jit(tuple, out_shardings=_without_layers(x.sharding))
    layers = jax.block_until_ready(cut(x))  # else the next array were cut before this one is free
    x.delete()
    return layers


def _join(layers: Sequence[jax.Array]) -> jax.Array:
    """The stacked array of layers, which are freed."""
    join = jax.jit(_stack, out_shardings=_of_stack(layers[0].sharding))
    stacked = jax.block_until_ready(join(*layers))
    for layer in layers:
        layer.delete()
    return stacked


def _stack(*layers: jax.Array) -> jax.Array:
    return jnp.stack(layers)


def stop_if_not_finite(
    scalars: Mapping[str, Any], skipped: Collection[int], workdir: epath.PathLike
) -> None:
    """Raises NonFiniteError if this step or one before it had no finite loss and gradients.

    skipped, workdir: for the advice: steps that are left out already; where the run is.
    """
    step = int(scalars["first_bad_step"])
    if not step:
        return
    loss, norm = (float(x) for x in scalars["first_bad_values"])
    finite = math.isfinite(loss) and math.isfinite(norm)
    skip_steps = ",".join(map(str, sorted({*skipped, step})))
    update = ", and an update that is not finite (optim.eps, perhaps)" if finite else ""
    raise NonFiniteError(
        f"Step {step:,}: loss {loss}, gradient norm {norm}{update}. Nothing was saved from that "
        "step on. Usual cures: a lower optim.lr, a longer optim.warmup_*, optim.grad_clip_norm, "
        "model.dtype=float32. Started again, the run meets the same batch: look at its images "
        f"(vit-jax preview --workdir {workdir} --step {step} --output step{step}.png), or leave it "
        f"out by --config.input.skip_steps={skip_steps}."
    )


def skip_update(
    state: TrainState, batch: Any, *teacher_params: Any
) -> tuple[TrainState, dict[str, jax.Array]]:
    """Replaces an update: the step is counted, also by optax's schedules; its batch is ignored.

    Schedules and random numbers of later steps are as if the step had been trained on.
    """
    del batch, teacher_params
    # A schedule's state is a count alone; the counts of moments, which stay, are beside them.
    opt_state = _counted(state.opt_state, "count", lambda fields: fields == ("count",))
    opt_state = _counted(opt_state, "step_count", lambda fields: "step_count" in fields)
    state = state._replace(step=_next(state.step), opt_state=opt_state)
    # Copies, since the state's own arrays are donated to the next update.
    return state, jax.tree.map(jnp.copy, state.first_bad)


def _counted(opt_state: Any, name: str, has_count: Callable[[tuple[str, ...]], bool]) -> Any:
    """The state with one more step in the counts of this name, of tuples with such fields."""
    is_counter = lambda x: has_count(getattr(x, "_fields", ()))
    count = lambda x: x._replace(**{name: _next(getattr(x, name))}) if is_counter(x) else x
    return jax.tree.map(count, opt_state, is_leaf=is_counter)


_next = jax.jit(lambda count: count + 1)
