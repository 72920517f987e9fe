"""Each field of a config changes the run built from it; nothing is compiled or read."""

import copy
import dataclasses
import functools
import re
import types
from pathlib import Path

import jax
import numpy as np
import pytest
from etils import epath
from flax import nnx

from tests.conftest import TINY_RUN
from tests.messages import refused
from vit_jax import config as configs
from vit_jax import train, weights
from vit_jax.core import axes
from vit_jax.core.schema import entry_points
from vit_jax.core.screen import Screen
from vit_jax.data import pipeline
from vit_jax.data.source import MapKind
from vit_jax.data.sources import image_table, mask_folder, pseudo_labels, relabelled, tfds
from vit_jax.data.sources.table import Synthetic
from vit_jax.evals.kind import EvalConfig
from vit_jax.learning.loggers import mlflow_runs, tensorboard, weights_and_biases
from vit_jax.learning.state import TrainState
from vit_jax.parallel import mesh as meshes
from vit_jax.parallel.products import Products
from vit_jax.run import announce, environment, processes
from vit_jax.run.parts import eval_data, evaluations, examples, inputs, outputs, updates, warm_start
from vit_jax.run.parts.durations import make_durations
from vit_jax.run.parts.eval_data import ModelClasses

EVAL = ("evals.test.source=synthetic", "evals.test.preprocess=decode|resize(8)")
FROZEN = (*EVAL, "evals.test.kind=frozen", "evals.test.source=tfds")
MASKS = (*EVAL, "evals.test.kind=segmentation", "evals.test.source=mask_folder")
FOLDER = ("input.source=tfds",)  # the stand-ins below
TABLE = ("input.source=image_table",)
MIXTURE = (
    "input.num_examples=none",
    "input.mixture.a.num_examples=64",
    "input.mixture.b.num_examples=64",
)
ADAPTERS = ("lora.kernels=.*/fc1/kernel",)
WEIGHTS = ("init.weights=/weights",)
HYBRID = (
    "model.name=R50+ViT-B/16",
    "model.units=1,1",
    "model.root_width=32",
    "input.preprocess=decode|resize(16)",
)
ROTARY = ("model.position_embedding=rotary_axial",)
EFFICIENT = (
    "model.name=EfficientNet-0.1x0.1",
    *(f"model.{field}=none" for field in ("depth", "width", "mlp_dim", "num_heads")),
)

