"""Lists in JSON lines, Parquet and CSV, and WebDataset tars."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.messages import refused
from tests.tools.prepare.bad_images import exif
from tests.tools.prepare.conftest import jpeg, tar
from tests.tools.prepare.pipeline_test import prepared
from vit_jax.data.sources.request import Request
from vit_jax.data.sources.tfds import Tfds
from vit_jax.tools.prepare import entries as entries_module
from vit_jax.tools.prepare import records, summary, tars, tasks
from vit_jax.tools.prepare.collection import Collection, CollectionRequest, PrepareOptions
from vit_jax.tools.prepare.entries import source_files
from vit_jax.tools.prepare.prepared_set import PreparedSet

SMALL = PrepareOptions(shard_mib=0.02)
NAMES = ("ant", "bee", "cat")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a list, with class names and six images."""
    root = tmp_path / "jft"
    (root / "images").mkdir(parents=True)
    (root / "classes.txt").write_text("\n".join(NAMES) + "\n")
    for i in range(6):
        (root / "images" / f"{i}.jpg").write_bytes(jpeg(i))
    return root


def request(folder: Path, source: str, **options: object) -> CollectionRequest:
    return CollectionRequest(source, classes=str(folder / "classes.txt"), **options)  # type: ignore[arg-type]


def write_lines(path: Path, entries: list) -> None:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def labels(data_set: PreparedSet) -> dict[bytes, tuple[int, ...]]:
    source = Tfds(Request("train", str(data_set.folder)))
    return {e.image: e.labels for e in source.read(np.arange(source.num_examples))}


def test_paths_names_and_weights(tmp_path: Path, folder: Path) -> None:
    import tensorflow_datasets as tfds

    write_lines(
        folder / "list.jsonl",
        [
            {"image": "images/0.jpg", "labels": ["cat", "ant"], "weights": [0.5, 1], "id": "zero"},
            {"image": {"path": "images/1.jpg"}, "labels": [1]},
            {"image": str(folder / "images" / "2.jpg"), "labels": "bee", "id": 17},
        ],
    )
    data_set = prepared(records.collection(request(folder, str(folder))), tmp_path / "out", SMALL)
    assert labels(data_set) == {jpeg(0): (2, 0), jpeg(1): (1,), jpeg(2): (1,)}
    by_tfds = tfds.builder_from_directory(data_set.folder).as_data_source(split="train")
    examples = {example["file_name"]: example for example in by_tfds}
    assert set(examples) == {b"zero", b"images/1.jpg", b"17"}
    assert examples[b"zero"]["label_weights"] == [0.5, 1]
    assert examples[b"17"]["label_weights"] == []
    source = Tfds(Request("train", str(data_set.folder)))
    weights = {e.image: e.weights for e in source.read(np.arange(3))}
    assert source.weighted and weights == {jpeg(0): (0.5, 1.0), jpeg(1): (), jpeg(2): ()}


def test_one_label_may_have_a_weight(tmp_path: Path, folder: Path) -> None:
    entries = [{"image": f"images/{i}.jpg", "label": i % 3, "weights": [i / 8]} for i in range(6)]
    write_lines(folder / "list.jsonl", entries)
    wanted = request(folder, str(folder), multi_label=False)
    data_set = prepared(records.collection(wanted), tmp_path / "out", SMALL)
    source = Tfds(Request("train", str(data_set.folder)))
    weights = {e.image: (e.labels, e.weights) for e in source.read(np.arange(6))}
    assert weights == {jpeg(i): ((i % 3,), (i / 8,)) for i in range(6)}
    assert source.max_labels == 1
    plain = Tfds(Request("train", str(data_set.folder), label_weights=False))
    assert not plain.weighted and {e.weights for e in plain.read(np.arange(6))} == {()}


@pytest.mark.parametrize("name", ["rows.parquet", "metadata.jsonl"])
def test_images_of_another_field(tmp_path: Path, folder: Path, name: str) -> None:
    """As Hugging Face has them: `img` in CIFAR-10, `file_name` beside folders of images."""
    write_lines(folder / name, [{"file_name": "images/0.jpg", "label": 2, "image": "none"}])
    field = "file_name"
    if name == "rows.parquet":
        field, image = "img", {"bytes": jpeg(0), "path": "0.jpg"}
        pq.write_table(pa.Table.from_pylist([{"img": image, "label": 2}]), folder / name)
    wanted = request(folder, str(folder / name), multi_label=False, image_field=field)
    data_set = prepared(records.collection(wanted), tmp_path / "out", SMALL)
    assert labels(data_set) == {jpeg(0): (2,)}


