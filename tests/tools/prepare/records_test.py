"""Lists in JSON lines, Parquet and CSV, and WebDataset tars."""

import base64
import gzip
import io
import json
import os
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.messages import refused
from tests.tools.prepare.bad_images import exif
from tests.tools.prepare.conftest import jpeg, tar
from tests.tools.prepare.pipeline_test import prepared
from vit_jax.core.errors import UserError
from vit_jax.data.source import Request
from vit_jax.data.sources.tfds import Tfds
from vit_jax.tools.prepare import entries as entries_module
from vit_jax.tools.prepare import records, summary, tars, tasks
from vit_jax.tools.prepare.collection import CollectionRequest, PrepareOptions
from vit_jax.tools.prepare.entries import source_files

SMALL = PrepareOptions(shard_mib=0.02)
NAMES = ("ant", "bee", "cat")


@pytest.fixture
def folder(tmp_path):
    """The folder of a list, with class names and six images."""
    root = tmp_path / "jft"
    (root / "images").mkdir(parents=True)
    (root / "classes.txt").write_text("\n".join(NAMES) + "\n")
    for i in range(6):
        (root / "images" / f"{i}.jpg").write_bytes(jpeg(i))
    return root


def request(folder, source, **options):
    return CollectionRequest(source, classes=str(folder / "classes.txt"), **options)


def write_lines(path, entries):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def labels(data_set):
    source = Tfds(Request("train", str(data_set.folder)))
    return {e.image: e.labels for e in source.read(np.arange(source.num_examples))}


def test_paths_names_and_weights(tmp_path, folder):
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


def test_one_label_may_have_a_weight(tmp_path, folder):
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
def test_images_of_another_field(tmp_path, folder, name):
    """As Hugging Face has them: `img` in CIFAR-10, `file_name` beside folders of images."""
    write_lines(folder / name, [{"file_name": "images/0.jpg", "label": 2, "image": "none"}])
    field = "file_name"
    if name == "rows.parquet":
        field, image = "img", {"bytes": jpeg(0), "path": "0.jpg"}
        pq.write_table(pa.Table.from_pylist([{"img": image, "label": 2}]), folder / name)
    wanted = request(folder, str(folder / name), multi_label=False, image_field=field)
    data_set = prepared(records.collection(wanted), tmp_path / "out", SMALL)
    assert labels(data_set) == {jpeg(0): (2,)}
    features = (data_set.folder / "features.json").read_text()
    assert features.count('"label"') == 1 and "label_weights" not in features


def test_bytes_in_json_and_parquet_give_the_same_set(tmp_path, folder):
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


def test_many_parts_read_each_line_once(tmp_path, folder, monkeypatch):
    entries = [{"image": f"images/{i % 6}.jpg", "labels": [0], "id": i} for i in range(50)]
    write_lines(folder / "list.jsonl", entries)
    for step in (7, 60, 1000):
        monkeypatch.setattr(records, "LEAST_PART_BYTES", step)
        monkeypatch.setattr(records, "LINES_PER_PART", 0)
        parts = records.collection(request(folder, str(folder))).parts
        names = [row.name for part in parts for row, _ in records.json_lines(part)]
        assert names == [str(i) for i in range(50)]


# Fault -> lines that have it.
BAD_ENTRIES = {
    "bad_entry": [
        "{", "[1]", "[" * 100_000, b'{"image": "\xff\xfe"}', '{"labels": [1]}',
        '{"image": 3, "labels": [1]}', '{"image": {"bytes": "%%%"}, "labels": [1]}',
        '{"image": "images/0.jpg", "labels": [1], "id": ""}',
        '{"image": "images/0.jpg", "labels": [1], "id": [1]}',
    ],
    "same_name": ['{"image": "images/0.jpg", "labels": [1], "id": "good"}'],
}  # fmt: skip
# Fault -> paths that have it; labels, and weights, as JSON.
BAD_PATHS = {
    "unsafe_name": ["images/\\ud800.jpg"],
    "missing": ["images/0.jpg\\u0000", "x" * 4000, "no.jpg", "images/0.jpg/1.jpg", "images/circle"],
    "no_file": ["images", "images/pipe"],
    "outside": ["/dev/zero", "../secret.jpg", "images/link.jpg"],
}
BAD_LABELS = {
    "no_label": ["null", "[]"],
    "bad_label": ["[-1]", "[3]", "[1e999]", "[1.0]", "[true]", '["dog"]', '["ant", 0]'],
}
BAD_WEIGHTS = ["[NaN]", "[2]", "[-1]", "[1e999]", "[1, 1]"]


