"""train --check reads a little of everything, compiles nothing, leaves nothing."""

import contextlib
import io
import os
import re
import shutil
import signal
from contextlib import nullcontext
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from etils import epath
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from PIL import Image

from tests.messages import refused, told
from vit_jax import train as train_file
from vit_jax.cluster.peers import Peers
from vit_jax.core.errors import UserError
from vit_jax.data.sources.image_folder import ImageFolder
from vit_jax.run.check import check, device_bytes

EVAL = "evals.test.preprocess=decode|resize(8)"


@pytest.fixture
def look(tmp_path, tiny_run):
    """(table, message or None) of a run with these overrides."""

    def look(*overrides, **options):
        screen, error = io.StringIO(), None
        workdir = epath.Path(tmp_path / "run")
        try:
            with contextlib.redirect_stdout(screen):
                config = tiny_run(*overrides)
                check(config, workdir, **({"allow_config_change": False} | options))
        except UserError as caught:
            error = str(caught)
        return screen.getvalue(), error

    return look


@pytest.fixture
def images(tmp_path):
    """A folder of 8 images, as overrides."""
    for split in ("train", "test"):
        for name in ("a", "b"):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for i in range(2):
                Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / f"{i}.png")
    return [
        "input.source=image_folder", f"input.data_dir={tmp_path / 'images'}", "input.batch_size=2",
        "input.num_examples=none", "input.num_classes=none",
    ]  # fmt: skip


def rows(table):
    return {line.split()[0]: line for line in table.splitlines()}


@pytest.mark.usefixtures("quick_compilation")
def test_a_few_steps_tell_how_long_a_run_takes(look, tmp_path):
    table, error = look("total.steps=10_000", time_steps=True)
    assert error is None and not list(tmp_path.rglob("checkpoints"))
    assert rows(table)["plan"].split()[1:4] == ["10,000", "steps", "of"]
    assert re.fullmatch(
        r"time     [\d.]+ s a step: 10,000 steps take [\d:]+, besides evaluations.*",
        rows(table)["time"],
    )


def test_a_step_that_does_not_fit_is_explained(look, monkeypatch):
    def no_room(*_, **__):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in hbm")

    monkeypatch.setattr(jax.stages.Lowered, "compile", no_room)
    told(look(time_steps=True)[1], "input.batch_size", "model.remat")


def test_a_good_run_is_shown_and_leaves_no_trace(tmp_path, look, monkeypatch):
    def no_compilation(*_, **__):
        raise AssertionError("something is compiled")

    monkeypatch.setattr(jax.stages.Lowered, "compile", no_compilation)
    table, error = look(EVAL)
    assert error is None
    assert all(line.endswith(" ok") for line in table.splitlines())
    shown = rows(table)
    assert "synthetic, train: 64 examples, 4 classes; read the first batch" in shown["input"]
    assert "; read 16" in shown["evals.test"]
    assert "1 x cpu" in shown["mesh"]
    assert "begins anew" in shown["workdir"]
    assert not (tmp_path / "run").exists()


def test_bad_images_of_all_data_are_named_at_once(tmp_path, look, images):
    broken = [tmp_path / "images" / split / "b" / "1.png" for split in ("train", "test")]
    for file in broken:
        file.write_bytes(b"no image")
    table, error = look(*images, EVAL)
    told(error, *broken)
    shown = rows(table)
    assert shown["input"].endswith("problem 1")
    assert shown["evals.test"].endswith("problem 2")
    assert shown["model"].endswith("ok")
    table, error = look(*images, EVAL, "input.on_bad_image=skip")
    assert error is None
    assert "read 4, 1 of them bad images" in rows(table)["evals.test"]


def test_both_splits_of_frozen_features_are_sampled(tmp_path, look, images):
    """A bad image of the one that is learnt from would stop the run at its first evaluation."""
    (tmp_path / "images" / "train" / "a" / "0.png").write_bytes(b"not an image")
    fields = ("kind=frozen", "train_split=train[:2]", "shots=1", "neighbours=1")
    frozen = [f"evals.test.{field}" for field in fields]
    table, _ = look(*images, EVAL, *frozen, "input.on_bad_image=skip")
    shown = rows(table)
    assert "image_folder, train[:2]: 2 examples" in shown["evals.test.train_split"]
    folder = tmp_path / "images"
    assert f"image_folder, test: 4 examples, 2 classes, in {folder}; read" in shown["evals.test"]
    bad = [bool("bad image" in shown[f"evals.test{part}"]) for part in (".train_split", "")]
    assert bad == [True, False]