def test_bytes_in_json_and_parquet_give_the_same_set(tmp_path: Path, folder: Path) -> None:
    entries = [
        {"image": {"bytes": jpeg(i)}, "labels": [i % 3], "weights": [1.0], "id": str(i)}
        for i in range(6)
    ]
    pq.write_table(pa.Table.from_pylist(entries), folder / "rows.parquet", row_group_size=4)
    as_text = [
        entry | {"image": {"bytes": base64.b64encode(entry["image"]["bytes"]).decode()}}
        for entry in entries
    ]
    write_lines(folder / "list.jsonl", as_text)
    write_lines(folder / "paths.jsonl", [e | {"image": f"images/{e['id']}.jpg"} for e in entries])
    data_sets = [
        prepared(records.collection(request(folder, str(folder / name))), tmp_path / name, SMALL)
        for name in ("list.jsonl", "rows.parquet", "paths.jsonl")
    ]
    assert labels(data_sets[0]) == {jpeg(i): (i % 3,) for i in range(6)}
    assert len({one.digest for one in data_sets}) == 1


def test_one_label_per_image(tmp_path: Path, folder: Path) -> None:
    """The format of Hugging Face's data sets."""
    entries = [{"image": {"bytes": jpeg(i), "path": f"{i}.jpg"}, "label": i % 3} for i in range(6)]
    pq.write_table(pa.Table.from_pylist(entries), folder / "rows.parquet")
    wanted = request(folder, str(folder / "rows.parquet"), multi_label=False)
    data_set = prepared(records.collection(wanted), tmp_path / "out", SMALL)
    assert labels(data_set) == {jpeg(i): (i % 3,) for i in range(6)}
    assert (data_set.folder / "features.json").read_text().count('"label"') == 1
    assert "label_weights" not in (data_set.folder / "features.json").read_text()