def test_entries_that_are_set_aside(tmp_path, folder):
    (tmp_path / "secret.jpg").write_bytes(jpeg(9))
    (folder / "images" / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    (folder / "images" / "circle").symlink_to(folder / "images" / "circle")
    os.mkfifo(folder / "images" / "pipe")
    lines = [(line, fault) for fault, several in BAD_ENTRIES.items() for line in several]
    lines += [
        (f'{{"image": "{path}", "labels": [1]}}', fault)
        for fault, paths in BAD_PATHS.items()
        for path in paths
    ]
    lines += [
        (f'{{"image": "images/0.jpg", "labels": {value}}}', fault)
        for fault, values in BAD_LABELS.items()
        for value in values
    ]
    lines += [
        (f'{{"image": "images/0.jpg", "labels": 1, "weights": {value}}}', "bad_label")
        for value in BAD_WEIGHTS
    ]
    good = json.dumps({"image": "images/1.jpg", "labels": [1], "id": "good"}).encode()
    bad = [line.encode() if isinstance(line, str) else line for line, _ in lines]
    (folder / "list.jsonl").write_bytes(b"\n".join([good, *bad, b""]))
    data_set = prepared(records.collection(request(folder, str(folder))), tmp_path / "out", SMALL)
    left_out = data_set.assignment.left_out
    assert [(line, left_out.get(row)) for row, (line, _) in enumerate(lines, 1)] == lines
    assert labels(data_set) == {jpeg(1): (1,)}


def test_paths_are_relative_to_the_root_of_images(tmp_path, folder):
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
    for root in (str(tmp_path / "none"), str(folder / "classes.txt")):
        with refused("--images_root"):
            records.collection(request(folder, str(lists), images_root=root))


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_lists_in_several_folders_may_use_the_same_paths(tmp_path, kind):
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


def test_an_endless_line(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(records, "MAX_LINE_BYTES", 1000)
    good = json.dumps({"image": "images/1.jpg", "labels": [1]}) + "\n"
    (folder / "list.jsonl").write_text(good + '{"image": "' + "x" * 5_000_000 + '"}\n' + good)
    data_set = prepared(records.collection(request(folder, str(folder))), tmp_path / "out", SMALL)
    assert Counter(data_set.assignment.left_out.values()) == {"bad_entry": 1, "same_name": 1}


def test_parquet_that_cannot_be_read(tmp_path, folder):
    path = folder / "rows.parquet"
    pq.write_table(pa.table({"picture": [b"1"], "labels": [[1]]}), path)
    with refused("--image_field=image", "picture"):
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


@pytest.mark.parametrize("content", [b"a\nb\na\n", b"a\n\nb", b"a\n \t\nb", b"", b"\xff", None])
def test_lists_of_classes_that_are_refused(folder, content):
    write_lines(folder / "list.jsonl", [{"image": "images/0.jpg", "labels": [0]}])
    (folder / "classes.txt").write_bytes(content or b"")
    if content is None:
        os.truncate(folder / "classes.txt", 40 * 2**30)  # sparse
    with pytest.raises(UserError) as raised:
        records.collection(request(folder, str(folder)))
    assert raised.value.field == "--classes"


def test_odd_classes(tmp_path, folder):
    write_lines(folder / "list.jsonl", [{"image": "images/0.jpg", "labels": [0]}])
    for wanted in ({"classes": "/dev/zero"}, {"classes": str(tmp_path)}):
        with pytest.raises(UserError) as raised:
            records.collection(CollectionRequest(str(folder), **wanted))
        assert raised.value.field == f"--{next(iter(wanted))}"
    # Of Windows.
    (folder / "classes.txt").write_bytes(b"\xef\xbb\xbfant\r\nbee\r\n")
    assert records.collection(request(folder, str(folder))).class_names == ("ant", "bee")
    # Python splits text at more than line ends; TFDS does not.
    (folder / "classes.txt").write_text("ant\nbee\u2028cat\n")
    collection = records.collection(request(folder, str(folder)))
    assert len(collection.class_names) == 2
    with refused("Class 1"):
        prepared(collection, tmp_path / "out", SMALL)


def test_a_list_of_classes_that_changes(tmp_path, folder):
    write_lines(folder / "list.jsonl", [{"image": "images/0.jpg", "labels": ["ant"]}])
    collection = records.collection(request(folder, str(folder)))
    entries_module._numbers.cache_clear()  # as in another process
    (folder / "classes.txt").write_text("bee\nant\n")
    with refused("classes.txt"):
        prepared(collection, tmp_path / "out", SMALL)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_files_that_come_later_are_read(tmp_path, folder, monkeypatch, kind):
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
    read = []
    reading = tasks.read_part
    with monkeypatch.context() as patch:
        patch.setattr(tasks, "read_part", lambda t: read.append(t.part.name) or reading(t))
        data_set = prepared(collection, tmp_path / "out", SMALL)
    assert labels(data_set) == {jpeg(i): (i % 3,) for i in range(6)}
    assert read == [f"list.{kind}@0"]


def test_classes_and_entries_are_required(tmp_path, folder):
    write_lines(folder / "list.jsonl", [{"image": "images/0.jpg", "labels": [0]}])
    for wanted in (CollectionRequest(str(folder)), request(folder, str(folder), num_classes=3)):
        with refused("--classes", "--num_classes"):
            records.collection(wanted)
    (folder / "list.jsonl").write_text("")
    with refused("--source"):
        prepared(records.collection(request(folder, str(folder))), tmp_path, SMALL)


def samples(label, *values):
    files = {}
    for i, value in enumerate(values):
        files |= {f"./{i:04}.jpg": jpeg(i), f"./{i:04}.txt": b"a caption"}
        files[f"./{i:04}.{label}"] = (
            str(value).encode()
            if label == "cls"
            else json.dumps({"caption": "x", "tags": value}).encode()
        )
    return tar(files)


@pytest.mark.parametrize("compressed", [False, True])
def test_webdataset_with_numbers_and_names(tmp_path, folder, compressed):
    for number, content in enumerate((samples("cls", 0, "bee"), samples("cls", " cat\n", 1))):
        name = f"shard-{number:03}.tar" + ".gz" * compressed
        (folder / name).write_bytes(gzip.compress(content) if compressed else content)
    pattern = str(folder / ("shard-{000..001}.tar" + ".gz" * compressed))
    data_set = prepared(tars.webdataset(request(folder, pattern)), tmp_path / "out", SMALL)
    source = Tfds(Request("train", str(data_set.folder)))
    examples = [(example.image, *example.labels) for example in source.read(np.arange(4))]
    assert Counter(examples) == Counter([(jpeg(0), 0), (jpeg(1), 1), (jpeg(0), 2), (jpeg(1), 1)])


def test_webdataset_with_lists_in_json(tmp_path, folder):
    (folder / "a.tar").write_bytes(samples("json", ["bee", "ant"], [2]))
    wanted = request(folder, str(folder), label_field="tags", multi_label=True)
    data_set = prepared(tars.webdataset(wanted), tmp_path / "out", SMALL)
    assert labels(data_set) == {jpeg(0): (1, 0), jpeg(1): (2,)}


@pytest.mark.parametrize("kind", ["list.jsonl", "list.csv", "a.tar"])
def test_turned_photos_are_turned_as_in_folders(tmp_path, folder, kind):
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


def test_samples_that_are_set_aside(tmp_path, folder):
    files = {"good.jpg": jpeg(0), "good.cls": b"0", "none.jpg": jpeg(1), "none.txt": b"1"}
    for i, text in enumerate((b"dog", b"3", b"-1", b"9" * 10_000, b"1" * 2_000_000, b"\xff")):
        files |= {f"bad{i}.jpg": jpeg(2 + i), f"bad{i}.cls": text}
    (folder / "a.tar").write_bytes(tar(files | {"last.cls": b"1"}))
    data_set = prepared(tars.webdataset(request(folder, str(folder))), tmp_path / "out", SMALL)
    assert data_set.assignment.left_out == {
        1: "no_label", **dict.fromkeys(range(2, 8), "bad_label"), 8: "no_image"
    }  # fmt: skip
    assert labels(data_set) == {jpeg(0): (0,)}


def test_patterns_of_files(tmp_path):
    for name in ("train-00.tar", "train-01.tar", "val-0.tar", "other.txt"):
        (tmp_path / name).write_bytes(b"")
    listed = lambda source: [(f.name, f.split) for f in source_files(source, [".tar"])]
    assert listed(str(tmp_path)) == [
        (n, None) for n in ("train-00.tar", "train-01.tar", "val-0.tar")
    ]
    assert listed(f"train={tmp_path}/train-{{00..01}}.tar,val={tmp_path}/val-*.tar") == [
        ("train-00.tar", "train"), ("train-01.tar", "train"), ("val-0.tar", "val")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("files", "splits"),
    [
        ("data/train-00000-of-00001.parquet data/test-00000-of-00001.parquet", "train test"),
        ("imgs-train-0.tar imgs-validation-0.tar", "train validation"),
        ("train/a.tar val/a.tar dev/b.tar", "train validation validation"),
        ("train.jsonl val.jsonl", "train validation"),
        ("train.csv eval.csv", "train test"),
        ("train=a.tar val.tar", "train validation"),
        ("train-0.tar train-1.tar", "None None"),
        ("a.tar b.tar", "None None"),
        ("train-0.tar other.tar", None),
        ("train-test.tar val.tar", None),
        ("data/x-y-00000-of-00001.tar data/z-00000-of-00001.tar", None),
    ],
)
def test_splits_by_the_paths_of_files(tmp_path, files, splits):
    items = [item.rpartition("=") for item in files.split()]
    for number, (_, _, name) in enumerate(items):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        image = {"bytes": jpeg(number)}
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist([{"image": image, "labels": [0]}]), path)
        elif path.suffix == ".tar":
            path.write_bytes(tar({"0.jpg": jpeg(number), "0.cls": b"0"}))
        elif path.suffix == ".jsonl":
            write_lines(path, [{"image": f"{number}.jpg", "labels": [0]}])
        else:
            path.write_text(f"image,label\n{number}.jpg,0\n")
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(number))
    source = ",".join(f"{split}{equals}{tmp_path / name}" for split, equals, name in items)
    make = tars.webdataset if files.endswith(".tar") else records.collection
    wanted = CollectionRequest(source if "=" in source else str(tmp_path), num_classes=1)
    if splits is None:
        with pytest.raises(UserError, match="say none, or several"):
            make(wanted)
        return
    collection = make(wanted)
    by_name = sorted((part.name, str(part.split)) for part in collection.parts)
    names = [name for *_, name in items]
    assert [split for _, split in by_name] == [
        s for _, s in sorted(zip(names, splits.split(), strict=True))
    ]
    assert ("Splits by" in " ".join(collection.notes)) == ("None" not in splits)