# Another value of each field. Unlisted fields: by type.
VALUES: dict[str, object] = {
    "model.name": "ViT-Ti/2", "model.width": 32, "model.mlp_dim": 64, "model.num_heads": 1,
    "model.depth": 2, "model.dtype": "bfloat16", "model.mlp": "swiglu", "model.gelu": "exact",
    "model.parallel": True, "model.qk_norm": True, "model.qkv_bias": "none",
    "model.dense_bias": False, "model.norm": "rms", "model.norm_epsilon": 1e-3,
    "model.layer_scale": 0.1, "model.dropout": 0.1, "model.attention_dropout": 0.1,
    "model.norm_stream": True, "model.norm_branch": True, "model.patch_bias": False,
    "model.patch_norm": True, "model.pre_norm": True, "model.final_norm": "none",
    "model.attention_norm": True, "model.mlp_norm": True,
    "model.initialization": "deit", "model.channels": 4,
    "model.logit_cap": 0.5, "model.value_residual": 0.5,
    "model.projection": 8, "model.unit_features": True,
    "model.softmax_dtype": "bfloat16", "model.head_bias": -10.0, "model.scan": True,
    "model.remat": "full", "model.pool": "avg", "model.pre_logits": True,
    "model.position_embedding": "sincos_2d", "model.position_at": "layers",
    "model.class_position": False, "model.registers": 1, "model.distillation_token": True,
    "input.preprocess": "decode|resize(8)|flip_lr", "input.batch_size": 32,
    "input.num_examples": 48, "input.num_classes": 5, "input.subset_fraction": 0.5,
    "input.subset_examples": 10, "input.subset_per_class": 2, "input.balance": "class",
    "input.repeats": 2, "input.mean": "0.1,0.2,0.3", "input.std": "0.1,0.2,0.3",
    "input.pseudo_labels": "a.npz", "input.cache": "ram", "input.skip_steps": "3",
    "input.on_bad_image": "skip", "method.kind": "masked_patch", "loss.kind": "sigmoid",
    "loss.class_weights": "1,2,3,4", "optim.name": "lion", "optim.schedule": "cosine",
    "optim.mu_dtype": "bfloat16", "optim.warmup": "reciprocal",
    "optim.warmup_steps": 3, "optim.warmup_epochs": 0.25,
    "optim.warmup_examples": 64, "optim.freeze": "patches/.*", "optim.lr_multipliers": "head/.*=2",
    "optim.layer_decay": 0.5, "optim.ema_decay": 0.9, "total.steps": 8, "total.epochs": 2.0,
    "total.examples": 160, "mesh.data": 1, "checkpoint.every_steps": 2,
    "checkpoint.keep_every_steps": 2000, "log.loggers": "listed", "log.wandb_project": "project",
    "log.mlflow_experiment": "experiment", "log.histograms_every_steps": 2,
    "log.profile_at_step": 2, "log.peak_tflops": 1.0, "init.weights": "/weights",
    "lora.kernels": ".*/fc1/kernel",
}  # fmt: skip
# Likewise, with the overrides that they need.
CHANGES: dict[str, tuple[object, tuple[str, ...]]] = {
    "model.rotary_base": (10.0, ROTARY),
    "model.rotary_grid": (16, ROTARY),
    "model.rotary_offset": (1.0, ROTARY),
    "model.rotary_columns_first": (True, ROTARY),
    "model.absolute_positions": (True, ROTARY),
    "model.pool_heads": (1, ("model.pool=map", "model.num_heads=2")),
    "model.pool_mlp_dim": (16, ("model.pool=map",)),
    "model.units": ("1,2", HYBRID),
    "model.dense": ("conv", ("model.dense=linear", "method.kind=segmentation")),
    "model.root_width": (64, HYBRID),
    "model.position_hidden": (8, ("model.position_embedding=relative_mlp",)),
    "model.class_token": (True, ("model.pool=avg",)),
    "model.pool_prefix": (True, ("model.pool=map", "model.class_token=true")),
    "model.gradient_dtype": ("float32", ("model.dtype=bfloat16",)),
    "model.stochastic_depth": (0.5, ("model.depth=2",)),
    "model.stochastic_depth_constant": (True, ("model.depth=2", "model.stochastic_depth=0.5")),
    "model.width_coefficient": (0.5, EFFICIENT),
    "model.depth_coefficient": (0.6, EFFICIENT),
    "model.padding": ("symmetric", EFFICIENT),
    "model.batch_norm_epsilon": (1e-5, EFFICIENT),
    "model.batch_norm_momentum": (0.9, EFFICIENT),
    "model.frozen_statistics": (True, EFFICIENT),
    "model.residual_dtype": ("float32", ("model.dtype=bfloat16",)),
    "input.source": ("digits", ("input.num_examples=none", "input.num_classes=none", *FOLDER)),
    "input.data_dir": ("/data", FOLDER),
    "input.split": ("validation", FOLDER),
    "input.views": (
        "['decode|resize(8)']",
        ("method.kind=dino", "method.prototypes=8", "method.head_hidden=8",
         "method.head_bottleneck=4"),
    ),
    "input.mixture.<name>.weight": (3.0, MIXTURE),
    "input.mixture.<name>.source": ("tfds", MIXTURE),
    "input.mixture.<name>.data_dir": ("/data", (*MIXTURE, *FOLDER)),
    "input.mixture.<name>.split": ("validation", (*MIXTURE, *FOLDER)),
    "input.mixture.<name>.num_examples": (48, MIXTURE),
    "input.label": ("coarse_label", FOLDER),
    "input.image_column": ("file", TABLE),
    "input.split_column": ("fold", TABLE),
    "input.void": (0, ("input.source=mask_folder",)),
    "input.label_separator": ("|", TABLE),
    "input.label_weights": (False, FOLDER),
    "input.mixture.<name>.pseudo_labels": ("a.npz", MIXTURE),
    "input.cache_bytes": (2**20, ("input.cache=ram",)),
    "loss.binarize_targets": (True, ("loss.kind=sigmoid",)),
    "loss.cutmix_share": (0.2, ("loss.mixup=1", "loss.cutmix=1")),
    "loss.mix_probability": (0.2, ("loss.mixup=1",)),
    "loss.mix_mode": ("element", ("loss.mixup=1",)),
    "loss.mix_until": (0.5, ("loss.mixup=1",)),
    "optim.rsqrt_timescale_steps": (10, ("optim.schedule=rsqrt",)),
    "optim.exponential_factor": (0.5, ("optim.schedule=exponential",)),
    "optim.exponential_epochs": (1.2, ("optim.schedule=exponential",)),
    "optim.arguments": ("b1=0.5", ("optim.name=optax:adam",)),
    "optim.cycle_decay": (0.5, ("optim.cycles=2",)),
    "optim.cooldown_steps": (1, ("optim.schedule=constant",)),
    "optim.cooldown_epochs": (0.25, ("optim.schedule=constant",)),
    "optim.cooldown_examples": (16, ("optim.schedule=constant",)),
    "optim.weight_decay_on": ("all", ("optim.weight_decay=0.1",)),
    "optim.weight_decay_meaning": ("coupled", ("optim.weight_decay=0.1",)),
    "optim.momentum": (0.8, ("optim.name=sgd",)),
    "optim.nesterov": (True, ("optim.name=sgd",)),
    "optim.joint_qkv": (True, ("optim.name=lamb", "optim.weight_decay=0.1")),
    "checkpoint.best_mode": ("max", (*EVAL, "checkpoint.best_metric=test/loss")),
    "checkpoint.best_metric": ("test/accuracy", EVAL),
    "early_stopping.metric": ("test/accuracy", EVAL),
    "early_stopping.mode": ("max", (*EVAL, "early_stopping.metric=test/loss")),
    "evals.<name>.kind": ("frozen", (*EVAL, "evals.test.source=tfds")),
    "evals.<name>.source": ("tfds", EVAL),
    "evals.<name>.data_dir": ("/data", (*EVAL, "evals.test.source=tfds")),
    "evals.<name>.split": ("train", (*EVAL, "evals.test.source=tfds")),
    "evals.<name>.preprocess": ("decode|resize_small(8)|central_crop(8)", EVAL),
    "evals.<name>.batch_size": (8, EVAL),
    "evals.<name>.every_steps": (2, EVAL),
    "evals.<name>.label": ("coarse_label", (*EVAL, "evals.test.source=tfds")),
    "evals.<name>.label_threshold": (0.25, EVAL),
    "evals.<name>.calibration": (True, EVAL),
    "evals.<name>.metrics": ("balanced_accuracy", EVAL),
    "evals.<name>.macro": (True, EVAL),
    "evals.<name>.wrong_images": (3, EVAL),
    "evals.<name>.classes": ("objectnet", EVAL),
    "evals.<name>.labels": ("real.json", EVAL),
    "evals.<name>.per_class": (True, MASKS),
    "evals.<name>.stride": (0.5, MASKS),
    "evals.<name>.shown": (3, MASKS),
    "evals.<name>.pictures": (3, (*EVAL, "evals.test.kind=pictures")),
    "evals.<name>.train_split": ("test", FROZEN),
    "evals.<name>.train_per_class": (12, FROZEN),
    "evals.<name>.shots": ("1,3", FROZEN),
    "evals.<name>.neighbours": ("3,5", FROZEN),
    "evals.<name>.probe_l2": ("0.1,1", FROZEN),
    "evals.<name>.probe_lr": ("0.1,1", FROZEN),
    "evals.<name>.probe_epochs": (3, FROZEN),
    "evals.<name>.seeds": (4, FROZEN),
    "evals.<name>.l2": (1.0, FROZEN),
    "evals.<name>.temperature": (1.0, FROZEN),
    "log.profile_steps": (3, ("log.profile_at_step=2",)),
    "init.ema": (True, WEIGHTS),
    "init.head": ("reset", WEIGHTS),
    "init.channels": ("repeat", WEIGHTS),
    "init.position_resize": ("bicubic", WEIGHTS),
    "lora.rank": (3, ADAPTERS),
    "lora.alpha": (2.0, ADAPTERS),
    "lora.train": ("norm/.*", ADAPTERS),
}  # fmt: skip
BASE = configs.resolve(TINY_RUN, ["model.depth=1"])