@pytest.mark.slow
def test_every_image_is_checked_on_request(tmp_path, look, images, monkeypatch):
    """No sampling: the bad ones are not first, last or a 16th part."""
    monkeypatch.setattr("vit_jax.run.check.SAMPLES", 2)
    images[2] = "input.batch_size=1"
    broken = [tmp_path / "images" / split / "b" / "0.png" for split in ("train", "test")]
    for file in broken:
        file.write_bytes(b"no image")
    every = {"all_images": True}
    table, error = look(*images, EVAL, **every)
    listed = [line for line in table.splitlines() if line.startswith("bad  ")]
    assert [line.split()[1].rstrip(":") for line in listed] == list(map(str, broken))
    assert all("not an image of a format" in line for line in listed)
    told(error, "input: ", "evals.test: ")

    skip = "input.on_bad_image=skip"
    table, error = look(*images, EVAL, skip, **every)
    told(error, "input.max_bad_fraction")
    table, error = look(*images, EVAL, skip, "input.max_bad_fraction=0.3", **every)
    assert error is None
    assert "read all, 1 of them bad images" in rows(table)["input"]
    assert "read all, 1 of them bad images" in rows(table)["evals.test"]

    for file in (tmp_path / "images" / "test").glob("*/*.png"):
        file.write_bytes(b"no image")
    _, error = look(*images, EVAL, skip, "input.max_bad_fraction=0.3", **every)
    told(error, "evals.test: ")


def test_bad_images_of_all_processes_are_counted(look, images, monkeypatch):
    """Each reads a part of them; here another one has found three in each split."""
    both = lambda counts: np.stack([counts, (3, 0)])
    monkeypatch.setattr("vit_jax.run.check.multihost_utils.process_allgather", both)
    skip = ("input.on_bad_image=skip", "input.max_bad_fraction=0.5", EVAL)
    table, error = look(*images, *skip, "input.batch_size=1", all_images=True)
    told(error, "input: ", "3 of 4")
    assert "read all, 3 of them bad images" in rows(table)["evals.test"]


def test_images_of_one_class_teach_nothing(look, images, tmp_path):
    shutil.rmtree(tmp_path / "images/train/b")
    shutil.rmtree(tmp_path / "images/test/b")
    table, error = look(*images, EVAL)
    told(error, "input: ", "'a'")
    assert rows(table)["input"].endswith("problem")


def test_what_is_passed_over_and_empty_classes_are_shown(look, images, tmp_path):
    (tmp_path / "images/train/b/notes.txt").write_text("")
    shutil.rmtree(tmp_path / "images/test/b")
    table, error = look(*images, EVAL, "input.split=train[:1]", "input.batch_size=1")
    assert error is None
    assert (
        "data     image_folder, train[:1]: passed over 1 file: without the extension of an image"
        in table
    )
    assert "data     image_folder, train[:1]: 1 of 2 classes have no image: " in table
    assert "data     image_folder, test: 1 of 2 classes have no image: b\n" in table


@pytest.mark.parametrize("wrong", [-1, 2])
def test_a_wrong_label_is_named_and_no_bad_image(tmp_path, look, images, monkeypatch, wrong):
    """A run ends at it, whatever input.on_bad_image is."""
    read = ImageFolder.read
    monkeypatch.setattr(
        ImageFolder,
        "read",
        lambda self, indices: [
            example._replace(labels=(wrong,))
            if self.describe(i).endswith("train/b/1.png")
            else example
            for i, example in zip(indices, read(self, indices), strict=True)
        ],
    )
    table, error = look(*images, EVAL, "input.on_bad_image=skip", all_images=True)
    file = tmp_path / "images/train/b/1.png"
    assert f"bad      {file} has the label {wrong}, outside" in table
    told(error, "input: ")
    assert rows(table)["input"].endswith("problem") and rows(table)["evals.test"].endswith("ok")