def test_many_parts_read_each_line_once(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [{"image": f"images/{i % 6}.jpg", "labels": [0], "id": i} for i in range(50)]
    write_lines(folder / "list.jsonl", entries)
    for step in (7, 60, 1000):
        monkeypatch.setattr(records, "LEAST_PART_BYTES", step)
        monkeypatch.setattr(records, "LINES_PER_PART", 0)
        parts = records.collection(request(folder, str(folder))).parts
        names = [row.name for part in parts for row, _ in records.json_lines(part)]
        assert names == [str(i) for i in range(50)]


BAD_ENTRIES = {
    "no JSON": ("{", "bad_entry"),
    "no object": ("[1]", "bad_entry"),
    "no image": ('{"labels": [1]}', "bad_entry"),
    "a number as the image": ('{"image": 3, "labels": [1]}', "bad_entry"),
    "no base64": ('{"image": {"bytes": "%%%"}, "labels": [1]}', "bad_entry"),
    "an empty id": ('{"image": "images/0.jpg", "labels": [1], "id": ""}', "bad_entry"),
    "an id that is a list": ('{"image": "images/0.jpg", "labels": [1], "id": [1]}', "bad_entry"),
    "deep JSON": ("[" * 100_000, "bad_entry"),
    "no text": (b'{"image": "\xff\xfe"}', "bad_entry"),
    "half a character": ('{"image": "images/\\ud800.jpg", "labels": [1]}', "unsafe_name"),
    "a zero in the path": ('{"image": "images/0.jpg\\u0000", "labels": [1]}', "missing"),
    "a very long path": ('{"image": "' + "x" * 4000 + '", "labels": [1]}', "missing"),
    "no such file": ('{"image": "images/none.jpg", "labels": [1]}', "missing"),
    "a file as a folder": ('{"image": "images/0.jpg/1.jpg", "labels": [1]}', "missing"),
    "a folder": ('{"image": "images", "labels": [1]}', "no_file"),
    "a pipe": ('{"image": "images/pipe", "labels": [1]}', "no_file"),
    "a device": ('{"image": "/dev/zero", "labels": [1]}', "outside"),
    "a path out of the folder": ('{"image": "../secret.jpg", "labels": [1]}', "outside"),
    "a link out of the folder": ('{"image": "images/link.jpg", "labels": [1]}', "outside"),
    "links in a circle": ('{"image": "images/circle", "labels": [1]}', "missing"),
    "no labels": ('{"image": "images/0.jpg"}', "no_label"),
    "an empty list of labels": ('{"image": "images/0.jpg", "labels": []}', "no_label"),
    "a negative label": ('{"image": "images/0.jpg", "labels": [-1]}', "bad_label"),
    "a label too large": ('{"image": "images/0.jpg", "labels": [3]}', "bad_label"),
    "an endless label": ('{"image": "images/0.jpg", "labels": [1e999]}', "bad_label"),
    "a label with a point": ('{"image": "images/0.jpg", "labels": [1.0]}', "bad_label"),
    "a truth value": ('{"image": "images/0.jpg", "labels": [true]}', "bad_label"),
    "an unknown name": ('{"image": "images/0.jpg", "labels": ["dog"]}', "bad_label"),
    "a label twice": ('{"image": "images/0.jpg", "labels": ["ant", 0]}', "bad_label"),
    "NaN": ('{"image": "images/0.jpg", "labels": [1], "weights": [NaN]}', "bad_label"),
    "a weight above 1": ('{"image": "images/0.jpg", "labels": [1], "weights": [2]}', "bad_label"),
    "a negative weight": ('{"image": "images/0.jpg", "labels": [1], "weights": [-1]}', "bad_label"),
    "infinite weight": (
        '{"image": "images/0.jpg", "labels": 1, "weights": [1e999]}',
        "bad_label",
    ),
    "two weights": (
        '{"image": "images/0.jpg", "labels": [1], "weights": [1, 1]}',
        "bad_label",
    ),
    "the same id": ('{"image": "images/0.jpg", "labels": [1], "id": "good"}', "same_name"),
}


def test_entries_that_are_set_aside(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "secret.jpg").write_bytes(jpeg(9))
    (folder / "images" / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    (folder / "images" / "circle").symlink_to(folder / "images" / "circle")
    os.mkfifo(folder / "images" / "pipe")
    good = json.dumps({"image": "images/1.jpg", "labels": [1], "id": "good"}).encode()
    bad = [line.encode() if isinstance(line, str) else line for line, _ in BAD_ENTRIES.values()]
    (folder / "list.jsonl").write_bytes(b"\n".join([good, *bad, b""]))
    data_set = prepared(records.collection(request(folder, str(folder))), tmp_path / "out", SMALL)
    why = {name: data_set.assignment.left_out.get(row) for row, name in enumerate(BAD_ENTRIES, 1)}
    assert why == {name: fault for name, (_, fault) in BAD_ENTRIES.items()}
    assert labels(data_set) == {jpeg(1): (1,)}


def test_paths_are_relative_to_the_root_of_images(tmp_path: Path, folder: Path) -> None:
    """Paths that lead out of that root are a separate fault."""
    lists = tmp_path / "lists"
    lists.mkdir()
    (lists / "5.jpg").write_bytes(jpeg(5))
    (folder / "b\udcff.jpg").write_bytes(jpeg(4))
    (folder / "images" / "named").symlink_to(folder / "b\udcff.jpg")
    paths = ["images/0.jpg", str(folder / "images" / "1.jpg"), "images/../images/2.jpg"]
    paths += ["images/named", "5.jpg", "../lists/5.jpg", str(lists / "5.jpg")]
    write_lines(lists / "list.jsonl", [{"image": path, "labels": [0]} for path in paths])
    wanted = request(folder, str(lists / "list.jsonl"), images_root=str(folder))
    data_set = prepared(records.collection(wanted), tmp_path / "out", SMALL)
    assert set(labels(data_set)) == {jpeg(0), jpeg(1), jpeg(2), jpeg(4)}
    names = data_set.table["name"].to_pylist()
    why = {names[row]: reason for row, reason in data_set.assignment.left_out.items()}
    assert why == {"5.jpg": "missing", paths[5]: "outside", paths[6]: "outside"}
    words = summary.reason_in_words("outside")
    assert "leads out" in words and "UTF-8" not in words
    for root in ("", str(tmp_path / "none"), str(folder / "classes.txt")):
        with refused("--images_root"):
            records.collection(request(folder, str(lists), images_root=root))


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_lists_in_several_folders_may_use_the_same_paths(tmp_path: Path, kind: str) -> None:
    for number, split in enumerate(("train", "val")):
        folder = tmp_path / "all" / split
        (folder / "images").mkdir(parents=True)
        for i in range(2):
            (folder / "images" / f"{i}.jpg").write_bytes(jpeg(10 * number + i))
        if kind == "csv":
            (folder / "list.csv").write_text("file,label\nimages/0.jpg,0\nimages/1.jpg,1\nno,1\n")
        else:
            entries = [{"image": f"images/{name}.jpg", "labels": [0]} for name in "01x"]
            write_lines(folder / f"list.{kind}", entries)
    lists = [str(tmp_path / "all" / split / f"list.{kind}") for split in ("train", "val")]
    for output, source in (("named", f"train={lists[0]},val={lists[1]}"), ("one", ",".join(lists))):
        collection = records.collection(CollectionRequest(source, num_classes=2))
        data_set = prepared(collection, tmp_path / output, PrepareOptions())
        names = data_set.table["name"].to_pylist()
        kept = {names[row] for rows in data_set.assignment.splits.values() for row in rows}
        assert kept == {f"{split}/images/{i}.jpg" for split in ("train", "val") for i in range(2)}
        assert list(data_set.assignment.left_out.values()) == ["missing", "missing"]
    alone = records.collection(CollectionRequest(lists[0], num_classes=2))
    data_set = prepared(alone, tmp_path / "alone", PrepareOptions())
    assert set(data_set.table["name"].to_pylist()) > {"images/0.jpg", "images/1.jpg"}


def test_an_endless_line(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_LINE_BYTES", 1000)
    good = json.dumps({"image": "images/1.jpg", "labels": [1]}) + "\n"
    (folder / "list.jsonl").write_text(good + '{"image": "' + "x" * 5_000_000 + '"}\n' + good)
    data_set = prepared(records.collection(request(folder, str(folder))), tmp_path / "out", SMALL)
    assert Counter(data_set.assignment.left_out.values()) == {"bad_entry": 1, "same_name": 1}


def test_parquet_that_cannot_be_read(tmp_path: Path, folder: Path) -> None:
    path = folder / "rows.parquet"
    pq.write_table(pa.table({"picture": [b"1"], "labels": [[1]]}), path)
    with refused("'image'", "'picture'"):
        records.collection(request(folder, str(path)))
    rows = {"image": [jpeg(i) for i in range(6)] * 20, "labels": [[1]] * 120}
    pq.write_table(pa.table(rows), path, compression="none")
    whole = path.read_bytes()
    for data in (b"", b"PAR1", whole[:1000], b"x" * 1000):
        path.write_bytes(data)
        with refused("rows.parquet"):
            records.collection(request(folder, str(path)))
    path.write_bytes(whole[1000:])
    collection = records.collection(request(folder, str(path)))
    with refused("rows.parquet"):
        prepared(collection, tmp_path / "out", SMALL)


def test_other_types_in_parquet(tmp_path: Path, folder: Path) -> None:
    table = pa.table({"image": [1, 2], "labels": [[1], [2]]})
    pq.write_table(table, folder / "rows.parquet")
    collection = records.collection(request(folder, str(folder / "rows.parquet")))
    with refused():
        prepared(collection, tmp_path / "out", SMALL)
    text = pa.array([b"\xff\xfe", b"images/0.jpg"]).cast(pa.binary()).view(pa.string())
    pq.write_table(pa.table({"image": text, "labels": [[1], [2]]}), folder / "rows.parquet")
    collection = records.collection(request(folder, str(folder / "rows.parquet")))
    data_set = prepared(collection, tmp_path / "text", SMALL)
    assert list(data_set.assignment.left_out.values()) == ["bad_entry"]


@pytest.mark.parametrize(
    "content", ["a\nb\na\n", "a\n\nb", "a\n \t\nb", ""], ids=["twice", "empty", "blank", "none"]
)
def test_lists_of_classes(folder: Path, content: str) -> None:
    (folder / "classes.txt").write_text(content)
    write_lines(folder / "list.jsonl", [{"image": "images/0.jpg", "labels": [0]}])
    with refused("--classes", "classes.txt"):
        records.collection(request(folder, str(folder)))


def test_a_list_of_classes_from_windows(folder: Path) -> None:
    """The list has a byte order mark and carriage returns."""
    (folder / "classes.txt").write_bytes(b"\xef\xbb\xbfant\r\nbee\r\n")
    write_lines(folder / "list.jsonl", [{"image": "images/0.jpg", "labels": ["ant"]}])
    assert records.collection(request(folder, str(folder))).class_names == ("ant", "bee")


def test_a_class_name_that_would_become_two(tmp_path: Path, folder: Path) -> None:
    """Python splits text at more than line ends; TFDS does not."""
    (folder / "classes.txt").write_text("ant\nbee\u2028cat\n")
    write_lines(folder / "list.jsonl", [{"image": "images/0.jpg", "labels": ["ant"]}])
    collection = records.collection(request(folder, str(folder)))
    assert len(collection.class_names) == 2
    with refused():
        prepared(collection, tmp_path / "out", SMALL)


def test_endless_lists_of_classes(tmp_path: Path, folder: Path) -> None:
    write_lines(folder / "list.jsonl", [{"image": "images/0.jpg", "labels": [0]}])
    with open(tmp_path / "huge.txt", "wb") as file:
        file.truncate(40 * 2**30)  # sparse
    for path in ("/dev/zero", str(tmp_path / "huge.txt"), str(tmp_path)):
        with refused():
            records.collection(CollectionRequest(str(folder), classes=path))
    with refused("--num_classes"):
        records.collection(CollectionRequest(str(folder), num_classes=10**9))


def test_a_list_of_classes_that_changes(tmp_path: Path, folder: Path) -> None:
    write_lines(folder / "list.jsonl", [{"image": "images/0.jpg", "labels": ["ant"]}])
    collection = records.collection(request(folder, str(folder)))
    entries_module._numbers.cache_clear()  # as in another process
    (folder / "classes.txt").write_text("bee\nant\n")
    with refused():
        prepared(collection, tmp_path / "out", SMALL)


def test_empty_lists(tmp_path: Path, folder: Path) -> None:
    (folder / "list.jsonl").write_text("")
    with refused():
        records.collection(request(folder, str(folder)))


def test_the_error_explains_why_nothing_is_left(tmp_path: Path, folder: Path) -> None:
    write_lines(folder / "list.jsonl", [{"image": f"{i}.jpg", "labels": [0]} for i in range(6)])
    collection = records.collection(request(folder, str(folder)))
    with refused():
        prepared(collection, tmp_path / "out", SMALL)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_files_that_come_later_are_read(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The list itself does not change, and images that it holds are not read again."""
    entries = [{"image": f"images/{i}.jpg", "labels": [i % 3]} for i in range(6)]
    if kind == "jsonl":
        write_lines(folder / "list.jsonl", entries)
    else:
        pq.write_table(pa.Table.from_pylist(entries), folder / "list.parquet")
    no_image = [{"image": {"bytes": b""}, "labels": [0]}]
    pq.write_table(pa.Table.from_pylist(no_image), folder / "inside.parquet")
    collection = records.collection(
        request(folder, f"{folder}/list.{kind},{folder}/inside.parquet")
    )
    (folder / "images").rename(folder / "away")
    with refused("6 missing"):
        prepared(collection, tmp_path / "out", SMALL)
    (folder / "images").mkdir()
    (folder / "images" / "0.jpg").write_bytes(jpeg(0)[:-200])  # while it is copied
    with refused("5 missing", "1 truncated"):
        prepared(collection, tmp_path / "out", SMALL)
    (folder / "images" / "0.jpg").unlink()
    (folder / "images").rmdir()
    (folder / "away").rename(folder / "images")
    read: list[str] = []
    reading = tasks.read_part
    with monkeypatch.context() as patch:
        patch.setattr(tasks, "read_part", lambda t: read.append(t.part.name) or reading(t))
        data_set = prepared(collection, tmp_path / "out", SMALL)
    assert labels(data_set) == {jpeg(i): (i % 3,) for i in range(6)}
    assert read == [f"list.{kind}@0"]


def test_classes_are_required(folder: Path) -> None:
    write_lines(folder / "list.jsonl", [{"image": "images/0.jpg", "labels": [0]}])
    for wanted in (CollectionRequest(str(folder)), request(folder, str(folder), num_classes=3)):
        with refused("--classes", "--num_classes"):
            records.collection(wanted)


def samples(label: str, *values: object) -> bytes:
    files: dict[str, bytes] = {}
    for i, value in enumerate(values):
        files |= {f"./{i:04}.jpg": jpeg(i), f"./{i:04}.txt": b"a caption"}
        files[f"./{i:04}.{label}"] = (
            str(value).encode()
            if label == "cls"
            else json.dumps({"caption": "x", "tags": value}).encode()
        )
    return tar(files)


@pytest.mark.parametrize("compressed", [False, True])
def test_webdataset_with_numbers_and_names(tmp_path: Path, folder: Path, compressed: bool) -> None:
    for number, content in enumerate((samples("cls", 0, "bee"), samples("cls", " cat\n", 1))):
        name = f"shard-{number:03}.tar" + ".gz" * compressed
        (folder / name).write_bytes(gzip.compress(content) if compressed else content)
    pattern = str(folder / ("shard-{000..001}.tar" + ".gz" * compressed))
    data_set = prepared(tars.webdataset(request(folder, pattern)), tmp_path / "out", SMALL)
    source = Tfds(Request("train", str(data_set.folder)))
    examples = [(example.image, *example.labels) for example in source.read(np.arange(4))]
    assert Counter(examples) == Counter([(jpeg(0), 0), (jpeg(1), 1), (jpeg(0), 2), (jpeg(1), 1)])


def test_webdataset_with_lists_in_json(tmp_path: Path, folder: Path) -> None:
    (folder / "a.tar").write_bytes(samples("json", ["bee", "ant"], [2]))
    wanted = request(folder, str(folder), label_field="tags", multi_label=True)
    data_set = prepared(tars.webdataset(wanted), tmp_path / "out", SMALL)
    assert labels(data_set) == {jpeg(0): (1, 0), jpeg(1): (2,)}


@pytest.mark.parametrize("kind", ["list.jsonl", "list.csv", "a.tar"])
def test_turned_photos_are_turned_as_in_folders(tmp_path: Path, folder: Path, kind: str) -> None:
    """Training does not look at EXIF in data sets."""
    photo = jpeg(9, exif=exif(6))
    (folder / "photo.jpg").write_bytes(photo)
    write_lines(folder / "list.jsonl", [{"image": "photo.jpg", "labels": ["cat"]}])
    (folder / "list.csv").write_text("image,label\nphoto.jpg,cat\n")
    (folder / "a.tar").write_bytes(tar({"photo.jpg": photo, "photo.cls": b"cat"}))
    collection = tars.webdataset if kind == "a.tar" else records.collection
    data_set = prepared(collection(request(folder, str(folder / kind))), tmp_path / "out", SMALL)
    (image,) = (Image.open(io.BytesIO(data)) for data in labels(data_set))
    assert image.size == (30, 40) and not image.getexif()


def test_samples_that_are_set_aside(tmp_path: Path, folder: Path) -> None:
    files = {"good.jpg": jpeg(0), "good.cls": b"0", "none.jpg": jpeg(1), "none.txt": b"1"}
    for i, text in enumerate((b"dog", b"3", b"-1", b"9" * 10_000, b"1" * 2_000_000, b"\xff")):
        files |= {f"bad{i}.jpg": jpeg(2 + i), f"bad{i}.cls": text}
    (folder / "a.tar").write_bytes(tar(files | {"last.cls": b"1"}))
    data_set = prepared(tars.webdataset(request(folder, str(folder))), tmp_path / "out", SMALL)
    assert data_set.assignment.left_out == {
        1: "no_label", **dict.fromkeys(range(2, 8), "bad_label"), 8: "no_image"
    }  # fmt: skip
    assert labels(data_set) == {jpeg(0): (0,)}


def test_patterns_of_files(tmp_path: Path) -> None:
    for name in ("train-00.tar", "train-01.tar", "val-0.tar", "other.txt"):
        (tmp_path / name).write_bytes(b"")
    listed = lambda source: [(f.name, f.split) for f in source_files(source, [".tar"])]
    assert listed(str(tmp_path)) == [
        (n, None) for n in ("train-00.tar", "train-01.tar", "val-0.tar")
    ]
    assert listed(f"train={tmp_path}/train-{{00..01}}.tar,val={tmp_path}/val-*.tar") == [
        ("train-00.tar", "train"), ("train-01.tar", "train"), ("val-0.tar", "val")
    ]  # fmt: skip
    for source, name in (
        (f"{tmp_path}/train-{{00..02}}.tar", "train-02.tar"),
        (f"{tmp_path}/*.zip", "*.zip"),
        (f"{tmp_path}/{{0..99999999999}}", "1,000,000"),
        (f"{tmp_path}/{{0..99999}}{{0..99999}}", "1,000,000"),
        (f"{tmp_path},{tmp_path}/val-0.tar", "val-0.tar"),
        (f"{tmp_path}/train-00.tar,,{tmp_path}/val-0.tar", ",,"),
    ):
        with refused("--source", name):
            listed(source)


def of_hugging_face(path: Path, names: list[str], numbers: list, *, several: bool = False) -> None:
    """A Parquet file as `datasets` writes it, with names of classes in its metadata."""
    feature: dict = {"names": names, "_type": "ClassLabel"}
    field = "labels" if several else "label"
    features = {field: {"feature": feature, "_type": "Sequence"} if several else feature}
    images = [{"bytes": jpeg(i), "path": None} for i in range(len(numbers))]
    table = pa.table({"image": images, field: numbers})
    about = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    pq.write_table(table.replace_schema_metadata(about), path)


@pytest.mark.parametrize("given", [{}, {"num_classes": 2}, {"classes": "classes.txt"}])
def test_names_of_classes_in_parquet(tmp_path: Path, folder: Path, given: dict) -> None:
    """Numbers of the file are its names, in the order of --classes if that is given."""
    of_hugging_face(folder / "a.parquet", ["cat", "ant"], [0, 1])
    if "classes" in given:
        given = {"classes": str(folder / "classes.txt")}
    wanted = CollectionRequest(str(folder / "a.parquet"), multi_label=False, **given)
    collection = records.collection(wanted)
    assert tuple(collection.class_names) == (NAMES if given.get("classes") else ("cat", "ant"))
    found = labels(prepared(collection, tmp_path / "out", SMALL))
    assert {image: collection.class_names[of[0]] for image, of in found.items()} == {
        jpeg(0): "cat", jpeg(1): "ant"
    }  # fmt: skip


def test_lists_of_labels_with_names_in_parquet(tmp_path: Path, folder: Path) -> None:
    of_hugging_face(folder / "a.parquet", ["cat", "ant"], [[0, 1], [1]], several=True)
    collection = records.collection(CollectionRequest(str(folder / "a.parquet")))
    assert labels(prepared(collection, tmp_path / "out", SMALL)) == {
        jpeg(0): (0, 1), jpeg(1): (1,)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("names", "given", "named"),
    [
        (["cat", "dog"], {"classes": True}, "'dog'"),
        (["cat", "ant"], {"num_classes": 3}, "--num_classes=3"),
        (["ant", "cat"], {}, "b.parquet"),
        (["café", "cafe\u0301"], {}, "café"),
    ],
)
def test_other_names_of_classes_in_parquet(
    folder: Path, names: list[str], given: dict, named: str
) -> None:
    of_hugging_face(folder / "a.parquet", names, [0, 1])
    if not given:
        of_hugging_face(folder / "b.parquet", ["cat", "ant"], [0, 1])
    if "classes" in given:
        given = {"classes": str(folder / "classes.txt")}
    with refused(named):
        records.collection(CollectionRequest(str(folder), multi_label=False, **given))


def test_composed_and_decomposed_names_of_classes(tmp_path: Path, folder: Path) -> None:
    (folder / "classes.txt").write_text("cafe\u0301\nant\n")
    write_lines(folder / "a.jsonl", [{"image": "images/0.jpg", "labels": ["café"]}])
    collection = records.collection(request(folder, str(folder / "a.jsonl")))
    assert tuple(collection.class_names) == ("café", "ant")
    assert labels(prepared(collection, tmp_path / "out", SMALL)) == {jpeg(0): (0,)}


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A table's tables, with images in it and in train/."""
    for number, name in enumerate(["0.jpg", "1.jpg", "2.jpg", "train/a1.jpg", "train/b2.jpeg"]):
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / name).write_bytes(jpeg(number))
    return tmp_path / "set"


def table(
    tables: Path, content: str | bytes, name: str = "labels.csv", **options: object
) -> Collection:
    data = content.encode() if isinstance(content, str) else content
    (tables / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return records.collection(CollectionRequest(str(tables / name), **options))  # type: ignore[arg-type]


def contents(collection: Collection, output: Path) -> dict[bytes, str]:
    """Image -> the name of its class."""
    data_set = prepared(collection, output, SMALL)
    return {image: collection.class_names[of[0]] for image, of in labels(data_set).items()}


EXPECTED = {jpeg(0): "cat", jpeg(1): "dog, wild", jpeg(2): "café"}
PLAIN = 'file,label\n0.jpg,cat\n1.jpg,"dog, wild"\n2.jpg,café\n'
ODD = 'n,Category, Image Path \n1, cat ,.\\0.jpg\n\n2,"dog, wild",1.jpg\n3,cafe\u0301,2\n'  # NFD


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (PLAIN, "a.csv"),
        ("\ufeff" + PLAIN, "bom.csv"),
        (PLAIN.replace("\n", "\r\n"), "windows.csv"),
        (PLAIN.encode("latin-1"), "latin.csv"),
        (PLAIN.encode("utf-16"), "utf16.csv"),
        (PLAIN.replace(",", ";").replace("dog;", "dog,"), "semicolons.csv"),
        ("filename\tclass\n0.jpg\tcat\n1.jpg\tdog, wild\n2.jpg\tcafé\n", "a.tsv"),
        (ODD, "c.csv"),
    ],
)
def test_forms_of_tables(tmp_path: Path, tables: Path, content: str | bytes, name: str) -> None:
    assert contents(table(tables, content, name), tmp_path / "out") == EXPECTED


def test_files_in_the_other_form_of_unicode(tmp_path: Path, tables: Path) -> None:
    """As macOS packs them."""
    (tables / "cafe\u0301").mkdir()
    (tables / "0.jpg").rename(tables / "cafe\u0301" / "e\u0301.jpg")
    collection = table(tables, "file,label\ncaf\xe9/\xe9.jpg,cat\n1.jpg,dog\n")
    assert contents(collection, tmp_path / "out") == {jpeg(0): "cat", jpeg(1): "dog"}


def test_classes_that_are_numbers_are_in_their_order(tables: Path) -> None:
    collection = table(tables, "file,label\n0.jpg,10\n1.jpg,-1\n2.jpg,2\n")
    assert collection.class_names == ["-1", "2", "10"]


def test_ids_without_extensions_in_a_folder_beside_the_table(tmp_path: Path, tables: Path) -> None:
    collection = table(tables, "id,breed\na1,10\nb2,9\n", label_field="breed")
    assert collection.class_names == ["9", "10"]
    assert collection.notes[0] == "labels.csv: images of the column 'id', labels of 'breed'."
    assert contents(collection, tmp_path / "out") == {jpeg(3): "10", jpeg(4): "9"}


def test_rows_that_are_left_out_are_named(tmp_path: Path, tables: Path) -> None:
    rows = ["0.jpg,cat", "1.jpg,", "no.jpg,cat", "../x.jpg,cat", "2.jpg,bee", "0.jpg,cat", "9"]
    (tables / "names.txt").write_text("cat\ndog\n")
    (tables.parent / "x.jpg").write_bytes(jpeg(9))
    content = "\n".join(["path,label", *rows, ",cat"])
    data_set = prepared(
        table(tables, content, classes=str(tables / "names.txt")),
        tmp_path / "out",
        SMALL,
    )
    assert sorted(data_set.assignment.left_out.values()) == [
        "bad_entry", "bad_entry", "bad_label", "missing", "no_label", "outside", "same_name",
    ]  # fmt: skip
    left_out = (data_set.folder / "set_aside.jsonl").read_text()
    for name in ("no.jpg", "../x.jpg", "labels.csv, line 8", "labels.csv, line 9"):
        assert f'"name": "{name}"' in left_out


@pytest.mark.parametrize(
    ("content", "options", "name"),
    [
        ("0.jpg,cat\n", {}, "--image_field"),
        ("file,breed\n0.jpg,x\n", {}, "--label_field"),
        ("file,label\n", {"label_field": "labl"}, "'labl'"),
        ("file,label,class\n", {}, "'label' and 'class'"),
        ("file,label\nhttp://x/0.jpg,cat\n", {}, "http://x/0.jpg"),
        ("file,label\n0.jpg,cat\n1.jpg,a\n0.jpg,dog\n", {}, "'dog'"),
        ('file,label\n0.jpg,"cat\n', {}, "labels.csv"),
        ("file,label\n0.jpg,\n", {}, "labels.csv"),
        ("", {}, "--image_field"),
        ("file,label\n0.jpg,cat\n", {"multi_label": True}, "--multi_label"),
        (b"\x00\x01\x02", {}, "labels.csv"),
    ],
    ids=[
        "no header", "no column of labels", "unknown column", "two columns of labels", "address",
        "two labels", "open quotation", "no labels", "empty", "several labels", "binary",
    ],
)  # fmt: skip
def test_tables_that_cannot_be_read(
    tables: Path, content: str | bytes, options: dict[str, object], name: str
) -> None:
    with refused(name):
        table(tables, content, **options)


def test_splits_and_several_labels_of_a_table(tmp_path: Path, tables: Path) -> None:
    content = "file,label,split\n0.jpg,b|a,train\n1.jpg,a,test\n2.jpg,a|c,train\na1,,train\nb2,c,\n"
    collection = table(tables, content, "a.csv.gz", label_separator="|")
    assert collection.class_names == ["a", "b", "c"]
    data_set = prepared(collection, tmp_path / "out", SMALL)
    assert labels(data_set) == {jpeg(0): (0, 1), jpeg(2): (0, 2), jpeg(4): (2,)}
    sizes = {name: sum(size.shard_lengths) for name, size in data_set.splits.items()}
    assert sizes == {"test": 1, "train": 3}
    assert list(data_set.assignment.left_out.values()) == ["no_label"]
    with refused("'0'", "--split_field"):
        table(tables, "file,label,fold\n0.jpg,a,0\n1.jpg,b,1\n")


def test_an_image_that_may_be_two(tables: Path) -> None:
    (tables / "0.png").write_bytes(b"x")
    with refused():
        table(tables, "id,label\n0,cat\n")
