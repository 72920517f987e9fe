"""configs/finetune.py:folder by what it is used with, and how a config file adapts."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from etils import epath
from flax import nnx
from PIL import Image

import vit_jax
from tests.messages import refused
from tests.weights.conftest import randomised
from vit_jax import models, weights
from vit_jax.core.schema import config_file
from vit_jax.core.screen import Screen
from vit_jax.run import adapt, announce
from vit_jax.run.build import Run
from vit_jax.tools.plan import __main__ as plan

OWN_SIZE = models.Preprocess(
    image_size=(32, 32), resize=36, interpolation="bicubic", crop=(32, 32), mean=(0.1, 0.2, 0.3)
)


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Overrides that name weights of images of 32 pixels, and a folder of 6 + 2 images."""
    folder = tmp_path_factory.mktemp("recipe")
    fields = {"depth": 1, "width": 8, "mlp_dim": 8, "num_heads": 2, "image_size": 32}
    model = models.create("ViT-Ti/4", num_classes=3, rngs=nnx.Rngs(0), **fields)
    weights.save(weights.Loaded(model, "ViT-Ti/4", None, 0), folder / "weights", "checkpoint")
    for split, number in (("train", 3), ("val", 1)):
        for name in ("cat", "dog"):
            images = folder / "images" / split / name
            images.mkdir(parents=True)
            for i in range(number):
                Image.fromarray(np.full((40, 40, 3), 50 * i, np.uint8)).save(images / f"{i}.png")
    return [f"init.weights={folder / 'weights'}", f"input.data_dir={folder / 'images'}"]


def adapted(num_examples, *, on_cpu=False, has_statistics=False, arg="", **given):
    """What finetune.py makes of so many images."""
    facts = SimpleNamespace(
        config=SimpleNamespace(evals={"val": SimpleNamespace(numbers=lambda: ["accuracy"])}),
        given=given.get,
        preprocess=OWN_SIZE,
        has_statistics=has_statistics,
        num_examples=num_examples,
        on_cpu=on_cpu,
        eval_ops="decode|x",
    )
    return config_file.adapt(f"finetune:{arg}")(facts)


@pytest.mark.parametrize(
    ("num_examples", "batch", "epochs", "on_cpu_batch", "on_cpu_epochs"),
    [(30, 16, 20, 16, 20), (1000, 64, 20, 32, 4), (50_000, 512, 8, 32, 1)],
)
def test_batch_and_epochs_by_the_number_of_images(
    num_examples, batch, epochs, on_cpu_batch, on_cpu_epochs
):
    on_gpu, on_cpu = (adapted(num_examples, on_cpu=cpu) for cpu in (False, True))
    lengths = [(c["input"]["batch_size"], c["total"]["epochs"]) for c in (on_gpu, on_cpu)]
    assert lengths == [(batch, epochs), (on_cpu_batch, on_cpu_epochs)]
    assert [c["model"]["dtype"] for c in (on_gpu, on_cpu)] == ["bfloat16", "float32"]


def test_images_are_prepared_as_the_weights_say_unless_a_size_is_given():
    c = adapted(100)
    assert "inception_crop((32, 32), method='bicubic'" in c["input"]["preprocess"]
    assert c["evals"]["val"]["preprocess"] == "decode|x"
    assert c["input"]["mean"] == (0.1, 0.2, 0.3)
    c = adapted(100, arg="size=64")
    assert "inception_crop(64, method='bicubic'" in c["input"]["preprocess"]
    assert c["evals"]["val"]["preprocess"] == "decode|resize(64)"


def test_warmup_and_cadence_follow_the_length_that_is_given():
    c = adapted(1000, on_cpu=True)  # 4 epochs of 31.25 steps
    assert (c["optim"]["warmup_steps"], c["checkpoint"]["every_steps"]) == (12, 12)
    c = adapted(1000, **{"total.steps": 50})
    assert (c["optim"]["warmup_steps"], c["evals"]["val"]["every_steps"]) == (5, 5)
    c = adapted(1000, **{"total.epochs": 100.0, "input.batch_size": 100})
    assert (c["optim"]["warmup_steps"], c["checkpoint"]["every_steps"]) == (10, 100)
    c = adapted(1000, **{"total.epochs": None, "total.examples": 6400})  # 100 steps of 64
    assert (c["optim"]["warmup_steps"], c["checkpoint"]["every_steps"]) == (10, 10)


def test_published_data_sets_keep_the_recipe_of_the_paper():
    assert adapted(50_000, arg="cifar10") == {"model": {}}


@pytest.mark.parametrize("arg", ["probe", "cifar10,probe"])
def test_a_probe_keeps_the_batch_norms_of_the_weights(arg):
    assert adapted(100, arg=arg, has_statistics=True)["model"]["frozen_statistics"]
    for c in (adapted(100, arg=arg), adapted(100, has_statistics=True)):
        assert "frozen_statistics" not in c["model"]


