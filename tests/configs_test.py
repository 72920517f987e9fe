"""Every config is built, compared with the paper's table, and its step traced at toy size.

Those of TRAINED are trained for two steps.
"""

import dataclasses
import functools
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.messages import refused
from vit_jax import config, models, train
from vit_jax.core import pytrees
from vit_jax.learning.step import lower_update
from vit_jax.models.vit import PLACES, PLAIN
from vit_jax.run.build import Run
from vit_jax.run.parts import networks, preprocessing, updates
from vit_jax.run.parts.durations import make_durations

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "configs").glob("*.py"))

VARIANTS = {
    "ablation_jft.py": (
        "", ":position=none", ":position=learned_2d_layers", ":position=relative_shared",
        ":position=rotary_2d", ":head=avg", ":patch=16", ":model=Axial-ViT-B/32",
        ":model=AxialResNet-50", ":adam=R50x1", ":sgd=R50x1",
    ),
    "bit.py": ("", ":variant=R152x2,data=i21k"),
    "distil_tiny_imagenet.py": ("", ":labels"),
    "efficientnet_i1k.py": ("", ":variant=B4"),
    "mae_cifar10.py": ("", ":finetune", ":scratch"),
    "pretrain_tiny_imagenet.py": (
        "", ":dino", ":masked_patch", ":supervised", ":fine_tune",
    ),
    "ssl_imagenette.py": ("", ":mae"),
    "hybrid.py": ("", ":variant=R50+ViT-L/16,data=i21k"),
    "finetune.py": (
        "", ":folder", ":imagenet", ":cifar10", ":cifar100", ":pets", ":flowers",
        ":size=64", ":pets,size=32,probe", ":imagenet,size=512,polyak",
        ":imagenet,size=518,polyak", ":cifar10,size=32,lora",
    ),
    "vit_image_folder.py": ("", ":size=64", ":size=128"),
    "vit_augreg.py": (
        "", ":aug=light1", ":variant=S/32,aug=none,data=i1k,reg=0.1",
        ":data=i1k,aug=strong2,variant=H/14",
    ),
    "vit_cifar10.py": ("", ":gpu", ":cpu"),
    "noisy_student_cifar10.py": ("", ":student", ":wide_student"),
    "vit_s16_i1k.py": ("", ":evals=data"),
    "vit_i1k_deit3.py": ("", ":variant=S/16", ":variant=L/16", ":variant=H/14"),
    "vit_jft.py": ("", ":variant=L/16", ":variant=H/14"),
    "spt_vit.py": ("", ":data=cifar100"),
    "vit_lite.py": ("", ":variant=7/16,data=cifar100", ":variant=6/4,recipe=300"),
    "vit_l16_i21k.py": ("", ":variant=B/16", ":recipe=plsc"),
    "vit_i1k.py": ("", ":variant=S/16", ":variant=B/32", ":variant=L/16", ":variant=L/32"),
}  # fmt: skip
CONFIGS = [f"{file.name}{variant}" for file in FILES for variant in VARIANTS.get(file.name, ("",))]


def load(name, overrides=()):
    return _load(name, tuple(overrides))


@functools.cache  # most are asked for by several tests
def _load(name, overrides):
    return config.load(str(ROOT / "configs" / name), overrides)


def with_architecture(name):
    """Overrides for a config whose architecture comes from weights, which are missing here."""
    name_of_model = "ViT-H/14" if "size=518" in name else "ViT-B/16"
    return [f"model.name={name_of_model}"] if load(name).model.name is None else []


