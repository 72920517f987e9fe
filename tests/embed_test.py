import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet

from tests.conftest import save_toy
from tests.messages import refused, told
from tests.processes import wait_for
from vit_jax import embed as embedding
from vit_jax import weights
from vit_jax.core.errors import NonFiniteError
from vit_jax.core.screen import Screen
from vit_jax.models import images, inference

NUMBER, STRETCH = 21, 8  # images, and of a part


@pytest.fixture(scope="module")
def save(tmp_path_factory):
    """`save(seed, **fields)`: the file of a toy ViT."""

    return lambda seed=0, **fields: save_toy(
        tmp_path_factory.mktemp("weights") / "toy.npz", seed, **fields
    )


@pytest.fixture(scope="module")
def checkpoint(save):
    return save()


def write_image(file, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)


@pytest.fixture
def folder(tmp_path):
    for seed in range(NUMBER):
        write_image(tmp_path / "images" / ("cat", "dog")[seed % 2] / f"{seed}.png", seed)
    return tmp_path / "images"


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(embedding, "MOST_IMAGES_A_PART", STRETCH)


def embed(folder, checkpoint, output, **options):
    embedding.embed(str(folder), str(checkpoint), Path(output), screen=Screen(), **options)
    return parquet.ParquetFile(output)


def values(table):
    """[B, ...]"""
    return np.array(table["features"].to_pylist())


def in_the_middle(monkeypatch, number):
    """After so many images a signal comes; returns the list of those that are loaded."""
    loaded = []

    def load(image, *rest):
        if len(loaded) == number:
            raise KeyboardInterrupt
        loaded.append(image)
        return images.load(image, *rest)

    monkeypatch.setattr(inference, "load", load)
    return loaded


@pytest.mark.parametrize(
    ("features", "dtype"),
    [*((each, "float32") for each in embedding.FEATURES), ("mean", "float16")],
)
def test_rows_are_the_models_features(folder, checkpoint, tmp_path, features, dtype):
    table = embed(folder, checkpoint, tmp_path / "a.parquet", features=features, dtype=dtype).read()
    model = weights.load(checkpoint)
    files = [folder / name for name in table["file"].to_pylist()]
    assert sorted(files) == sorted(folder.rglob("*.png"))
    assert table["name"].to_pylist() == [file.parent.name for file in files]
    assert table["class"].to_pylist() == [("cat", "dog").index(f.parent.name) for f in files]
    prepared = np.stack([images.load(file, model.preprocess) for file in files])
    tokens = np.asarray(model.tokens(prepared))
    expected = {
        "pre_logits": np.asarray(model.features(prepared)),
        "class_token": tokens[:, 0],
        "patches": tokens[:, 1:],
        "mean": tokens[:, 1:].mean(1),
    }[features]
    np.testing.assert_allclose(
        values(table), expected, atol={"float32": 1e-5, "float16": 1e-3}[dtype]
    )
    kind = table.schema.field("features").type
    for side in expected.shape[1:]:
        assert kind.list_size == side
        kind = kind.value_type
    assert kind == embedding.DTYPES[dtype]


def test_goes_on_where_it_was_stopped(folder, checkpoint, tmp_path, monkeypatch):
    straight = embed(folder, checkpoint, tmp_path / "straight.parquet")
    groups = [straight.metadata.row_group(k).num_rows for k in range(straight.num_row_groups)]
    assert groups == [8, 8, 5]
    output = tmp_path / "new" / "a.parquet"
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        in_the_middle(patched, 18)
        embed(folder, checkpoint, output)
    assert [file.name for file in output.parent.iterdir()] == [".a.parquet.parts"]
    loaded = in_the_middle(monkeypatch, NUMBER)
    resumed = embed(folder, checkpoint, output)
    assert 5 <= len(loaded) <= 13  # what was under way is computed again
    assert resumed.read().equals(straight.read(), check_metadata=True)
    assert [file.name for file in output.parent.iterdir()] == ["a.parquet"]
    loaded.clear()
    assert embed(folder, checkpoint, output).read().equals(resumed.read())
    assert not loaded