def of_hugging_face(path, names, numbers, *, several=False):
    """A Parquet file as `datasets` writes it, with names of classes in its metadata."""
    feature = {"names": names, "_type": "ClassLabel"}
    field = "labels" if several else "label"
    features = {field: {"feature": feature, "_type": "Sequence"} if several else feature}
    images = [{"bytes": jpeg(i), "path": None} for i in range(len(numbers))]
    table = pa.table({"image": images, field: numbers})
    about = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    pq.write_table(table.replace_schema_metadata(about), path)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("given", [{}, {"num_classes": 2}, {"classes": "classes.txt"}])
def test_names_of_classes_in_parquet(tmp_path, folder, given, several):
    """Numbers of the file are its names, in the order of --classes if that is given."""
    numbers = [[0, 1], [1]] if several else [0, 1]
    of_hugging_face(folder / "a.parquet", ["cat", "ant"], numbers, several=several)
    if "classes" in given:
        given = {"classes": str(folder / "classes.txt")}
    wanted = CollectionRequest(str(folder / "a.parquet"), multi_label=several, **given)
    collection = records.collection(wanted)
    assert tuple(collection.class_names) == (NAMES if "classes" in given else ("cat", "ant"))
    images = labels(prepared(collection, tmp_path / "out", SMALL)).items()
    named = {image: [collection.class_names[one] for one in of] for image, of in images}
    assert named == {jpeg(0): ["cat", "ant"] if several else ["cat"], jpeg(1): ["ant"]}


