"""Parts of another package, found by its entry points; nothing is installed but its files."""

import dataclasses
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from etils import epath
from flax import nnx

from tests.conftest import TINY_RUN
from tests.messages import refused
from vit_jax import config as configs
from vit_jax import models, plugins
from vit_jax.core.schema import entry_points, renamed
from vit_jax.core.schema.fields import field
from vit_jax.data.sources.table import SOURCES
from vit_jax.learning.losses import batch_layout
from vit_jax.learning.method import Method
from vit_jax.learning.optim.schedules import Decay
from vit_jax.models import vit
from vit_jax.parallel import mesh as meshes
from vit_jax.run.parts import evaluations, updates
from vit_jax.run.parts.durations import make_durations
from vit_jax.train import train

CODE = """
import dataclasses
import jax
import jax.numpy as jnp
from vit_jax.config import EvalConfig
from vit_jax.core.schema.fields import field
from vit_jax.data.ops.op import Op
from vit_jax.data.sources.table import Synthetic
from vit_jax.models import bit, vit
from vit_jax.learning.losses import LossConfig, softmax_cross_entropy
from vit_jax.learning.method import LossOutput, Method

@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec(vit.ViTSpec):
    pass

FAMILY = dataclasses.replace(
    vit.FAMILY, kind="A Their", spec=Spec,
    named=lambda name: dict(patch_size=4, width=16, depth=1, mlp_dim=32, num_heads=2)
    if name == "Their-4" else None,
)

def source(request):
    return Synthetic(64, 4, request.image_size)

def invert():
    return Op(lambda pixels, seed: 255 - pixels, output_size=lambda size: size, is_random=False)

@dataclasses.dataclass(frozen=True)
class Shrink(Method):
    kind: str = field("shrink")
    target: float = field(0.0, "of features", bounds=(-1, 1))

    def check(self, name, spec, sizes): ...

    def check_name(self, name): ...

    def extend(self, model, rngs):
        return None

    def loss(self, model, inputs, key, context):
        found = model.features(inputs.images) - self.target
        return LossOutput(jnp.mean(found**2, axis=-1), metrics={})

@dataclasses.dataclass(frozen=True)
class Poly1(LossConfig):
    poly1_epsilon: float = field(2.0, "of 1 - p", bounds=(-1, 100))

    def compute(self, logits, targets, class_weights=None):
        p = (targets * jax.nn.softmax(logits)).sum(-1)
        return softmax_cross_entropy(logits, targets) + self.poly1_epsilon * (1 - p)

class Mean:
    def __init__(self, read, objective, times):
        self.times = times
        self.split = read(lambda model, batch: {"x": model.features(objective.images(batch))})

    def run(self, params, progress, stop):
        found = self.split.read(params, progress, stop)
        return {} if found is None else {"mean": self.times * float(found["x"].mean())}

@dataclasses.dataclass(frozen=True)
class MeanConfig(EvalConfig):
    times: float = 1.0

    def numbers(self):
        return ("mean",)

    def evaluator(self, read, objective):
        return Mean(read, objective, self.times)

class Lines:
    def __init__(self, workdir, config):
        self.file = (workdir / "lines.txt").open("a")

    def write(self, step, values):
        self.file.write(f"{step}\\n")

    def write_histograms(self, step, histograms): ...

    def write_pictures(self, step, pictures): ...

    def close(self, error):
        self.file.close()
"""
ENTRIES = {
    "models": "Their = theirs:FAMILY",
    "sources": "theirs = theirs:source",
    "ops": "invert = theirs:invert",
    "evaluators": "mean = theirs:MeanConfig",
    "losses": "poly1 = theirs:Poly1",
    "methods": "shrink = theirs:Shrink",
    "loggers": "lines = theirs:Lines",
}


