"""Each user error gives one message that says what to change."""

import pytest

from vit_jax import config as configs
from vit_jax.core.errors import UserError
from vit_jax.tools.plan import topology
from vit_jax.tools.plan.__main__ import plan

L16 = "configs/vit_l16_i21k.py"
NEED_LIBTPU = ("v3:16x17", "v3:32x32", "v5e:4x4")  # names that could be right


@pytest.mark.parametrize(
    ("path", "name", "overrides", "message"),
    [
        (L16, "v3:16x17", (), r"nearest: v3:8x16, v3:16x16, v3:16x32\.$"),
        (L16, "v5e:17x17", (), r"at most 256 chips\. nearest: .*v5e:16x16\.$"),
        (L16, "v9:2x2", (), "generation 'v9'.*Valid: a100, .*v2, v3, v4, v5e, v5p, v6e"),
        (L16, "v5e", (), "nearest: v5e:1x1, v5e:2x2"),
        (L16, "", (), "such as v5e:16x16"),
        (L16, "v4:4x4", (), "nearest: v4:2x2x2, v4:2x2x4, v4:2x4x4"),
        (
            L16,
            "v3:32x32",
            ("input.batch_size=1024",),
            r"v3:32x32: input.batch_size=1024 does not divide over 2048 devices; nearest: 2048\. "
            r"Topologies that it divides over: v3:8x16, v3:16x16, v3:16x32\.$",
        ),
        (
            L16,
            "v5e:4x4",
            ("optim.grad_accum_steps=3",),
            "16 devices times optim.grad_accum_steps=3 parts",
        ),
        (L16, "v5e:4x4", ("mesh.data=3",), "mesh.data=3 takes 3 of 16 devices"),
        (L16, "v5e:4x4", ("mesh.data=4", "mesh.fsdp=8"), "4 x 8 = 32 devices, but there are 16"),
        (
            L16,
            "v5e:4x4",
            ("mesh.data=4", "mesh.fsdp=4", "input.batch_size=24"),
            r"24 does not divide over 16 devices \(data=4 x fsdp=4\); nearest: 16, 32\.$",
        ),
        (
            "configs/vit_image_folder.py",
            None,
            (),
            r"--config.input.num_examples=... --config.input.num_classes=...$",
        ),
        (L16, None, ("input.subset_per_class=10",), "only these can tell how many examples"),
        (
            "configs/vit_image_folder.py",
            None,
            ("input.mixture.a.num_examples=5", "input.mixture.b.weight=2", "input.num_classes=5"),
            r"how many examples they have: give --config.input.num_examples=...$",
        ),
        (L16, None, ("optim.grad_accum_steps=4097",), "times optim.grad_accum_steps=4097 parts"),
    ],
)
def test_gives_one_message(path, name, overrides, message):
    if name in NEED_LIBTPU:
        pytest.importorskip("libtpu")
    with pytest.raises(UserError, match=message):
        plan(configs.load(path, overrides), name, compiled=False, anew=False)


@pytest.mark.parametrize(
    ("overrides", "num_examples"),
    [
        (["input.num_examples=1000", "input.subset_fraction=0.1"], 100),
        (["input.num_examples=1000", "input.subset_examples=300"], 300),
        (["input.mixture.a.num_examples=700", "input.mixture.b.num_examples=200"], 900),
    ],
)
def test_parts_and_mixtures_have_epochs_of_their_own(overrides, num_examples):
    overrides = (*overrides, "input.num_classes=5", "input.batch_size=10", "model.depth=1")
    config = configs.load("configs/vit_image_folder.py", overrides)
    assert plan(config, None, compiled=False, anew=False).steps == 100 * num_examples / 10


def test_missing_data_are_not_needed():
    overrides = ("input.num_examples=1000", "input.num_classes=5", "model.depth=1")
    config = configs.load("configs/vit_image_folder.py", overrides)
    assert config.evals
    assert plan(config, None, compiled=False, anew=False).steps == round(100 * 1000 / 64)


@pytest.mark.parametrize(
    ("name", "batch_size", "parts", "share", "names"),
    [
        ("v5e:16x16", 128, 1, 1, ["v5e:4x8", "v5e:8x8", "v5e:8x16"]),
        ("v5e:16x16", 128, 4, 1, ["v5e:2x4", "v5e:4x4", "v5e:4x8"]),
        ("v5e:16x16", 128, 1, 2, ["v5e:8x8", "v5e:8x16", "v5e:16x16"]),
        ("v3:2x2", 4, 1, 1, []),
    ],
)
def test_topologies_that_a_batch_divides_over(name, batch_size, parts, share, names):
    assert topology.dividing(name, batch_size=batch_size, parts=parts, share=share) == names