def test_a_probe_of_an_efficientnet(given, tmp_path):
    model = randomised("EfficientNet-0.1x0.1", num_classes=3, image_size=32)
    weights.save(model, tmp_path / "weights", "checkpoint")
    overrides = [f"init.weights={tmp_path / 'weights'}", *given[1:]]
    assert Run.build(adapt.load("finetune:probe", overrides), tmp_path / "run")
    assert adapt.load("finetune", overrides).model.frozen_statistics is None


def test_a_run_of_it_with_weights_and_images(given, tmp_path, capsys):
    config = adapt.load("finetune", given)
    on_cpu = jax.default_backend() == "cpu"
    assert (config.input.batch_size, config.total.epochs) == (16, 20)
    assert config.model.dtype == ("float32" if on_cpu else "bfloat16")
    run = Run.build(config, tmp_path)
    assert run.parts.durations.total_steps == round(20 * 6 / 16)
    announce.adapted(Screen(), adapt.configs.load("finetune", given), config)
    assert "input.batch_size=16" in capsys.readouterr().out


def test_what_the_command_gives_stays(given):
    fields = ["input.batch_size=2", "total.steps=7", "optim.warmup_steps=3", "model.dtype=bfloat16"]
    config = adapt.load("finetune", [*given, *fields])
    assert (config.input.batch_size, config.model.dtype) == (2, "bfloat16")
    assert (config.total.steps, config.total.epochs) == (7, None)
    assert (config.optim.warmup_steps, config.checkpoint.every_steps) == (3, 1)
    config = adapt.load("finetune", given, sections={"total": {"epochs": 2}})
    assert (config.total.steps, config.total.epochs) == (None, 2)


@pytest.mark.parametrize("missing", ["init.weights=none", "input.data_dir=missing"])
def test_without_weights_or_data_it_is_as_it_was(given, missing, capsys):
    overrides = [*given, missing]
    for _ in range(2):  # as for each point of a grid
        assert adapt.load("finetune", overrides) == adapt.configs.load("finetune", overrides)
    # Without init.weights there is nothing to adapt to.
    expected = 0 if missing == "init.weights=none" else 1
    assert capsys.readouterr().err.count("not adapted to weights and data") == expected


@pytest.mark.parametrize("missing", ["init.weights=/nowhere", "input.data_dir=missing"])
def test_what_keeps_it_from_being_adapted_is_told(given, missing):
    """Another recipe would be trained in its place."""
    checked = []
    with refused(missing.partition("=")[2]):
        adapt.load("finetune", [*given, missing], check=checked.append)
    assert checked == [adapt.configs.load("finetune", [*given, missing])]
    with refused(missing.partition("=")[2]):
        vit_jax.load_config("finetune", *given, missing)
    vit_jax.load_config("finetune")  # without weights there is nothing to adapt to


def test_a_run_goes_on_as_it_began_when_its_weights_are_gone(given, tmp_path, capsys):
    weights, images = (Path(field.partition("=")[2]) for field in given)
    gone = shutil.copytree(weights, tmp_path / "weights")
    fields = [f"init.weights={gone}", f"input.data_dir={images}"]
    began = adapt.load("finetune", fields)
    write_run(tmp_path / "run", began)
    shutil.rmtree(gone)
    folder = epath.Path(tmp_path / "run")
    resume = lambda *more: adapt.load("finetune", [*fields, *more], workdir=folder, check=fail)
    assert resume() == began
    assert f"as {folder} has it" in capsys.readouterr().err
    assert resume("seed=1").seed == 1
    with pytest.raises(AssertionError):  # another run has begun there
        resume("init.weights=/nowhere")
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(AssertionError):
        resume()


def write_run(folder, config):
    """Records it as the config of a run that has saved a step."""
    (folder / "checkpoints" / "2").mkdir(parents=True)
    document = {"config": adapt.configs.to_dict(config), "fingerprint": {}, "runs": []}
    (folder / "config.json").write_text(json.dumps(document))


def fail(config):
    raise AssertionError(config)


def test_flags_of_xla_come_before_the_devices_are_asked(given, monkeypatch):
    order = []
    monkeypatch.setattr(adapt.environment, "deterministic", lambda: order.append("flags"))
    monkeypatch.setattr(jax, "default_backend", lambda: order.append("devices") or "cpu")
    adapt.load("finetune", [*given, "deterministic=true"])
    assert order[0] == "flags"


def test_a_plan_counts_the_data_and_is_for_its_own_devices(given, monkeypatch):
    flags = SimpleNamespace(config="finetune", topology="v5e:2x2")
    monkeypatch.setattr(plan, "FLAGS", flags)
    config = plan.load(given)
    assert (config.input.num_examples, config.input.num_classes) == (6, 2)
    assert config.model.dtype == "bfloat16"
