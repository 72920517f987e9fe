import errno
import json
import os

import jax
import numpy as np
import pytest
from etils import epath
from jax.sharding import AbstractMesh
from PIL import Image

from tests.conftest import TINY_RUN
from tests.messages import refused
from vit_jax import config as configs
from vit_jax.run import memory
from vit_jax.run.build import Run
from vit_jax.run.parts import device_cache, examples, inputs
from vit_jax.run.parts.device_cache import DeviceCache
from vit_jax.run.parts.examples import SplitOfRun
from vit_jax.train import train

RUN = (
    "input.preprocess=decode|resize(10)|pad_crop(8, 1)|flip_lr", "log.tensorboard=true",
    "model.depth=1", "loss.mixup=0.2", "evals.test.preprocess=decode|resize(8)",
    "evals.test.every_steps=4", "evals.test.batch_size=8",
)  # fmt: skip

# In an interpreter that has imported nothing: trains, evaluates, saves.
WITHOUT_TENSORFLOW = """
import json, sys
from etils import epath
from vit_jax import config as configs
from vit_jax.train import train
values, overrides, workdir = json.loads(sys.argv[1])
train(configs.resolve(values, overrides), epath.Path(workdir))
assert "tensorflow" not in sys.modules, "TensorFlow was imported"
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def rows(workdir):
    """The log without speeds, which differ from run to run."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(x).items() if "speed" not in k} for x in lines]


def arrays(workdir):
    """Checksums of the last state, by array."""
    return json.loads((workdir / "checkpoints/6/description/metadata").read_text())["arrays"]


@pytest.fixture
def build(tmp_path, tiny_run):
    """`build("seed=1")`: builds the run with these overrides."""
    return lambda *overrides: Run.build(
        tiny_run("input.cache=device", *overrides), epath.Path(tmp_path / "w")
    )


@pytest.mark.slow
def test_trains_to_the_same_bits_later_without_tensorflow(run_python, tmp_path):
    train(configs.resolve(TINY_RUN, [*RUN, "input.cache=device"]), epath.Path(tmp_path / "first"))
    job = json.dumps([TINY_RUN, [*RUN, "input.cache=device"], str(tmp_path / "device")])
    ended = run_python("-c", WITHOUT_TENSORFLOW, job, fresh=True)
    assert ended.returncode == 0, ended.stderr
    train(configs.resolve(TINY_RUN, RUN), epath.Path(tmp_path / "host"))
    for device in ("first", "device"):
        assert rows(tmp_path / device) == rows(tmp_path / "host")
        assert arrays(tmp_path / device) == arrays(tmp_path / "host")
    assert list((tmp_path / "device").glob("events.out.tfevents.*"))


def test_what_it_cannot_do_is_refused_before_the_run(build):
    with refused("input.preprocess", "grayscale(0.5)", "pad_crop", "input.cache=ram"):
        build("input.preprocess=decode|resize(8)|grayscale(0.5)")
    with refused("decode|resize_small(8)"):
        build("input.preprocess=decode|resize_small(8)|pad_crop(8, 1)")
    with refused("input.preprocess", "pad_crop(16, 1) asks for 16 x 16 of 8 x 8"):
        digits = ("input.source=digits", "input.num_examples=none", "input.num_classes=none")
        build(*digits, "input.preprocess=decode|pad_crop(16, 1)")


def test_what_does_not_fit_is_refused_before_the_run(build, monkeypatch):
    limits = ("input.cache_bytes=13_000", "evals.test.preprocess=decode|resize(8)")
    # 64 images of 8 x 8 and the 16 of the evaluation, with a label and a weight each.
    with refused("16,000", "input.cache_bytes=13,000"):
        build(*limits)
    monkeypatch.setattr(device_cache, "device_memory", lambda device: 72_000)
    monkeypatch.setattr(memory, "device_memory", lambda device: 72_000)
    with refused("12.5 KiB", "70.3 KiB"):
        build()


def test_a_large_set_is_divided():
    """Over the devices that share a batch, not over those that share a model."""
    layout = {"replica": 2, "data": 4, "fsdp": 1, "tensor": 2}
    mesh = AbstractMesh(tuple(layout.values()), tuple(layout))
    sizes = lambda there: device_cache.cached_bytes(100, (8, 8), mesh, there)
    assert sizes(16 * 20_000) == (20_000, False)
    assert sizes(16 * 20_000 - 1) == (2_500, True)
    assert sizes(None) == (20_000, False)


