"""Every command that reads or writes a bucket, from prepare to predict."""

import numpy as np
import pytest
from PIL import Image

from tests.cloud.conftest import TINY, said
from tests.cloud.emulator import Fault

pytestmark = pytest.mark.slow  # processes that train


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of images, one folder a class and split."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for split, number in (("train", 24), ("test", 8)):
        for name in ("cat", "dog"):
            (folder / split / name).mkdir(parents=True)
            for k in range(number):
                pixels = rng.integers(0, 256, (8, 8, 3), np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{k}.png")
    return folder


def done(result):
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return result.stdout


def data_of(source, folder, batch_size=16):
    return [
        f"--config.input.source={source}", f"--config.input.data_dir={folder}",
        "--config.input.preprocess=decode|resize(8)", "--config.input.cache=none",
        "--config.input.num_examples=none", "--config.input.num_classes=none",
        f"--config.input.batch_size={batch_size}",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def prepared(emulator, run_python, photos, tmp_path_factory):
    """Folder of a prepared data set; one of its files met a torn upload and a busy storage."""
    scratch = tmp_path_factory.mktemp("scratch")
    emulator.faults = [
        Fault("upload sets/.*array_record.*", cut=True),
        Fault("upload sets/.*dataset_info.*", status=503),
        Fault("upload sets/.*", status=429, skip=5),
    ]
    arguments = (
        "-m", "vit_jax.prepare", "image_folder", f"--source={photos}", "--name=pets",
        "--output=gs://bucket/sets", f"--scratch={scratch}", "--workers=1",
    )  # fmt: skip
    out = done(run_python(*arguments, **emulator.env))
    assert "uploaded     gs://bucket/sets/pets/1.0.0" in out
    assert not emulator.unmet()
    # Again, nothing but what is small is uploaded.
    emulator.faults, emulator.log = [], []
    done(run_python(*arguments, **emulator.env))
    return "gs://bucket/sets"


def test_prepare_writes_all_and_the_note_last(storage, prepared):
    names = storage.names("sets/pets/1.0.0/")
    assert "sets/pets/1.0.0/dataset_info.json" in names
    assert len([name for name in names if "array_record" in name]) == 2
    assert not [name for name in names if "/.preparing/" in name or name.endswith(".lock")]
    times = {name: storage.objects["bucket"][name].time for name in names}
    assert max(times, key=times.get) == "sets/pets/1.0.0/prepared.json"


def test_prepare_does_not_mix_with_a_set_of_others(prepared, command, photos, tmp_path):
    result = command(
        "prepare", "image_folder", f"--source={photos}", "--name=pets", f"--output={prepared}",
        f"--scratch={tmp_path}", "--workers=1",
    )  # fmt: skip
    assert result.returncode == 1
    assert "holds a data set that was made elsewhere" in said(result)


def test_trains_from_a_folder_of_images(storage, command, photos):
    storage.upload(photos, "photos")
    storage.faults = [
        Fault("list photos/.*", status=429, times=2),
        Fault("read photos/.*", status=503, times=3),
        Fault("read photos/.*", cut=True, skip=20),
    ]
    data = data_of("image_folder", "gs://bucket/photos")
    out = done(command("train", *TINY, *data, "--workdir=gs://bucket/of_photos"))
    assert "train: 48 examples, 2 classes" in out
    assert not storage.unmet()


@pytest.fixture(scope="module")
def trained(emulator, run_python):
    emulator.faults = []
    run = "gs://bucket/trained"
    done(run_python("-m", "vit_jax.train", *TINY, f"--workdir={run}", **emulator.env))
    return run


@pytest.mark.parametrize("output", ["w.npz", "hf"])
def test_weights_go_there_and_come_back(storage, trained, command, output, tmp_path):
    to = {"hf": "huggingface", "w.npz": "google_npz"}.get(output, output)
    there = f"gs://bucket/weights/{output}"
    storage.faults = [Fault("upload weights/.*", cut=True)]
    done(command("convert", f"--input={trained}", f"--output={there}", f"--to={to}"))
    assert not storage.unmet()
    again = command("convert", f"--input={trained}", f"--output={there}", f"--to={to}")
    assert again.returncode == 1
    assert "is there already" in said(again)
    back = tmp_path / "back.npz"
    cache = {"VIT_JAX_CACHE": str(tmp_path / "cache")}
    done(command("convert", f"--input={there}", f"--output={back}", **cache))
    if output == "w.npz":
        assert back.read_bytes() == storage.read("weights/w.npz")
    done(
        command(
            "train", *TINY, f"--config.init.weights={there}", f"--workdir={tmp_path}/on", **cache
        )
    )