# arXiv 2010.11929, table 3: model, epochs, lr, schedule, weight decay, dropout.
HYBRIDS = {"R50+ViT-B/16": 8e-4, "R50+ViT-B/32": 8e-4, "R50+ViT-L/32": 2e-4, "R50+ViT-L/16": 4e-4}
RESNETS = {"R50x1": 1e-3, "R50x2": 1e-3, "R101x1": 8e-4, "R152x1": 6e-4, "R152x2": 6e-4}
TABLE_3 = {
    **{f"hybrid.py:variant={m}": (m, 7, lr, "linear", 0.1, 0.0) for m, lr in HYBRIDS.items()},
    **{f"bit.py:variant={m}": (m, 7, lr, "linear", 0.1, None) for m, lr in RESNETS.items()},
    "hybrid.py:data=i21k": ("R50+ViT-B/16", 90, 1e-3, "linear", 0.03, 0.1),
    "bit.py:data=i21k": ("R50x1", 90, 1e-3, "linear", 0.03, None),
    "ablation_jft.py": ("ViT-B/16", 7, 8e-4, "linear", 0.1, 0.0),
    "vit_jft.py": ("ViT-B/16", 7, 8e-4, "linear", 0.1, 0.0),
    "vit_jft.py:variant=L/16": ("ViT-L/16", 14, 4e-4, "linear", 0.1, 0.0),
    "vit_jft.py:variant=H/14": ("ViT-H/14", 14, 3e-4, "linear", 0.1, 0.0),
    "vit_l16_i21k.py:variant=B/16": ("ViT-B/16", 90, 1e-3, "linear", 0.03, 0.1),
    "vit_l16_i21k.py:variant=B/32": ("ViT-B/32", 90, 1e-3, "linear", 0.03, 0.1),
    "vit_l16_i21k.py": ("ViT-L/16", 90, 1e-3, "linear", 0.03, 0.1),
    "vit_l16_i21k.py:variant=L/32": ("ViT-L/32", 90, 1e-3, "linear", 0.03, 0.1),
    "vit_i1k.py": ("ViT-B/16", 300, 3e-3, "cosine", 0.3, 0.1),
}


@pytest.mark.parametrize("name", TABLE_3)
def test_recipes_match_the_paper(name):
    c = load(name)
    expected = TABLE_3[name]
    actual = (
        c.model.name, c.total.epochs, c.optim.lr, c.optim.schedule, c.optim.weight_decay,
        getattr(c.model, "dropout", None),
    )  # fmt: skip
    assert actual == expected
    assert (c.optim.name, c.optim.b1, c.optim.b2) == ("adam", 0.9, 0.999)
    assert (c.input.batch_size, c.optim.warmup_steps) == (4096, 10_000)
    assert c.optim.grad_clip_norm == 1.0
    assert c.optim.weight_decay_meaning == "lr_scaled"
    many_classes = "i1k" not in name
    assert c.loss.kind == ("sigmoid" if many_classes else "softmax")
    assert c.model.head_bias == (-10.0 if many_classes else None)
    assert name.startswith("bit.py") or c.model.pre_logits


def test_the_ablation_of_positions_has_every_kind_of_the_paper_and_rotary_2d():
    file = (ROOT / "configs" / "ablation_jft.py").read_text()
    variants = re.findall(r'^    "(\w+)": \("\w+", "\w+"\)', file, re.MULTILINE)
    assert len(variants) == 12
    positions = set()
    for variant in variants:
        m = load(f"ablation_jft.py:position={variant}").model
        assert m.position_at in PLACES[m.position_embedding]
        positions.add((m.position_embedding, m.position_at))
    of_others = {"relative_2d", "relative_mlp", "rotary_axial", "rotary_mixed"}
    of_tables = {(kind, place) for kind, places in PLACES.items() for place in places}
    expected = {(kind, place) for kind, place in of_tables if kind not in of_others}
    assert positions == expected - {("sincos_1d", "shared"), ("sincos_2d", "shared")}


# Ablations: their changes to a run of the paper, or to the model that they start from.
ABLATIONS = {
    ("ablation_jft.py:head=avg", "ablation_jft.py:model=ViT-B/16"): {},
    ("ablation_jft.py:model=ViT-B/16", "ablation_jft.py:model=Axial-ViT-B/16"): {
        "model/name": "Axial-ViT-B/16",
    },
    ("ablation_jft.py:model=ViT-B/32", "ablation_jft.py:model=Axial-ViT-B/32"): {
        "model/name": "Axial-ViT-B/32",
    },
    ("bit.py", "ablation_jft.py:model=R50x1"): {},
    ("bit.py", "ablation_jft.py:model=AxialResNet-50"): {"model/name": "AxialResNet-50"},
    ("vit_jft.py", "ablation_jft.py:head=cls"): {"model/pool": "cls"},
    ("vit_jft.py", "ablation_jft.py:head=avg"): {
        "model/pool": "avg", "model/pre_logits": False, "optim/lr": 3e-4,
    },
    ("bit.py", "ablation_jft.py:adam=R50x1"): {},
    ("bit.py:variant=R152x2", "ablation_jft.py:adam=R152x2"): {},
    ("bit.py", "ablation_jft.py:sgd=R50x1"): {
        "optim/name": "sgd", "optim/lr": 0.48, "optim/warmup_steps": 5_000,
        "optim/weight_decay": 1e-4, "optim/weight_decay_meaning": "coupled",
    },
    ("vit_jft.py", "ablation_jft.py:depth=8"): {
        "model/name": "ViT-L/32", "model/depth": 8, "model/width": 1024, "model/mlp_dim": 2048,
        "model/num_heads": 16,
    },
    ("ablation_jft.py:depth=8", "ablation_jft.py:depth=64"): {"model/depth": 64},
    ("ablation_jft.py:depth=8", "ablation_jft.py:width=256"): {
        "model/width": 256, "model/num_heads": 4,
    },
    ("ablation_jft.py:depth=8", "ablation_jft.py:mlp=8192"): {"model/mlp_dim": 8192},
    ("ablation_jft.py:depth=8", "ablation_jft.py:patch=16"): {"model/name": "ViT-L/16"},
}  # fmt: skip