def test_parts_that_cannot_be_checked_are_named(look):
    table, error = look("input.source=tfds", "input.data_dir=/nowhere", "input.num_classes=none")
    told(error, "input.data_dir=/nowhere")
    shown = rows(table)
    assert shown["input"].endswith("problem")
    assert shown["model"].split() == ["model", "not", "looked", "at", "-"]


def test_weights_are_read_and_verified(tmp_path, trained, look):
    shutil.copytree(trained[0], tmp_path / "first")
    override = f"init.weights={tmp_path / 'first'}"
    table, error = look(override)
    assert error is None
    assert "arrays fit, checksums right" in rows(table)["init"]
    for file in (tmp_path / "first" / "checkpoints" / "6" / "state").rglob("*"):
        if file.is_file() and file.parent.name == "d":  # the arrays' bytes
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 1
            file.write_bytes(data)
    table, error = look(override)
    assert "damaged" in error and str(tmp_path / "first") in error  # the rest is orbax's
    assert rows(table)["init"].endswith("problem")


def test_another_config_in_the_work_directory_is_found(tmp_path, trained, look):
    shutil.copytree(trained[0], tmp_path / "run")
    before = sorted(tmp_path.rglob("*"))
    table, error = look("optim.lr=0.5")
    told(error, "optim.lr: 0.001", f"--config.init.weights={tmp_path / 'run'}")
    assert "goes on from step 6" in rows(table)["workdir"]
    assert sorted(tmp_path.rglob("*")) == before
    table, error = look("model.mlp_dim=48", allow_config_change=True)
    told(error, "fc1/bias", "(2, 32)", "(2, 48)")
    assert rows(table)["workdir"].endswith("problem")
    assert "is at step 6, but total" in look("total.steps=5", allow_config_change=True)[1]
    assert look("optim.lr=0.5", allow_config_change=True)[1] is None


def test_a_state_that_no_device_can_hold_is_refused(look, monkeypatch):
    monkeypatch.setattr("vit_jax.run.memory.device_memory", lambda _: 20_480)
    monkeypatch.setattr("vit_jax.run.check.device_memory", lambda _: 20_480)
    table, error = look()
    told(error, "20 KiB", "mesh.fsdp")
    assert " of 20 KiB a device" in rows(table)["memory"]


def test_device_bytes_count_what_one_device_holds():
    mesh = AbstractMesh((4,), ("data",))
    split, whole = (
        jax.ShapeDtypeStruct((8, 3), np.float32, sharding=NamedSharding(mesh, spec))
        for spec in (PartitionSpec("data"), PartitionSpec())
    )
    assert device_bytes({"a": split, "b": whole}) == (2 * 3 + 8 * 3) * 4
    assert device_bytes({}) == 0


def test_a_signal_ends_it_at_once(tmp_path, monkeypatch):
    given = {
        "config": "configs/vit_digits.py", "config_override": [], "workdir": str(tmp_path),
        "check": True, "allow_config_change": False, "all_images": False, "time_steps": False,
    }  # fmt: skip
    for module in (train_file, train_file.processes):
        monkeypatch.setattr(module, "FLAGS", SimpleNamespace(**given))
    monkeypatch.setattr(train_file.processes, "find_cluster", lambda: None)
    monkeypatch.setattr(
        train_file.processes, "connect_processes", lambda *_: nullcontext(Peers.alone())
    )
    monkeypatch.setattr(train_file.compilation_cache, "use", lambda: None)
    stopped = lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)
    monkeypatch.setattr("vit_jax.run.check.check", stopped)
    with refused("SIGTERM", error=KeyboardInterrupt):
        train_file.main([])


@pytest.mark.slow
def test_the_command(tmp_path, run_python):
    done = run_python(
        "-m", "vit_jax.train", "--config", "configs/vit_digits.py", "--check",
        "--workdir", str(tmp_path / "run"), "--config.optim.freeze=hed",
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout.count("\n") > 5
    told(done.stderr, "optim.freeze", "'hed'")
    assert not list(tmp_path.iterdir())