@pytest.mark.parametrize(
    ("names", "given", "named"),
    [
        (["cat", "dog"], {"classes": True}, "'dog'"),
        (["cat", "ant"], {"num_classes": 3}, "--num_classes=3"),
        (["ant", "cat"], {}, "b.parquet"),
        (["café", "cafe\u0301"], {}, "café"),
    ],
)
def test_other_names_of_classes_in_parquet(folder, names, given, named):
    of_hugging_face(folder / "a.parquet", names, [0, 1])
    if not given:
        of_hugging_face(folder / "b.parquet", ["cat", "ant"], [0, 1])
    if "classes" in given:
        given = {"classes": str(folder / "classes.txt")}
    with refused(named):
        records.collection(CollectionRequest(str(folder), multi_label=False, **given))


@pytest.fixture
def tables(tmp_path):
    """A table's tables, with images in it and in train/."""
    for number, name in enumerate(["0.jpg", "1.jpg", "2.jpg", "train/a1.jpg", "train/b2.jpeg"]):
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / name).write_bytes(jpeg(number))
    return tmp_path / "set"


def table(tables, content, name="labels.csv", **options):
    data = content.encode() if isinstance(content, str) else content
    (tables / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return records.collection(CollectionRequest(str(tables / name), **options))


def contents(collection, output):
    """Image -> the name of its class."""
    data_set = prepared(collection, output, SMALL)
    return {image: collection.class_names[of[0]] for image, of in labels(data_set).items()}


def test_ids_without_extensions_in_a_folder_beside_the_table(tmp_path, tables):
    collection = table(tables, "id,breed\na1,10\nb2,9\n", label_field="breed")
    assert collection.class_names == ["9", "10"]
    assert collection.notes[0] == "labels.csv: images of the column 'id', labels of 'breed'."
    assert contents(collection, tmp_path / "out") == {jpeg(3): "10", jpeg(4): "9"}


def test_rows_that_are_left_out_are_named(tmp_path, tables):
    rows = ["0.jpg,cat", "1.jpg,", "no.jpg,cat", "../x.jpg,cat", "2.jpg,bee", "0.jpg,cat", "9"]
    (tables / "names.txt").write_text("cat\ndog\n")
    (tables.parent / "x.jpg").write_bytes(jpeg(9))
    content = "\n".join(["path,label", *rows, ",cat"])
    data_set = prepared(
        table(tables, content, classes=str(tables / "names.txt")), tmp_path / "out", SMALL
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
        ("file,label\n0.jpg,cat\n1.jpg,a\n0.jpg,dog\n", {}, "line 4"),
        ("file,label\n0.jpg,cat\n", {"multi_label": True}, "--multi_label"),
        ("id,label\n0,cat\n", {}, "line 2"),  # 0.jpg or 0.png
    ],
)
def test_tables_that_cannot_be_read(tables, content, options, name):
    (tables / "0.png").write_bytes(b"x")
    with refused(name):
        table(tables, content, **options)


def test_splits_and_several_labels_of_a_table(tmp_path, tables):
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


def test_splits_by_the_paths_of_images_in_a_table(tables):
    """Those that --source gives stay."""
    for name, other in (("0.jpg", "train_0.jpg"), ("1.jpg", "test_1.jpg")):
        (tables / name).rename(tables / other)
    splits = lambda collection: {part.split for part in collection.parts}
    collection = table(tables, "file,label\ntrain_0.jpg,a\ntest_1,b\n")
    assert splits(collection) == {"train", "test"}
    assert "datasets reads them: train (1), test (1)" in collection.notes[0]
    with refused("1 of 3 say none, or several: 2.jpg"):
        table(tables, (rows := "file,label\ntrain_0.jpg,a\ntest_1,b\n2,b\n"))
    (tables / "labels.csv").write_text(rows)
    request = CollectionRequest(f"train={tables / 'labels.csv'}")
    assert splits(records.collection(request)) == {"train"}