def overrides(field):
    """Overrides that the field needs, and the one that changes it."""
    name = field.replace("mixture.<name>", "mixture.a").replace("evals.<name>", "evals.test")
    if field in CHANGES or field in VALUES:
        value, needed = CHANGES.get(field) or (VALUES[field], ())
        return needed, f"{name}={value}"
    value = functools.reduce(getattr, name.split("."), BASE)
    assert value is not None, f"give {field} another value in CHANGES"
    other = {bool: lambda: not value, int: lambda: value + 1, float: lambda: value / 2 + 0.1}
    return (), f"{name}={other[type(value)]()}"


@functools.cache
def resolve(overrides):
    return configs.resolve(TINY_RUN, ["model.depth=1", *overrides])


def as_text(x):
    """An object and its contents as text, without addresses and times."""
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if isinstance(x, np.ndarray | jax.Array):
        return f"{x.dtype} {np.asarray(x).tolist()}"
    if isinstance(x, dict):
        return str({str(k): as_text(v) for k, v in x.items()})
    if isinstance(x, tuple | list):
        return str([as_text(v) for v in x])
    if type(x).__module__.startswith(("vit_jax", "tests")) and hasattr(x, "__dict__"):
        return type(x).__name__ + as_text({k: v for k, v in vars(x).items() if k != "_since"})
    return re.sub(r" at 0x\w+", "", repr(x))