@pytest.mark.parametrize("names", ABLATIONS, ids=" ".join)
def test_ablations_change_one_thing(names):
    one, other = (pytrees.flatten(dataclasses.asdict(load(name))) for name in names)
    changed = {field: other[field] for field in other if one.get(field) != other[field]}
    assert changed == ABLATIONS[names]
    assert set(one) <= set(other)


@pytest.mark.parametrize("file", ["finetune.py", "vit_image_folder.py"])
@pytest.mark.parametrize("size", [32, 64, 128, 224])
def test_sizes_are_of_training_and_evaluation(file, size):
    c = load(f"{file}:size={size}", with_architecture(file))
    for preprocess in (c.input.preprocess, c.evals["val"].preprocess):
        assert preprocessing.image_size(preprocess, "") == (size, size)
    flops = networks.model(c, num_classes=6).info.forward_flops
    if file == "vit_image_folder.py":
        assert (flops < 2e8) == (size <= 96)  # a laptop's
        default = load(file)
        assert (load(f"{file}:size=224") == default) and default.model.name == "ViT-Ti/16"
    else:
        expected = (64, "float32") if size <= 96 else (512, "bfloat16")
        assert (c.input.batch_size, c.model.dtype) == expected


@pytest.mark.parametrize("variant", ["size=x", "cifar10,x"])
def test_wrong_parts_of_variants_are_refused(variant):
    with refused("size=64"):
        load(f"finetune.py:{variant}")
    with refused("size=64"):
        load(f"vit_image_folder.py:{variant}")


# arXiv 2106.10270, section 3.3: RandAugment's magnitude, for two layers, and mixup's alpha.
AUGREG = {
    "none": (None, 0.0), "light1": (0, 0.0), "light2": (10, 0.2), "medium1": (15, 0.2),
    "medium2": (15, 0.5), "strong1": (20, 0.5), "strong2": (20, 0.8),
}  # fmt: skip


@pytest.mark.parametrize("aug", AUGREG)
@pytest.mark.parametrize("model", PLAIN)
def test_augreg_has_its_seven_settings(aug, model):
    c = load(f"vit_augreg.py:variant={model.removeprefix('ViT-')},aug={aug},reg=0.1")
    magnitude, mixup = AUGREG[aug]
    is_used = magnitude is not None
    randaugment = f"|randaugment(2, {magnitude}, legacy=True)" if is_used else ""
    crop = "inception_crop(224, levels='down')"
    assert c.input.preprocess == f"decode|{crop}|flip_lr{randaugment}"
    assert (c.loss.mixup, c.loss.cutmix) == (mixup, 0)
    assert (c.model.name, c.model.dropout, c.model.stochastic_depth) == (model, 0.1, 0.1)


@pytest.mark.parametrize("data", ["i21k", "i1k"])
def test_augreg_knows_both_data_sets(data):
    c = load(f"vit_augreg.py:data={data}")
    expected = {"i21k": ("sigmoid", -10.0, 21_843), "i1k": ("sigmoid", -6.9, 1000)}
    assert (c.loss.kind, c.model.head_bias, c.input.num_classes) == expected[data]
    assert (c.total.epochs, c.input.batch_size, c.optim.lr) == (300, 4096, 1e-3)
    assert (c.model.dropout, c.model.stochastic_depth, c.optim.weight_decay) == (0, 0, 0.1)


