"""Ten updates of every optimizer against those of torch and timm, on the same gradients."""

import functools
import importlib
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from tests.learning.optim.optimizers_test import PEAK, matrices, run, tree
from tests.weights.conftest import timm  # noqa: F401, a fixture: timm without torchvision
from vit_jax.core import pytrees
from vit_jax.learning.optim import optimizers

torch = pytest.importorskip("torch", reason="the extra `parity` is missing, see docs/install.md")

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("quick_compilation")]
RATES = (0.0, 0.005, PEAK, 0.009, 0.008, 0.007, 0.005, 0.003, 0.002, 0.001)  # of ten updates
GRADIENTS = [tree(seed) for seed in range(1, 1 + len(RATES))]
ROUNDING = 4e-6  # float32 against float64: ten updates of parameters of order one
DECAY = 0.3


class Case(NamedTuple):
    """Our optimizer and its fields, theirs as "package class", and its options."""

    name: str
    fields: dict[str, Any]
    theirs: str
    options: dict[str, Any]


def case(name: str, theirs: str, options: dict[str, Any], **fields: Any) -> Case:
    return Case(name, fields, theirs, options)


WITH_DECAY = {"weight_decay": DECAY}
L2 = {"weight_decay": DECAY, "weight_decay_meaning": "coupled"}
NESTEROV = {"momentum": 0.95, "nesterov": True}
LAMB = {"b1": 0.8, "b2": 0.99, "eps": 1e-6}
LAMBS = {"betas": (0.8, 0.99), "eps": 1e-6, "max_grad_norm": None}
MUONS = {"ns_coefficients": (3.4445, -4.7750, 2.0315), "adjust_lr_fn": "match_rms_adamw"}
FACTORS = {"min_dim_size_to_factor": 1, "clipping_threshold": 1.0, "momentum_dtype": "float32"}
CASES = {
    "Adam": case("adam", "torch Adam", {}),
    "Adam, L2": case("adam", "torch Adam", {}, **L2),
    "AdamW": case("adam", "torch AdamW", {}, **WITH_DECAY),
    "AdamW on all": case("adam", "torch AdamW", {}, weight_decay_on="all", **WITH_DECAY),
    "SGD, L2 on all": case("sgd", "torch SGD", {"momentum": 0.9}, weight_decay_on="all", **L2),
    "AdamW, other moments": case(
        "adam", "torch AdamW", {"betas": (0.8, 0.95), "eps": 1e-3},
        b1=0.8, b2=0.95, eps=1e-3, grad_clip_norm=1.0, **WITH_DECAY,
    ),
    "SGD": case("sgd", "torch SGD", {}, momentum=0.0),
    "SGD, momentum": case("sgd", "torch SGD", {"momentum": 0.9}, grad_clip_norm=1.0, **L2),
    "SGD, nesterov": case("sgd", "torch SGD", NESTEROV, **NESTEROV),
    "SGDW": case("sgd", "timm SGDW", NESTEROV, **NESTEROV, **WITH_DECAY),
    "RMSProp": case(
        "rmsprop", "timm RMSpropTF", {"alpha": 0.9, "eps": 1e-3, "momentum": 0.0},
        b2=0.9, eps=1e-3, momentum=0.0, **L2,
    ),
    "RMSProp, momentum": case(
        "rmsprop", "timm RMSpropTF", {"alpha": 0.9, "eps": 1e-3, "momentum": 0.9},
        b2=0.9, eps=1e-3, **L2,
    ),
    "Adafactor": case("adafactor", "timm AdafactorBigVision", FACTORS),
    "Adafactor, no momentum": case(
        "adafactor", "timm AdafactorBigVision", FACTORS | {"momentum": None, "beta2_cap": 0.5},
        b1=0.0, b2=0.5, **WITH_DECAY,
    ),
    "Adafactor, decay over the peak": case(
        "adafactor", "timm AdafactorBigVision",
        FACTORS | {"unscaled_wd": True, "corrected_weight_decay": True},
        weight_decay=0.01, weight_decay_meaning="schedule_scaled",
    ),
    "Lion": case("lion", "timm Lion", {"betas": (0.9, 0.99)}, b2=0.99),
    "Lion, decay": case("lion", "timm Lion", {"betas": (0.8, 0.9)}, b1=0.8, b2=0.9, **WITH_DECAY),
    "NAdamW": case("nadam", "timm NAdamW", {}, **WITH_DECAY),
    "LAMB": case("lamb", "timm Lamb", LAMBS, **LAMB, **WITH_DECAY),
    "LAMB, no decay": case("lamb", "timm Lamb", LAMBS, **LAMB),
    "LAMB, clipped": case(
        "lamb", "timm Lamb", LAMBS | {"max_grad_norm": 1.0},
        grad_clip_norm=1.0, **LAMB, **WITH_DECAY,
    ),
    "LAMB, joint": case("lamb", "timm Lamb", LAMBS, joint_qkv=True, **LAMB, **WITH_DECAY),
    **{
        f"Muon of {package}, momentum {momentum}, nesterov {nesterov}": case(
            "muon", f"{package} Muon", MUONS | {"momentum": momentum, "nesterov": nesterov},
            momentum=momentum, nesterov=nesterov, **decay,
        )
        for package in ("torch", "timm")
        for momentum, nesterov, decay in (
            (0.95, True, WITH_DECAY), (0.95, False, WITH_DECAY), (0.9, True, {}), (0.0, False, {})
        )
    },
}  # fmt: skip