def install(folder, distribution, entries):
    info = folder / f"{distribution}-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
    text = "".join(f"[vit_jax.{group}]\n{entry}\n" for group, entry in entries.items())
    (info / "entry_points.txt").write_text(text)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    folder = tmp_path / "site"
    install(folder, "theirs", ENTRIES)
    (folder / "theirs.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(entry_points, "_loaded", {})
    monkeypatch.setattr(entry_points, "_added", {})
    yield folder
    sys.modules.pop("theirs", None)


def test_parts_of_a_package_train_and_resume(installed, tmp_path):
    assert plugins.available()["ops"] == ["invert"] and "theirs" not in sys.modules
    values = TINY_RUN | {
        "model": {"name": "Their-4"},
        "method": {"kind": "shrink", "target": 0.5},
        "input": {"source": "theirs", "preprocess": "decode|resize(8)|invert", "batch_size": 16},
        "evals": {"own": {"kind": "mean", "times": 2, "preprocess": "decode|resize(8)"}},
        "log": {"every_steps": 1, "tensorboard": False, "loggers": ("lines",)},
        "checkpoint": {"every_steps": 1, "best_metric": "own/mean", "best_mode": "min"},
    }
    workdir = epath.Path(tmp_path / "run")
    train(configs.resolve(values, ["total.steps=2"]), workdir)
    train(configs.resolve(values, ["total.steps=3"]), workdir, allow_config_change=True)
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert {row["step"] for row in rows if "own/mean" in row} == {2, 3}
    assert (workdir / "lines.txt").read_text().split()[-1] == "3"
    runs = json.loads((workdir / "config.json").read_text())["runs"]
    assert runs[-1]["versions"]["theirs"] == "1.2"


def test_the_page_names_every_group():
    page = Path(__file__).parents[1] / "docs" / "plugins.md"
    named = re.findall(r"^\| `(vit_jax\.\w[\w.]*)` \|", page.read_text(), re.MULTILINE)
    assert sorted(named) == sorted(entry_points.PREFIX + group for group in entry_points.GROUPS)


def test_one_message_that_names_the_distribution(installed):
    install(installed, "other", {"ops": "invert = theirs:invert"})
    with refused("'invert'"):
        entry_points.find("ops", "invert")
    install(installed, "broken", {"loggers": "broken = missing:x", "models": "word = os:sep"})
    with refused("'broken'"):
        entry_points.find("loggers", "broken")
    install(installed, "ends", {"loggers": "ends = ends:x"})
    (installed / "ends.py").write_text("raise SystemExit(3)")
    with refused("'ends'"):
        entry_points.find("loggers", "ends")
    with refused("'word'"):
        entry_points.find("models", "word")
    with refused("'mean'"):
        values = {"evals": {"a": {"kind": "meen"}}}
        evaluations.check_evals(configs.resolve(values))
    with pytest.raises(KeyError, match="op"):
        plugins.add("op", "mine", abs)


def test_a_loss_has_fields_of_its_own(installed, tiny_run):
    config = tiny_run("loss.kind=poly1", "loss.poly1_epsilon=3", "loss.label_smoothing=0.1")
    assert configs.resolve(configs.to_dict(config)) == config
    logits, targets = np.array([[0.0, np.log(3)]], np.float32), np.array([[0.0, 1.0]])
    loss = updates.objective(config, num_classes=2).losses(logits, targets)
    assert loss == pytest.approx(-np.log(0.75) + 3 * 0.25, rel=1e-6)
    with refused("'poly1_epsilon'"):
        tiny_run("loss.kind=poly1", "loss.poly_epsilon=3")
    with refused("loss.poly1_epsilon"):
        tiny_run("loss.kind=poly1", "loss.poly1_epsilon=300")
    with refused("binarize_targets", "loss.kind=sigmoid"):
        tiny_run("loss.kind=poly1", "loss.binarize_targets=true")
    with refused("'poly1'", "installed"):
        tiny_run("loss.kind=poly")


@dataclasses.dataclass(frozen=True)
class Waves(Decay):
    waves: int = field(3, "until the end", bounds=(1, 100))

    def remains(self, done, steps, epoch_steps):
        return 1 - np.sin(np.pi * self.waves * done / steps) ** 2


@dataclasses.dataclass(frozen=True)
class Wavy(configs.OptimConfig):
    waves: int = field(1, "of an optimizer")

    def rule(self, schedule): ...


def test_a_schedule_has_fields_of_its_own(monkeypatch, tiny_run):
    monkeypatch.setattr(entry_points, "_added", {})
    plugins.add("schedules", "waves", Waves)
    config = tiny_run(
        "optim.schedule=waves", "optim.waves=2", "optim.warmup_steps=0", "total.steps=8"
    )
    assert configs.resolve(configs.to_dict(config)) == config
    durations = make_durations(config, num_examples=64)
    lr = updates.schedule(config.optim, durations)
    quarter = durations.total_steps / 4
    np.testing.assert_allclose([lr(0), lr(2 * quarter)], config.optim.lr, rtol=1e-6)
    assert lr(quarter) < 1e-6
    with refused("'waves'"):
        tiny_run("optim.schedule=waves", "optim.wavs=2")
    with refused("optim.waves"):
        tiny_run("optim.schedule=waves", "optim.waves=200")
    with refused("exponential_factor", "optim.schedule=exponential"):
        tiny_run("optim.schedule=waves", "optim.exponential_factor=0.5")
    with refused("'waves'"):
        tiny_run("optim.schedule=wave")
    plugins.add("optimizers", "wavy", Wavy)
    with refused("Waves", "Wavy", "'waves'"):
        tiny_run("optim.schedule=waves", "optim.name=wavy")
    with refused("'linear'"):
        plugins.add("schedules", "linear", Waves)


@dataclasses.dataclass(frozen=True)
class NoLoss(Method):
    kind: str = field("no_loss")


@dataclasses.dataclass(frozen=True)
class OldLoss(Method):
    kind: str = field("old_loss")

    def loss(self, model, inputs, key, context): ...


@dataclasses.dataclass(frozen=True)
class NoEvaluator(configs.EvalConfig):
    per_class: dict[str, float] = dataclasses.field(default_factory=dict)
    shots: tuple[int, ...] = field((1,))

    def numbers(self):
        return ("mean",)


@dataclasses.dataclass(frozen=True)
class Whole(NoEvaluator):
    def make(self, inputs): ...


@dataclasses.dataclass(frozen=True)
class OfReader(NoEvaluator):
    def evaluator(self, read, objective): ...


@pytest.mark.parametrize(("group", "part"), [("methods", NoLoss), ("evaluators", NoEvaluator)])
def test_what_a_base_class_leaves_open_has_to_be_given(monkeypatch, group, part):
    monkeypatch.setattr(entry_points, "_added", {})
    with refused():
        plugins.add(group, "theirs", part)
    plugins.add("methods", "old_loss", OldLoss)
    plugins.add("evaluators", "by_make", Whole)
    plugins.add("evaluators", "by_evaluator", OfReader)


def test_an_earlier_evaluation_keeps_the_fields_that_are_its_own(monkeypatch):
    monkeypatch.setattr(entry_points, "_added", {})
    plugins.add("evaluators", "whole", Whole)
    earlier = {"evals": {"own": {"kind": "whole", "shots": (5,), "pictures": 8, "l2": 1024.0}}}
    now = configs.resolve(renamed.fields(earlier)).evals["own"]
    assert now.shots == (5,) and not hasattr(now, "l2")
    gone = {"evals": {"own": {"kind": "uninstalled", "shots": (5,)}}}
    assert "shots" not in renamed.fields(gone)["evals"]["own"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlainSpec(vit.ViTSpec):
    extra: int = 3


class OtherViT(vit.ViT):
    pass


def other_family(**changes):
    size = {"patch_size": 4, "width": 16, "depth": 1, "mlp_dim": 32, "num_heads": 2}
    other = {"kind": "An Other", "module": OtherViT, "named": lambda name: size}
    return dataclasses.replace(vit.FAMILY, **other | changes)


def test_a_model_is_built_by_the_family_of_its_spec(monkeypatch):
    monkeypatch.setattr(entry_points, "_added", {})
    plugins.add("models", "Other", other_family())
    with refused("An Other", "ViTSpec", "A ViT"):
        models.spec("Other-4")
    plugins.add("models", "Other", other_family(spec=PlainSpec))
    make = lambda: models.create("Other-4", num_classes=2, image_size=8, rngs=nnx.Rngs(0))
    assert models.spec("Other-4").extra == 3
    assert type(nnx.eval_shape(make)) is OtherViT
    plugins.add("models", "Otherwise", other_family(spec=PlainSpec, kind="A third", module=vit.ViT))
    with refused("A third", "An Other"):
        models.spec("Otherwise-4")


def test_a_name_of_ours_that_a_package_has_is_listed_once(installed):
    install(installed, "twice", {"sources": "digits = theirs:source"})
    assert SOURCES.names().count("digits") == 1


def test_the_page_says_what_a_batch_holds():
    page = (Path(__file__).parents[1] / "docs" / "plugins.md").read_text()
    rows = re.findall(r"(?m)^\| (`\w+`.*?) \| (\w+) \| `\[(.*?)\]` \|", page)
    told = {names.split("`")[1]: (dtype, shape) for names, dtype, shape in rows}
    sizes = {"B": 8, "H": 16, "W": 32, "h": 4, "w": 6, "3": 3, "K": 5}
    layout = batch_layout(
        meshes.make_mesh(replica=1, data=1, fsdp=1, tensor=1),
        batch_size=8,
        image_size=(16, 32),
        views=[(4, 6)],
        max_labels=5,
        weighted=True,
        maps=["mask"],
    )
    assert {
        name: (dtype, tuple(sizes[side] for side in shape.split(", ")))
        for name, (dtype, shape) in told.items()
    } == {name: (str(x.dtype), x.shape) for name, x in layout.items()}