@pytest.mark.parametrize("name", ["vit_s16_i1k.py:", "vit_augreg.py:data=i1k,"])
def test_more_evaluations_of_imagenet(name):
    evals = load(f"{name}evals=data").evals
    assert evals.keys() - load(name.rstrip(":,")).evals.keys() == {"real", "v2"}
    where = {(e.data_dir, e.split) for e in (evals["real"], evals["v2"])}
    assert where == {("data/imagenet2012_real", "validation"), ("data/imagenet_v2", "test")}


# The authors' commands (README_revenge.md): pixels, learning rate, drop path.
DEIT3 = {"S/16": (224, 4e-3, 0.05), "B/16": (192, 3e-3, 0.2), "L/16": (192, 3e-3, 0.45)}


@pytest.mark.parametrize("variant", DEIT3)
def test_deit3_matches_the_authors_commands(variant):
    c, (size, lr, drop_path) = load(f"vit_i1k_deit3.py:variant={variant}"), DEIT3[variant]
    assert networks.preprocess(c.input, c.evals).image_size == (size, size)
    assert (c.optim.lr, c.model.stochastic_depth) == (lr, drop_path)
    assert (c.total.epochs, c.optim.warmup_epochs, c.optim.weight_decay) == (800, 5, 0.05)
    assert (c.optim.warmup_lr, c.optim.lr_min) == (1e-6, 1e-5)
    assert c.optim.lr_by_epoch and c.optim.decay_from_start
    assert (c.input.batch_size, c.input.repeats) == (2048, 3)
    assert (c.loss.mixup, c.loss.cutmix, c.loss.label_smoothing) == (0.8, 1.0, 0.0)
    assert c.loss.binarize_targets and c.model.stochastic_depth_constant
    assert "random_resized_crop" in c.input.preprocess and "bicubic" in c.input.preprocess
    # With these two, the pixels of torchvision's Resize and CenterCrop.
    evaluation = c.evals["validation"].preprocess
    assert "method='bicubic', longer='down'" in evaluation and "middle='nearest'" in evaluation
    assert (c.model.initialization, c.model.class_position, c.optim.joint_qkv) == ("deit", False, 1)


def test_deit3_steps_as_if_its_loss_were_the_mean_over_classes():
    c = load("vit_i1k_deit3.py")
    assert c.optim.grad_clip_norm == 1.0 * c.input.num_classes
    assert c.optim.eps == pytest.approx(1e-8 * c.input.num_classes)


# arXiv 1905.11946 and the released code (efficientnet_builder.py): pixels and dropout.
EFFICIENTNETS = {
    "B0": (224, 0.2), "B1": (240, 0.2), "B2": (260, 0.3), "B3": (300, 0.3), "B4": (380, 0.4),
    "B5": (456, 0.4), "B6": (528, 0.5), "B7": (600, 0.5),
}  # fmt: skip


@pytest.mark.parametrize("variant", EFFICIENTNETS)
def test_efficientnets_match_the_authors_code(variant):
    c, (size, dropout) = load(f"efficientnet_i1k.py:variant={variant}"), EFFICIENTNETS[variant]
    spec = models.spec(c.model.name)
    assert (spec.dropout, spec.stochastic_depth, spec.batch_norm_momentum) == (dropout, 0.2, 0.99)
    assert networks.preprocess(c.input, c.evals).image_size == (size, size)
    assert f"resize_small({round(size / 0.875)}," in c.evals["validation"].preprocess
    # sample_distorted_bounding_box with area_range=(0.08, 1), min_object_covered=0.1 of all.
    assert "area_min=0.1," in c.input.preprocess and "legacy=True" in c.input.preprocess
    o = c.optim
    assert (o.name, o.b2, o.momentum, o.eps) == ("rmsprop", 0.9, 0.9, 1e-3)
    assert (o.schedule, o.exponential_factor, o.exponential_epochs) == ("exponential", 0.97, 2.4)
    assert o.lr == pytest.approx(0.016 * c.input.batch_size / 256)
    assert (o.weight_decay, o.weight_decay_meaning, o.grad_clip_norm) == (1e-5, "coupled", None)
    assert (o.warmup_epochs, o.ema_decay, c.total.epochs) == (5, 0.9999, 350)
    assert (c.loss.kind, c.loss.label_smoothing) == ("softmax", 0.1)