class StandIn:
    """A replacement for `name` that records its arguments."""

    bad_images, wait_secs, num_examples = (), 0.0, 64

    def __init__(self, name, *arguments, **named):
        self.name, self.arguments, self.named = name, arguments, named

    def last(self, name):
        return None

    # Of a log: more of what it is made from.
    def add(self, writer):
        self.arguments += (writer,)

    def __exit__(self, *error):
        return None


class FakeTfds(Synthetic):
    """A data set without files."""

    def __init__(self, request):
        super().__init__(64, 4, request.image_size)
        self.fingerprint = as_text(request._asdict())


class FakeMasks(FakeTfds):
    """Likewise, with masks."""

    maps = (MapKind("mask", 255, 4),)


def other_labels(source, by, where):
    """The source, with a note of what would relabel it."""
    noted = copy.copy(source)
    noted.by = by
    return noted


def pseudo_labelled(source, path, num_classes, **_):
    """The source, with a note of its file."""
    noted = copy.copy(source)
    noted.by, noted.num_classes = path, num_classes
    return noted


def evaluator(c, inputs):
    """Records what an evaluation is made from: its kind's own fields, and what it is given."""
    shared = {f.name for f in dataclasses.fields(EvalConfig)}
    own = {f.name: getattr(c, f.name) for f in dataclasses.fields(c) if f.name not in shared}
    return StandIn(type(c).__name__, own, **vars(inputs))


