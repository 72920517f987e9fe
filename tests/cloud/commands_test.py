"""Every command that reads or writes a bucket, from prepare to predict."""

import json
import time

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from PIL import Image

from tests.cloud.conftest import TINY, said
from tests.cloud.storage import Fault

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
def prepared(bucket, run_python, photos, tmp_path_factory):
    """Folder of a prepared data set; one of its files met a torn upload and a busy storage."""
    scratch = tmp_path_factory.mktemp("scratch")
    bucket.faults = [
        Fault("upload sets/.*array_record.*", cut=True),
        Fault("upload sets/.*dataset_info.*", status=503),
        Fault("upload sets/.*", status=429, skip=5),
    ]
    arguments = (
        "-m", "vit_jax", "prepare", "image_folder", f"--source={photos}", "--name=pets",
        "--output=gs://bucket/sets", f"--scratch={scratch}", "--workers=1",
    )  # fmt: skip
    out = done(run_python(*arguments, **bucket.env))
    assert "uploaded     gs://bucket/sets/pets/1.0.0" in out
    assert not bucket.unmet()
    # Again, nothing but what is small is uploaded.
    bucket.faults, bucket.log = [], []
    done(run_python(*arguments, **bucket.env))
    return "gs://bucket/sets"


def test_prepare_writes_all_and_the_note_last(storage, prepared):
    names = storage.names("sets/pets/1.0.0/")
    assert "sets/pets/1.0.0/dataset_info.json" in names
    assert len([name for name in names if "array_record" in name]) == 2
    assert not [name for name in names if "/.preparing/" in name or name.endswith(".lock")]
    times = {name: each["updated"] for name, each in storage.objects("sets/pets/1.0.0/").items()}
    assert max(times, key=times.get) == "sets/pets/1.0.0/prepared.json"


def test_prepare_does_not_mix_with_a_set_of_others(prepared, command, photos, tmp_path):
    result = command(
        "prepare", "image_folder", f"--source={photos}", "--name=pets", f"--output={prepared}",
        f"--scratch={tmp_path}", "--workers=1",
    )  # fmt: skip
    assert result.returncode == 1
    assert "holds a data set that was made elsewhere" in said(result)


def test_trains_from_a_prepared_set(storage, prepared, command):
    storage.faults = [
        Fault("read sets/.*array_record.*", status=503, times=2),
        Fault("read sets/.*array_record.*", cut=True, skip=4),
    ]
    run = "gs://bucket/of_pets"
    data = [*data_of("tfds", f"{prepared}/pets"), "--config.input.split=train"]
    out = done(command("train", *TINY, *data, f"--workdir={run}"))
    assert "train: 48 examples, 2 classes" in out
    assert not storage.unmet()
    assert "test" in done(command("evaluate", f"--checkpoint={run}"))


def test_trains_from_copies_of_a_prepared_set(prepared, command, tmp_path):
    data = [*data_of("tfds", f"{prepared}/pets"), "--config.input.split=train"]
    cached = f"--config.input.cache={tmp_path}/copies"
    out = done(command("train", *TINY, *data, cached, f"--workdir={tmp_path}/run"))
    assert "train: 48 examples" in out
    assert list((tmp_path / "copies").rglob("*.array_record*"))


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


def test_data_that_cannot_be_read_are_one_message(storage, command, photos):
    storage.upload(photos, "photos")
    storage.faults = [Fault("(list|stat|read) photos/.*", status=403, times=10**6)]
    data = data_of("image_folder", "gs://bucket/photos")
    result = command("train", *TINY, *data, "--workdir=gs://bucket/forbidden_photos")
    assert result.returncode == 1
    assert "gs://bucket/photos cannot be read: PermissionDeniedError" in said(result)
    assert "Traceback" not in said(result)


@pytest.fixture(scope="module")
def trained(bucket, run_python):
    bucket.faults = []
    run = "gs://bucket/trained"
    done(run_python("-m", "vit_jax.train", *TINY, f"--workdir={run}", **bucket.env))
    return run


@pytest.mark.parametrize("output", ["w.npz", "hf", "checkpoint"])
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


def service_account(token_uri):
    """The file of an account that gets its tokens at this address."""
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    named = {"type": "service_account", "client_email": "tests@example.com", "private_key_id": "1"}
    return named | {"private_key": pem, "token_uri": token_uri}


def test_weights_that_are_not_public_come_by_this_machines_account(
    storage, trained, command, tmp_path
):
    done(command("convert", f"--input={trained}", "--output=gs://bucket/private/w.npz"))
    storage.private = "private/"
    account = tmp_path / "account.json"
    account.write_text(json.dumps(service_account(f"{storage.url}/token")))
    arguments = ("convert", "--input=gs://bucket/private/w.npz", f"--output={tmp_path}/w.npz")
    cache = {"VIT_JAX_CACHE": str(tmp_path / "cache")}
    done(command(*arguments, GOOGLE_APPLICATION_CREDENTIALS=str(account), **cache))


def test_exports_there(storage, trained, command):
    output = "gs://bucket/exported"
    done(command("export", f"--checkpoint={trained}", f"--output={output}", "--to=stablehlo"))
    assert len(storage.names("exported/")) == 3


def test_predicts_from_there(trained, command, photos):
    image = next(photos.rglob("*.png"))
    assert "%" in done(command("predict", f"--checkpoint={trained}", str(image)))


def test_programs_are_kept_there(storage, command, tmp_path):
    cache = {
        "JAX_COMPILATION_CACHE_DIR": "gs://bucket/compiled",
        "JAX_COMPILATION_CACHE_MAX_SIZE": "-1",
    }
    storage.faults = [Fault("upload compiled/.*-cache", status=503)]
    for number in (1, 2):
        done(command("train", *TINY, f"--workdir={tmp_path}/{number}", **cache))
        assert any("jit_update" in name for name in storage.names("compiled/"))
    assert any(entry.startswith("read compiled/jit_update") for entry in storage.log)


def test_of_two_runs_in_one_folder_the_first_ends_at_its_next_save(
    storage, start_python, command, tmp_path
):
    """It has not saved since the second started, which goes on from the newest checkpoint."""
    shared = "--workdir=gs://bucket/shared"
    storage.faults = [pause := Fault("upload shared/checkpoints/4/", wait_secs=60)]
    first = start_python(
        tmp_path / "output", "-m", "vit_jax", "train", *TINY, shared, **storage.env
    )
    while not pause.met:
        assert first.poll() is None
        time.sleep(0.05)
    storage.faults = []
    done(command("train", *TINY, shared))
    pause.over.set()
    assert first.wait(timeout=300) == 1
    assert "Another run has started in gs://bucket/shared" in (tmp_path / "output").read_text()
    result = done(
        command("train", *TINY, "--config.total.steps=16", "--allow_config_change", shared)
    )
    assert "step 12" in result