def test_goes_on_after_it_was_killed(folder, checkpoint, tmp_path, start_python):
    output = tmp_path / "a.parquet"
    program = (
        "import time; from pathlib import Path; from vit_jax import embed\n"
        "from vit_jax.core.screen import Screen; from vit_jax.models import images, inference\n"
        f"embed.MOST_IMAGES_A_PART = {STRETCH}\n"
        "inference.load = lambda *args: (time.sleep(0.1), images.load(*args))[1]\n"
        f"embed.embed({str(folder)!r}, {checkpoint!r}, Path({str(output)!r}), screen=Screen())\n"
    )
    process = start_python(tmp_path / "log", "-c", program)
    parts = tmp_path / ".a.parquet.parts"
    wait_for(lambda: [*parts.glob("[0-9]*")], what=(tmp_path / "log").read_text)
    process.kill()
    process.wait()
    assert not output.exists()
    resumed = embed(folder, checkpoint, output).read()
    assert resumed.equals(embed(folder, checkpoint, tmp_path / "straight.parquet").read())


def end(data):
    """How many bytes of a table are behind its last row."""
    return 8 + int.from_bytes(data[-8:-4], "little")


FIRST, SECOND = "00000000.parquet", "00000001.parquet"
DAMAGES = {
    "empty": lambda data: b"",
    "rows": lambda data: data[: -20 - end(data)] + bytes(20) + data[-end(data) :],
    "metadata": lambda data: data[:-100] + bytes(90) + data[-10:],
    # Lists have any size then.
    "schema": lambda data: data.replace(b"ARROW:schema", b"ARROW:schem?"),
}


def damage(how):
    return lambda parts: (parts / SECOND).write_bytes(how((parts / SECOND).read_bytes()))


def swap(parts):
    (parts / FIRST).rename(parts / "x")
    (parts / SECOND).rename(parts / FIRST)
    (parts / "x").rename(parts / SECOND)


MIX_UPS = {
    **{name: damage(how) for name, how in DAMAGES.items()},
    "swapped": swap,
    "twice": lambda parts: shutil.copy(parts / FIRST, parts / SECOND),
    "a copy": lambda parts: shutil.copy(parts / FIRST, parts / "00000000 (1).parquet"),
    "missing": lambda parts: (parts / SECOND).unlink(),
}


@pytest.mark.parametrize("name", MIX_UPS)
def test_parts_that_are_damaged_or_not_in_their_places_are_written_again(
    folder, checkpoint, tmp_path, monkeypatch, name
):
    output = tmp_path / "a.parquet"
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(embedding._Table, "join", lambda table: signal.raise_signal(signal.SIGINT))
        embed(folder, checkpoint, output)
    MIX_UPS[name](tmp_path / ".a.parquet.parts")
    straight = embed(folder, checkpoint, tmp_path / "straight.parquet").read()
    assert embed(folder, checkpoint, output).read().equals(straight, check_metadata=True)


def test_a_second_command_is_refused(folder, checkpoint, save, tmp_path, monkeypatch):
    """It would mix its parts with those of the first, or compute them once more."""
    output, join, other = tmp_path / "a.parquet", embedding._Table.join, save(seed=1)

    def embed_others_and_join(table):
        monkeypatch.setattr(embedding._Table, "join", join)
        with refused("Another command", "a.parquet"):
            embed(folder, other, output)
        join(table)

    monkeypatch.setattr(embedding._Table, "join", embed_others_and_join)
    table = embed(folder, checkpoint, output).read()
    assert table.equals(embed(folder, checkpoint, tmp_path / "straight.parquet").read())


@pytest.mark.parametrize(
    "damage", [lambda part: part.write_bytes(b""), Path.unlink], ids=["empty", "gone"]
)
def test_a_part_that_is_damaged_or_gone_is_named(folder, checkpoint, tmp_path, monkeypatch, damage):
    """And not the table as one that cannot be written; another process may have deleted parts."""
    join = embedding._Table.join

    def damage_and_join(table):
        damage(table.folder / "00000001.parquet")
        join(table)

    with monkeypatch.context() as patched:
        patched.setattr(embedding._Table, "join", damage_and_join)
        with refused("00000001.parquet", "same command again"):
            embed(folder, checkpoint, tmp_path / "a.parquet")
    (tmp_path / ".a.parquet.parts" / "00000001.parquet").unlink(missing_ok=True)
    # Even so no row is lost.
    assert embed(folder, checkpoint, tmp_path / "a.parquet").metadata.num_rows == NUMBER