@pytest.fixture
def packages(timm, monkeypatch):  # noqa: F811, the fixture
    """Their optimizers by package, with Muon's orthogonalisation, in bfloat16, in float64."""
    optim, module = (
        importlib.import_module(f"{timm.__name__}.{n}") for n in ("optim", "optim.muon")
    )
    theirs = functools.partial(module.zeropower_via_newtonschulz, dtype=torch.float64)
    monkeypatch.setattr(module, "zeropower_via_newtonschulz", theirs)
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    return {"torch": torch.optim, "timm": optim}


def layers(params):
    """Every layer of every parameter: query, key and value are one array."""
    arrays = {}
    for name, x in pytrees.flatten(params).items():
        numbered = enumerate(x) if name.startswith("blocks/") else [("all", x)]
        arrays |= {f"{i}/{name}": np.asarray(one) for i, one in numbered}
    return arrays


def their_run(case, packages, arrays):
    """Their parameters after all updates; arrays: of a tree, by name."""
    params = {n: torch.nn.Parameter(torch.tensor(x)) for n, x in arrays(tree(0)).items()}
    decay, clip = case.fields.get("weight_decay", 0.0), case.fields.get("grad_clip_norm")
    on_all = case.fields.get("weight_decay_on") == "all"
    groups = lambda names: [
        {"params": [params[n]], "weight_decay": decay * (on_all or n.endswith("kernel"))}
        for n in names
    ]
    chosen = list(params)
    if case.name == "muon":
        chosen = [n for n in params if n[0].isdigit() and n.endswith("kernel")]
    package, name = case.theirs.split()
    used = [getattr(packages[package], name)(groups(chosen), lr=PEAK, **case.options)]
    if rest := [n for n in params if n not in chosen]:
        used.append(torch.optim.AdamW(groups(rest)))
    for lr, gradients in zip(RATES, GRADIENTS, strict=True):
        for n, gradient in arrays(gradients).items():
            params[n].grad = torch.tensor(gradient)
        if clip and "max_grad_norm" not in case.options:
            torch.nn.utils.clip_grad_norm_(params.values(), clip)
        for optimizer in used:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
    return {n: p.detach().numpy() for n, p in params.items()}


def test_no_optimizer_of_ours_is_left_uncompared():
    """One that neither torch nor timm has is held beside NumPy alone, and named here."""
    without: set[str] = set()
    assert {case.name for case in CASES.values()} | without == optimizers.OPTIMIZERS.keys()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_ten_updates_are_theirs(case, packages):
    arrays = layers if case.fields.get("joint_qkv") else matrices
    schedule = lambda step: jnp.array(RATES)[step]
    ours = arrays(run(case.name, tree(0), GRADIENTS, schedule=schedule, **case.fields))
    theirs = their_run(case, packages, arrays)
    assert ours.keys() == theirs.keys()
    for name, x in theirs.items():
        np.testing.assert_allclose(ours[name], x, rtol=0, atol=ROUNDING, err_msg=name)
