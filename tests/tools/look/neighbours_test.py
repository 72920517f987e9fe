import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import csv, parquet

from tests.conftest import save_toy
from tests.messages import refused, told
from vit_jax import embed as embedding
from vit_jax.core.screen import Screen
from vit_jax.tools.look import neighbours


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with weights of a toy ViT, images and their table; red.png has a copy, green.png."""
    place = tmp_path_factory.mktemp("neighbours")
    for seed, name in enumerate(("toy", "other")):
        save_toy(place / f"{name}.npz", seed)
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    (place / "images").mkdir()
    for i, image in enumerate([*pixels, pixels[3]]):
        Image.fromarray(image).save(place / "images" / f"{i:02}.png")
    embed(place, place / "a.parquet")
    return place


def embed(place, output, **options):
    folder, checkpoint = str(place / "images"), str(place / "toy.npz")
    embedding.embed(folder, checkpoint, output, screen=Screen(), **options)


@pytest.fixture
def run(place, run_python):
    def run(*flags):
        return run_python("-m", "vit_jax", "neighbours", *(f.format(place) for f in flags))

    return run


TABLE, NUMBER_3, NUMBER_5 = "{0}/a.parquet", "{0}/images/03.png", "{0}/images/05.png"
NEAREST = ("--checkpoint={0}/toy.npz", TABLE, NUMBER_3, NUMBER_5)


def test_nearest_of_images(place, run):
    done = run("--json", "--top_k=3", *NEAREST)
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["file"], second["file"]) == (NUMBER_3.format(place), NUMBER_5.format(place))
    assert {each["file"] for each in first["nearest"][:2]} == {"03.png", "12.png"}
    features = np.stack(parquet.read_table(place / "a.parquet")["features"].to_numpy())
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    names = parquet.read_table(place / "a.parquet")["file"].to_pylist()
    cosines = unit @ unit[names.index("05.png")]
    assert [each["file"] for each in second["nearest"]] == [
        names[i] for i in np.argsort(-cosines)[:3]
    ]
    assert [each["cosine"] for each in second["nearest"]] == pytest.approx(
        np.sort(cosines)[::-1][:3], abs=1e-5
    )
    plain = run("--top_k=1", *NEAREST).stdout
    assert plain.splitlines()[1] == f"{NUMBER_5.format(place)}  1.0000 05.png"


def test_duplicates_as_table_and_page(place, run, tmp_path):
    flags = ("--duplicates", "--threshold=0.9999", TABLE)
    done = run(*flags)
    assert done.stdout == "03.png  1.0000 12.png\n"  # in the order of the table
    told(done.stderr, "1 of 13", "0.9999")
    assert run(f"--output={tmp_path}/new/a.csv", "--top_k=2", *NEAREST).returncode == 0
    row, *others = csv.read_csv(tmp_path / "new" / "a.csv").to_pylist()
    assert (row.pop("nearest") in ("03.png", "12.png")) and row.pop("cosine") == 1.0
    assert row == {"file": NUMBER_3.format(place), "rank": 1}
    assert [other["rank"] for other in others] == [2, 1, 2]
    assert run(f"--output={tmp_path}/a.html", "--images={0}/images", *flags).returncode == 0
    page = (tmp_path / "a.html").read_text()
    assert page.count("<img") == 2 and ">12.png<" in page and ">1.0000<" in page


def test_a_table_of_half_precision(place, tmp_path):
    embed(place, tmp_path / "half.parquet", dtype="float16", features="mean")
    table = neighbours.FeatureTable(str(tmp_path / "half.parquet"))
    assert table.features.dtype == np.float16
    found = neighbours.nearest(
        table, [place / "images" / "07.png"], str(place / "toy.npz"), 1, lambda *_: None
    )
    assert found[0].matches[0] == ("07.png", pytest.approx(1, abs=1e-5))


def write(file, features, about, files=("a.png", "b.png")):
    """A table with the metadata of embed's."""
    schema = pa.schema([("file", pa.string()), ("features", pa.list_(pa.float32(), 2))])
    table = pa.table([list(files), features], schema.with_metadata({embedding.ABOUT: about}))
    parquet.write_table(table, file)
    return str(file)


def test_other_files_are_refused(place, tmp_path):
    about = parquet.read_schema(place / "a.parquet").metadata[embedding.ABOUT]
    good, file, features = (place / "a.parquet").read_bytes(), tmp_path / "a.parquet", [[0, 1]] * 2
    neighbours.FeatureTable(write(file, features, about))
    with refused("nowhere.parquet"):
        neighbours.FeatureTable("/nowhere.parquet")
    for data in (b"", good[:-99]):
        file.write_bytes(data)
        with refused("a.parquet"):
            neighbours.FeatureTable(str(file))
    parquet.write_table(pa.table({"file": ["a"], "features": [[1.0]]}), file)
    with refused("vit-jax embed"):
        neighbours.FeatureTable(str(file))
    outside = ("/etc/a.png", "../a.png", "b/../../a.png", None)  # which a page would show
    for name, *table in (
        ("rows", [], about, ()),
        ("b.png", [[0, 1], [np.nan, 0]], about),
        ("vit-jax embed", [[0, 1], None], about),
        *(
            ("vit-jax embed", features, wrong)
            for wrong in (b"x", b"{}", b"[1]", about.replace(b"float32", b"complexx"))
        ),
        *(("vit-jax embed", features, about, ("b.png", name)) for name in outside),
    ):
        with refused(name):
            neighbours.FeatureTable(write(file, *table))
    embed(place, tmp_path / "patches.parquet", features="patches")
    with refused("--features=patches"):
        neighbours.FeatureTable(str(tmp_path / "patches.parquet"))


def test_other_weights_and_images_are_refused(place, tmp_path):
    table = neighbours.FeatureTable(str(place / "a.parquet"))
    image = place / "images" / "00.png"
    with refused("other weights"):
        neighbours.nearest(table, [image], str(place / "other.npz"), 1, lambda *_: None)
    bad = Path(tmp_path / "bad.png")
    bad.write_text("no image")
    with refused("bad.png") as error:
        neighbours.nearest(table, [image, bad], str(place / "toy.npz"), 1, lambda *_: None)
    assert "on_bad_image" not in str(error.value)  # a flag of other commands