@pytest.mark.parametrize(
    ("name", "num_classes", "parameters"),
    [  # of their code: ViTLite(...) of Compact-Transformers and ViT(...) of SPT_LSA_ViT
        ("vit_lite.py:variant=7/4", 10, 3_716_874),
        ("vit_lite.py:variant=6/4", 10, 3_190_538),
        ("spt_vit.py", 10, 2_692_426),
    ],
)
def test_small_vits_have_as_many_parameters_as_in_their_code(name, num_classes, parameters):
    assert networks.model(load(name), num_classes=num_classes).info.parameters == parameters


@pytest.mark.parametrize("variant", ["finetune", "scratch"])
def test_the_classifier_of_mae_on_cifar10_is_its_authors(variant):
    """github.com/IcarusWizard/MAE, ViT_Classifier with the Block of its timm, 0.4.12."""
    c = load(f"mae_cifar10.py:{variant}")
    assert networks.model(c, num_classes=10).info.parameters == 5_385_610
    assert (c.model.gelu, c.model.norm_epsilon) == ("exact", 1e-5)


def test_variants_on_imagenette_have_what_their_methods_have():
    dino, mae = load("ssl_imagenette.py").optim, load("ssl_imagenette.py:mae").optim
    assert (dino.grad_clip_norm, mae.grad_clip_norm) == (3.0, None)
    assert load("ssl_imagenette.py:mae").model.pool == "avg"  # what the table's probes see
    assert load("ssl_imagenette.py").input.preprocess.count("probability=0.8") == 1


@pytest.mark.parametrize("name", CONFIGS)
def test_is_planned_without_data(name):
    """Figures of the model and the number of steps follow from the config alone.

    The best checkpoint is chosen on a part of train that the run does not train on.
    """
    c = load(name, with_architecture(name))
    plan = make_durations(c, num_examples=c.input.num_examples or 1000)
    assert plan.warmup_steps < plan.total_steps
    assert networks.model(c, num_classes=c.input.num_classes or 10).info.parameters > 0
    if c.checkpoint.best_metric:
        chosen = c.evals[c.checkpoint.best_metric.partition("/")[0]]
        assert chosen.split.startswith("train[") and c.input.split.startswith("train[:")


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_docstring_has_the_command_the_result_and_the_planned_steps(file):
    text = file.read_text()
    usage = text.partition(f"vit-jax train --config configs/{file.name}")[2].partition("\n\n")[0]
    assert "--workdir" in usage
    assert load(file.name).input.source == "digits" or "input.data_dir=" in usage
    assert "\nReaches  " in text
    assert "not yet measured" in text or "%" in text or "depends" in text
    # A cost stated in steps equals that of the plan.
    stated = re.search(r"\nCost +([\d,]+) steps(?:, or ([\d,]+);)?", text)
    of_recipe = re.findall(r"\n +(recipe=\w+): ", text)
    for variant, steps in zip(["", *of_recipe], stated.groups() if stated else (), strict=False):
        if steps:
            c = load(f"{file.name}:{variant}")
            plan = make_durations(c, num_examples=c.input.num_examples)
            assert plan.total_steps == int(steps.replace(",", ""))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_an_unknown_variant_is_refused(file):
    with refused("nothing", error=ValueError):
        networks.model(load(f"{file.name}:nothing"), num_classes=10)


def test_fine_tuning_without_weights_says_what_is_missing():
    with refused("--config.init.weights"):
        networks.model(load("finetune.py"), num_classes=10)


def shrunk(preprocess, size):
    """The same ops for images of `size` pixels, other numbers unchanged."""
    return re.sub(r"(crop|resize|resize_small)\(\d+", rf"\g<1>({size}", preprocess)