@pytest.fixture
def folder(tmp_path):
    """A folder of ten images of 8 x 8 in each of two classes."""
    for i in range(20):
        image = tmp_path / "images" / "train" / "ab"[i % 2] / f"{i}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), i, np.uint8)).save(image)
    return tmp_path / "images" / "train"


@pytest.fixture
def first_batch(folder, tiny_run):
    """`first_batch("seed=1")`: (the first batch of the images, the feed's bad images)."""

    def made(*overrides):
        config = tiny_run(
            "input.cache=device", "input.source=image_folder", f"input.data_dir={folder.parent}",
            "input.num_examples=none", "input.num_classes=none", "input.preprocess=decode|flip_lr|"
            "pad_crop(8, 0)", *overrides,
        )  # fmt: skip
        source, mesh = examples.source(config.input), inputs.mesh(config.mesh)
        layout = inputs.batch_layout(config.input, source, mesh)
        with inputs.train_feed(
            config.input, source, layout, seed=config.seed, start_step=0
        ) as feed:
            return jax.device_get(next(feed)), feed.bad_images.files

    return made


def test_a_bad_image_is_named_or_skipped(first_batch, folder):
    (folder / "a" / "4.png").write_bytes(b"not an image")
    everything = "input.batch_size=20"
    with refused("4.png", "input.on_bad_image="):
        first_batch(everything)
    batch, bad = first_batch(everything, "input.on_bad_image=skip")
    assert (batch["weight"] == 0).sum() == 1
    assert "4.png: not an image" in bad[0]
    # What was kept for skipping is not used where it is to fail.
    with refused("4.png"):
        first_batch(everything)


def test_an_image_of_another_size_is_named(first_batch, folder):
    Image.fromarray(np.zeros((8, 9, 3), np.uint8)).save(folder / "b" / "13.png")
    with refused("13.png", "8 x 9", "8 x 8"):
        first_batch()


def test_what_was_decoded_is_used_until_a_file_changes(first_batch, folder, tmp_path):
    before, _ = first_batch("input.batch_size=20")
    (kept,) = (tmp_path / "cache" / "vit_jax" / "decoded").glob("*.npz")
    time = kept.stat().st_mtime_ns
    first_batch("seed=1")
    assert kept.stat().st_mtime_ns == time
    for damage in (
        lambda: kept.write_bytes(kept.read_bytes()[:-1]),
        lambda: kept.write_bytes(b""),
        lambda: kept.write_bytes(kept.read_bytes()[:-1] + b"\7"),
        lambda: kept.write_bytes(kept.read_bytes().replace(b"\7" * 9, b"\1" * 9, 1)),
        lambda: np.savez(kept, faults="{"),
        kept.unlink,
    ):
        damage()  # made again
        again, _ = first_batch("input.batch_size=20")
        np.testing.assert_array_equal(again["image"], before["image"])
    image = folder / "a" / "0.png"
    Image.fromarray(np.full((8, 8, 3), 200, np.uint8)).save(image)
    os.utime(image, (1, 1))
    after, _ = first_batch("input.batch_size=20")
    assert sorted(after["image"].max(axis=(1, 2, 3))) == [*range(1, 20), 200]


@pytest.mark.parametrize("is_full", [False, True], ids=["a file in the way", "a full disk"])
def test_nothing_is_kept_where_it_cannot_be_written(first_batch, tmp_path, monkeypatch, is_full):
    expected, _ = first_batch("input.cache=none")

    def full(file, **arrays):
        file.write(b"a part of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    if is_full:
        monkeypatch.setattr(np, "savez", full)
    else:
        (tmp_path / "cache").write_text("a file")
    found, _ = first_batch()
    np.testing.assert_array_equal(found["image"], expected["image"])
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_an_image_of_another_size_is_found_by_a_check_of_all(folder, tiny_run):
    Image.fromarray(np.zeros((8, 9, 3), np.uint8)).save(folder / "b" / "13.png")
    of_folder = (
        "input.source=image_folder", f"input.data_dir={folder.parent}", "input.num_examples=none",
        "input.num_classes=none", "input.preprocess=decode|flip_lr|pad_crop(8, 0)",
    )  # fmt: skip
    config = tiny_run("input.cache=device", *of_folder)
    split = SplitOfRun("input", examples.source(config.input), config.input.preprocess)
    with refused("13.png", "8 x 9"):
        DeviceCache(config.input, split).check_images()


def test_sets_of_other_labels_are_other_sets(tiny_run):
    c = tiny_run("input.cache=device").input
    source = examples.source(c)
    file = DeviceCache(c, SplitOfRun("input", source, c.preprocess)).file
    before = file()
    source.max_labels = 3
    more = file()
    source.weighted = True
    assert len({before, more, file()}) == 3