@pytest.mark.parametrize("finished", [True, False])
def test_nothing_else_is_mixed_into_a_table(
    folder, checkpoint, save, tmp_path, monkeypatch, finished
):
    output = tmp_path / "a.parquet"
    if finished:
        embed(folder, checkpoint, output)
    else:
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            in_the_middle(patched, 18)
            embed(folder, checkpoint, output)
    with refused("other weights"):
        embed(folder, save(seed=1), output)
    with refused("other features, dtype"):
        embed(folder, checkpoint, output, features="mean", dtype="float16")
    write_image(folder / "cat" / "new.png", NUMBER)
    with refused("other images"):
        embed(folder, checkpoint, output)
    (folder / "cat" / "new.png").unlink()
    assert embed(folder, checkpoint, output, batch_size=2).metadata.num_rows == NUMBER


def test_another_file_is_not_replaced(folder, checkpoint, tmp_path, monkeypatch):
    in_the_middle(monkeypatch, 0)  # that is said before an image is read
    output = tmp_path / "a.parquet"
    output.write_text("mine")
    with refused("a.parquet"):
        embed(folder, checkpoint, output)
    assert output.read_text() == "mine"
    for wrong in (tmp_path / "a.csv", tmp_path / "\udcff.parquet", output / "b.parquet"):
        with refused("--output"):
            embed(folder, checkpoint, wrong)


def test_images_that_cannot_be_read(folder, checkpoint, tmp_path, capsys):
    output = tmp_path / "a.parquet"
    bad = sorted(folder.rglob("*.png"))[: NUMBER - 3]
    for file in bad:
        file.write_text("no image")
    with refused(".png"):
        embed(folder, checkpoint, output)
    table = embed(folder, checkpoint, output, on_bad_image="skip")
    lines = capsys.readouterr().out.splitlines()
    assert sum("passed over: " in line for line in lines) == len(bad)
    assert "passed over 18 of 21 images" in lines
    assert table.metadata.num_rows == 3
    for file in folder.rglob("*.png"):
        file.write_text("no image")
    with refused("None of the 21 images"):
        embed(folder, checkpoint, tmp_path / "b.parquet", on_bad_image="skip")
    assert not (tmp_path / "b.parquet").exists()


def test_folders_of_other_forms(folder, checkpoint, tmp_path):
    flat = tmp_path / "flat"
    flat.mkdir()
    shutil.copy(folder / "cat" / "0.png", flat / os.fsdecode(b"b\xff.png"))
    table = embed(flat, checkpoint, tmp_path / "flat.parquet").read()
    assert table.column_names == ["file", "features"]
    assert table["file"].to_pylist() == [r"b\udcff.png"]
    (tmp_path / "splits").mkdir()
    folder.rename(tmp_path / "splits" / "train")
    splits = embed(tmp_path / "splits", checkpoint, tmp_path / "s.parquet", split="train").read()
    assert splits["file"][0].as_py().startswith(("train/cat/", "train/dog/"))
    with refused("--split='all'"):
        embed(tmp_path / "splits", checkpoint, tmp_path / "all.parquet")
    (tmp_path / "empty").mkdir()
    for wrong in (tmp_path / "empty", "/nowhere", "gs://bucket/images"):
        with refused(wrong):
            embed(wrong, checkpoint, tmp_path / "e.parquet")


def test_numbers_that_are_not_finite(folder, checkpoint, tmp_path):
    arrays = dict(np.load(checkpoint))
    arrays["Transformer/encoder_norm/bias"] = np.full(8, 1e5, np.float32)
    np.savez(tmp_path / "large.npz", **arrays)
    with refused("float16", error=NonFiniteError):
        embed(folder, tmp_path / "large.npz", tmp_path / "a.parquet", dtype="float16")
    embed(folder, tmp_path / "large.npz", tmp_path / "a.parquet")


def test_the_command_on_several_devices(folder, checkpoint, tmp_path, run_python):
    flags = ("--checkpoint", checkpoint, "--output", str(tmp_path / "a.parquet"))
    done = run_python("-m", "vit_jax", "embed", *flags, str(folder), devices=2)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == f"saved 21 rows to {tmp_path}/a.parquet"
    table = parquet.read_table(tmp_path / "a.parquet")
    alone = embed(folder, checkpoint, tmp_path / "b.parquet").read()
    assert table["file"].equals(alone["file"])
    np.testing.assert_allclose(values(table), values(alone), atol=1e-6)
    assert json.loads(table.schema.metadata[embedding.ABOUT])["features"] == "pre_logits"
    done = run_python("-m", "vit_jax", "embed", *flags)
    told(done.stderr, "one folder")