@pytest.fixture
def stand_ins(monkeypatch):
    """Records calls that would read or write files, or start threads."""
    make = lambda name: functools.partial(StandIn, name)
    fakes = ((tfds, "Tfds", "find_folder"), (image_table, "ImageTable", "find_tables"))
    for module, name, finds in fakes:
        monkeypatch.setattr(module, name, FakeTfds)
        monkeypatch.setattr(module, finds, lambda data_dir, where: "")
    monkeypatch.setattr(mask_folder, "MaskFolder", FakeMasks)
    monkeypatch.setattr(mask_folder, "find_root", lambda data_dir, where: "")
    monkeypatch.setitem(entry_points._added, ("loggers", "listed"), make("listed"))
    for kind in evaluations.KINDS.values():
        monkeypatch.setattr(kind, "make", evaluator)
        monkeypatch.setattr(kind, "numbers", lambda self: ("accuracy",))
    for name in ("train_batches", "eval_batches"):
        monkeypatch.setattr(pipeline, name, make(name))
    for name in ("relabel_by_class", "relabel_by_file"):
        monkeypatch.setattr(relabelled, name, other_labels)
    monkeypatch.setattr(pseudo_labels, "open_pseudo_labelled", pseudo_labelled)
    for module in (inputs, eval_data):
        monkeypatch.setattr(module, "Feed", make("Feed"))
    for name in ("Checkpoints", "RunLog"):
        monkeypatch.setattr(outputs, name, make(name))
    made = make("TensorBoard")
    without_config = lambda *a, config, program, **named: made(*a, **named)  # noqa: PLW0108
    monkeypatch.setattr(tensorboard, "TensorBoard", without_config)
    monkeypatch.setattr(weights_and_biases, "WeightsAndBiases", make("WeightsAndBiases"))
    monkeypatch.setattr(mlflow_runs, "MLflow", make("MLflow"))
    monkeypatch.setattr(weights, "checkpoint_info", lambda path: path)
    monkeypatch.setattr(warm_start, "warm_start", lambda *a, **kw: TrainState(a, kw, *(None,) * 5))
    monkeypatch.setattr(announce, "warm_start", lambda *a: None)


WORKDIR = epath.Path("/workdir")
SOME_STEPS = range(1, 9)


def mesh(config):
    seen = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meshes, "make_mesh", lambda **sizes: seen.update(sizes))
        inputs.mesh(config.mesh)
    return seen


@functools.cache
def one_device():
    return inputs.mesh(BASE.mesh)


def step_parts(config):
    """Source and parts of the step; made once per config."""
    if (key := str(config)) not in STEP_PARTS:
        source = examples.source(config.input)
        counts = {"num_examples": source.num_examples, "num_classes": source.num_classes}
        STEP_PARTS[key] = source, updates.step_parts(config, one_device(), **counts)
    return STEP_PARTS[key]


STEP_PARTS = {}


def data(config):
    source = examples.source(config.input)
    layout = inputs.batch_layout(config.input, source, one_device())
    feed = inputs.train_feed(config.input, source, layout, seed=config.seed, start_step=3)
    batches = feed.arguments[0]
    stream = batches.named.pop("stream")(np.arange(100))
    skipped = outputs.skipped_images(config.input, source, feed, (), start_step=3)
    return source, batches, feed.arguments[1], feed.named, stream, skipped


def durations_of(config):
    plan = make_durations(config, num_examples=examples.source(config.input).num_examples)
    due = [
        [bool(f(step)) for f in (plan.log, plan.save, plan.histograms, plan.skips)]
        for step in SOME_STEPS
    ]
    rates = updates.schedule(config.optim, plan)
    return plan.total_steps, due, [float(rates(step)) for step in SOME_STEPS]


def writing(config):
    store, log = (
        outputs.store(config.checkpoint, WORKDIR),
        outputs.log(config, WORKDIR, start_step=3),
    )
    return store, log, evaluations.early_stopping(config.early_stopping)


def speed(config):
    durations = types.SimpleNamespace(total_steps=6)
    step = types.SimpleNamespace(products=Products(learnt=1), durations=durations)
    return outputs.clock(config, step, one_device(), StandIn("Feed"), start_step=3)


