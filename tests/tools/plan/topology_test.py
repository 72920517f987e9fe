"""Names and needs of absent devices, and plans for them.

The tests that compile for GPUs need `pip install '.[plan-gpu]'`.
"""

import pytest

from tests.messages import refused
from vit_jax import config as configs
from vit_jax.parallel import chips
from vit_jax.parallel.products import Products
from vit_jax.tools.plan import topology
from vit_jax.tools.plan.compiled import Figures
from vit_jax.tools.plan.forecast import StepTime, forecast, step_time


@pytest.mark.parametrize(
    "name", ["v5e:16x16", "v3:2x2", "v4:4x4x4", "v6e:1x1", "h100:1", "h200:3", "b200:128x8"]
)
def test_names(name):
    assert topology.check(name) == name.partition(":")[0]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("v5:4x4", ["'v5e'"]),
        ("16x16", ["v5e:2x4", "v6e"]),
        ("v5e", [2]),
        ("v4:8x8", [3]),
        ("v5e:16x32", [256]),
        *(("h100:8x", ["128 hosts"]), ("h100:16", ["x 8 GPUs"]), ("a100:200x8", [128])),
        ("foo:8", ["a100", "v2"]),
    ],
)
def test_what_does_not_exist_is_refused(name, words):
    with refused(name, *words):
        topology.check(name)


@pytest.mark.parametrize(("name", "cure"), [("v5e:2x2", "jax[tpu]"), ("h100:8", "'.[plan-gpu]'")])
def test_without_its_compiler_it_says_what_to_install(monkeypatch, name, cure):
    monkeypatch.setattr(topology.importlib.util, "find_spec", lambda name: None)
    with refused(cure):
        topology.devices(name)


L16, FOLDER = "configs/vit_l16_i21k.py", "configs/vit_image_folder.py"


@pytest.mark.parametrize(
    ("name", "overrides", "words"),
    [
        ("v3:16x17", (), ["v3:16x17"]),
        ("v3:32x32", ("input.batch_size=1024",), ["input.batch_size=1024", "2048"]),
        ("v5e:4x4", ("mesh.data=3",), ["mesh.data=3", "16"]),
    ],
)
def test_what_only_libtpu_knows_gives_one_message(name, overrides, words):
    pytest.importorskip("libtpu")
    with refused(*words):
        forecast(configs.load(L16, overrides), name, compiled=False)


@pytest.mark.parametrize(
    ("path", "overrides", "names"),
    [
        (FOLDER, (), ["input.num_examples=", "input.num_classes="]),
        (L16, ("input.subset_per_class=10",), ["input.subset_per_class", "input.subset_examples"]),
        (
            FOLDER,
            ("input.mixture.a.num_examples=5", "input.mixture.b.weight=2", "input.num_classes=5"),
            ["input.num_examples="],
        ),
        (L16, ("optim.grad_accum_steps=4097",), ["optim.grad_accum_steps=4097"]),
        (L16, ("optim.grad_accum_steps=3",), ["input.batch_size=4096"]),
        (FOLDER, ("input.subset_per_class=10",), ["input.num_examples=", "input.subset_examples"]),
    ],
)
def test_what_a_plan_needs_is_asked_for(path, overrides, names):
    with refused(*names):
        forecast(configs.load(path, overrides), compiled=False)


@pytest.mark.parametrize(
    ("overrides", "num_examples"),
    [
        (["input.num_examples=1000"], 1000),  # its evaluations' data are missing
        (["input.num_examples=1000", "input.subset_fraction=0.1"], 100),
        (["input.num_examples=1000", "input.subset_examples=300"], 300),
        (["input.mixture.a.num_examples=700", "input.mixture.b.num_examples=200"], 900),
    ],
)
def test_parts_and_mixtures_have_epochs_of_their_own(overrides, num_examples):
    overrides = (*overrides, "input.num_classes=5", "input.batch_size=10", "model.depth=1")
    config = configs.load("configs/vit_image_folder.py", overrides)
    assert forecast(config, compiled=False).steps == 100 * num_examples / 10


TINY = (
    *("model.name=ViT-Ti/16", "model.depth=2", "model.width=64", "model.mlp_dim=128"),
    *("model.num_heads=2", "input.batch_size=64"),
)


@pytest.fixture
def compiler():
    if not any(topology._is_installed(plugin) for plugin in topology.GPU_PLUGINS):
        pytest.skip("needs what compiles for GPUs: pip install '.[plan-gpu]'")


def test_every_gpu_has_all_figures():
    for name, chip in chips.GPUS.items():
        assert chips.peak_flops(chip.device_kind)
        text = topology.target(name)
        assert f'"{chip.device_kind}"' in text and f"device_memory_size: {chip.hbm_bytes}" in text
        assert text.count("{") == text.count("}") == 4


@pytest.mark.parametrize(("set_to", "share"), [(None, 0.75), ("0.9", 0.9), (".5", 0.5)])
@pytest.mark.parametrize("variable", topology.FRACTIONS)
def test_memory_that_jax_gives(monkeypatch, variable, set_to, share):
    for name in topology.FRACTIONS:
        monkeypatch.delenv(name, raising=False)
    if set_to:
        monkeypatch.setenv(variable, set_to)
    assert topology.usable_bytes("h100") == int(share * 84_942_979_072)


@pytest.mark.parametrize("wrong", ["all", "0", "-1", "inf", "nan"])
def test_a_share_of_memory_that_cannot_be(monkeypatch, wrong):
    monkeypatch.setenv(topology.FRACTIONS[0], wrong)
    with refused(topology.FRACTIONS[0], wrong):
        topology.usable_bytes("h100")


def test_the_time_of_a_step_is_a_roofline():
    figures = Figures(
        peak_bytes=1,
        sent={"all-reduce": 225e6, "all-gather": 225e6},
        cycles=0.0,
        accessed_bytes=3352.32e6,
        compile_secs=1.0,
        kernels=3,
        kernels_secs=1.5e-3,
    )
    time = step_time(
        figures, Products(989e9 / 3), 2, "h100", chips.peak_flops("NVIDIA H100 80GB HBM3"), 1
    )
    assert time == StepTime(
        matrix=pytest.approx(2e-3),
        hbm=pytest.approx(1e-3),
        interconnect=pytest.approx(1.5e-3),  # half of an all-reduce is one gathering
        cycles=None,
        kernels=1.5e-3,
    )
    assert time.estimate == time.roofline == time.matrix


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_a_plan_for_gpus_on_two_hosts():
    config = configs.load("configs/vit_l16_i21k.py", TINY)
    planned = forecast(config, "h100:2x8", compiled=True)
    assert (planned.hosts, planned.devices, planned.chips) == (2, 16, 16)
    figures = planned.figures
    assert figures.kernels > 100 and figures.accessed_bytes > 3 * planned.memory.parameters
    assert figures.sent["all-reduce"] >= 2 * planned.model.parameters
    assert planned.time.kernels >= 0.999 * max(planned.time.hbm, planned.time.matrix)
    assert planned.memory.state < planned.memory.peak < planned.memory.there


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("name", ["a100:1", "h200:1", "b200:1"])
def test_other_gpus(name):
    config = configs.load("configs/vit_l16_i21k.py", TINY)
    assert forecast(config, name, compiled=True).figures.kernels > 100