def shrunk_views(c, size):
    """As large as the images, or half as large."""
    sides = [preprocessing.image_size(each, "views")[0] for each in (c.preprocess, *c.views)]
    return [
        shrunk(view, size if side == sides[0] else size // 2)
        for view, side in zip(c.views, sides[1:], strict=True)
    ]


TOY = {"depth": 1, "width": 32, "mlp_dim": 32, "num_heads": 2, "units": "(1,)", "root_width": 32}


def toy(name):
    """The config with everything expensive made small, otherwise unchanged."""
    c = load(name, with_architecture(name))
    spec = models.spec(c.model.name)
    known = {f.name for f in dataclasses.fields(spec)}
    size = 2 * spec.stride
    return load(
        name,
        [
            *with_architecture(name),
            *(f"model.{field}={value}" for field, value in TOY.items() if field in known),
            "init.head=keep",  # for finetune.py: there are no weights here
            "input.source=synthetic", "input.data_dir=None", "input.split=train",
            "input.num_examples=24", "input.num_classes=10", "input.batch_size=8",
            *(f"input.mixture.{component}=none" for component in c.input.mixture),
            *(["input.subset_per_class=2"] if c.input.subset_per_class else []),
            f"input.preprocess={shrunk(c.input.preprocess, size)}",
            f"input.views={shrunk_views(c.input, size)}",
            *(["method.prototypes=32"] if c.method.kind == "dino" else []),
            "optim.warmup_epochs=None", "optim.warmup_steps=1", "optim.cooldown_epochs=None",
            "total.epochs=None",
            "total.steps=2", "log.every_steps=1", "log.tensorboard=False",
            *(f"evals.{n}.preprocess={shrunk(e.preprocess, size)}" for n, e in c.evals.items()),
            *(f"evals.{n}.data_dir=None" for n in c.evals),
            *(
                f"evals.{n}.{small}"
                for n, e in c.evals.items()
                for small in ("shots=[1]", "batch_size=20")  # two of each class
                if e.kind == "frozen"
            ),
        ],
    )  # fmt: skip


def program(c):
    """Properties that decide a config's compiled step; of numbers, only whether they are zero."""

    def kinds(value):
        if dataclasses.is_dataclass(value):
            return tuple(kinds(getattr(value, f.name)) for f in dataclasses.fields(value))
        if isinstance(value, dict):
            return tuple((key, kinds(value[key])) for key in sorted(value))
        return bool(value) if isinstance(value, float) else value

    text = repr(kinds((c.model, c.loss, c.optim, c.input, c.evals)))
    return re.sub(r"\d+", "0", re.sub(r"-[BSLHTi]+/", "-", text))


@functools.cache
def one_of_each_program():
    names = {}
    for name in CONFIGS:
        names.setdefault(program(toy(name)), name)
    return list(names.values())


# One of each way to read the data and to train. That each kind of model and method trains is
# tested in tests/models/training_test.py and tests/learning/methods/runs_test.py.
TRAINED = (
    "vit_digits.py", "vit_i1k.py", "vit_s16_i1k.py", "vit_i1k_deit3.py",
    "vit_augreg.py:data=i1k,aug=strong2,variant=H/14", "distil_tiny_imagenet.py",
    "finetune.py:cifar10,size=32,lora", "finetune.py:imagenet,size=512,polyak",
    "pretrain_tiny_imagenet.py:dino",
)  # fmt: skip
QUICK = ("vit_i1k.py",)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    # Synthetic images have no masks.
    [c for c in CONFIGS if c not in TRAINED and not load(c).method.reads_maps],
)
def test_a_batch_and_the_step_at_toy_size(name, tmp_path):
    """The batch is read and the step traced; compiling it would take ten times as long."""
    if name not in one_of_each_program():
        pytest.skip("another config has this program")
    c = toy(name)
    run = Run.build(c, tmp_path)
    with run.feed(start_step=0) as feed:
        batch = next(feed)
    assert jax.tree.map(np.shape, batch) == jax.tree.map(np.shape, run.batch_layout)
    lowered = lower_update(
        updates.update(c, run.parts), run.parts.layout.in_steps, run.batch_layout
    )
    _, scalars = lowered.out_info
    assert scalars["train/loss"].shape == ()


@pytest.mark.parametrize(
    "name", [pytest.param(c, marks=[] if c in QUICK else pytest.mark.slow) for c in TRAINED]
)
def test_two_steps_at_toy_size(name, tmp_path, quick_compilation):
    c = toy(name)
    if c.method.kind == "distillation":
        config_of_labels = toy(f"{name}:labels")
        train.train(config_of_labels, tmp_path / "teacher")
        of_toy = {"teacher": str(tmp_path / "teacher"), "teacher_image_size": None}
        c = dataclasses.replace(c, method=dataclasses.replace(c.method, **of_toy))
    state = train.train(c, tmp_path)
    assert int(state.step) == 2
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    assert all(np.isfinite(row["train/loss"]) for row in rows)
    for of, evaluation in c.evals.items():
        key = "1shot_accuracy" if evaluation.kind == "frozen" else "accuracy"
        assert 0 <= rows[-1][f"{of}/{key}"] <= 1