def evals(config):
    classes = ModelClasses(4, None)
    read = {
        name: eval_data.eval_data(name, config, classes, one_device(), (8, 8))
        for name in config.evals
    }
    made = evaluations.evals(config, read, None, None, None, total_steps=6).by_name
    shown = []
    for name, (evaluator, cadence) in made.items():
        shown += [name, evaluator, [cadence(step) for step in SOME_STEPS]]
        evaluator.named.pop("images")
        readers = [evaluator.named.pop("read_train"), evaluator.named.pop("read")]
        for part, reader in zip(read[name].parts, filter(None, readers), strict=True):
            feed, batches = reader.keywords["open_feed"]()
            shown += [part.source, feed.arguments[0], feed.named, batches]
    return shown


def initial_state(config):
    layout = types.SimpleNamespace(init=str, with_params=lambda state, params: state)
    return warm_start.initial_state(config, layout, None, config.init.weights, Screen(quiet=True))


def state(config):
    _, parts = step_parts(config)
    shapes = jax.tree_util.tree_leaves_with_path(
        (parts.layout.state, parts.layout.update_shardings)
    )
    return [str(leaf) for leaf in shapes]


def program(function, *arguments):
    """Traced as for a TPU, where there is a choice of attention."""
    with (
        jax.set_mesh(one_device()),
        axes.use_rules(meshes.RULES),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(axes, "target", lambda: axes.Target("tpu", "TPU v5 lite"))
        traced = jax.make_jaxpr(function)(*arguments)
    return str(traced), traced.consts


def update(config):
    source, parts = step_parts(config)
    batch = inputs.batch_layout(config.input, source, one_device())
    return program(updates.update(config, parts), parts.layout.state, batch)


def init(config):
    make = step_parts(config)[1].layout.make
    return program(
        lambda key: [nnx.to_pure_dict(nnx.state(made)) for made in make(nnx.Rngs(params=key))],
        jax.random.key(0),
    )


# Quick ones first: the first that differs is enough.
PARTS = (durations_of, data, mesh, writing, speed, evals, initial_state, state, update, init)


@functools.cache
def fingerprint(part, overrides):
    return as_text(part(resolve(overrides)))


def test_a_run_is_built_twice_alike(stand_ins):
    needed = {part: EVAL if part is evals else () for part in PARTS}
    first = [fingerprint(part, needed[part]) for part in PARTS]
    STEP_PARTS.clear()
    assert [fingerprint.__wrapped__(part, needed[part]) for part in PARTS] == first


# Not of a run on these devices and with these images: tests below.
OF_OTHER_RUNS = ("deterministic", "model.crop_to_patches", "model.attention", "log.first_batch")


@pytest.mark.parametrize(
    "field",
    [f for f in configs.fields() if f not in OF_OTHER_RUNS],
)
def test_changing_a_field_changes_the_run(field, stand_ins):
    needed, change = overrides(field)
    assert resolve(needed) != resolve((*needed, change))
    for part in PARTS:
        if fingerprint(part, needed) != fingerprint(part, (*needed, change)):
            return
    pytest.fail(f"config.{field} is not read")


def test_attention_decides_what_is_refused(stand_ins):
    with refused("model.attention=fused"):
        fingerprint(state, ("model.attention=fused",))


def test_crop_to_patches_decides_what_is_refused(stand_ins):
    size = "input.preprocess=decode|resize(9)"
    with refused("model.crop_to_patches=true"):
        fingerprint(state, (size,))
    assert fingerprint(state, (size, "model.crop_to_patches=true"))


@pytest.mark.parametrize("deterministic", [True, False])
def test_deterministic_is_set_before_anything_is_built(deterministic, monkeypatch):
    file = Path(configs.__file__).parents[1] / "configs" / "vit_digits.py"
    override = [f"deterministic={deterministic}"]
    flags = types.SimpleNamespace(config=str(file), config_override=override, workdir="")
    seen = []
    monkeypatch.setattr(train, "FLAGS", flags)
    monkeypatch.setattr(environment, "deterministic", lambda: seen.append(True))
    monkeypatch.setattr(processes, "find_cluster", lambda: None)
    with refused("--workdir"):
        train.main([])
    assert seen == [True] * deterministic
