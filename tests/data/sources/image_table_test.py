import gzip
import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.messages import refused
from vit_jax.core.errors import UserError
from vit_jax.data.source import TableOptions
from vit_jax.data.sources import image_table, table_file
from vit_jax.data.sources import table as sources
from vit_jax.data.sources.split_names import HELD_OUT


def fill(folder, names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())


def create(data_dir, split="all", *, label=None, labelled=True, **options):
    return sources.create(
        "image_table",
        sources.Request(
            data_dir=str(data_dir),
            split=split,
            label=label,
            labelled=labelled,
            table=TableOptions(**options),
        ),
    )


def contents(source):
    """File -> its classes."""
    return {
        example.image.decode(): "+".join(source.class_names[label] for label in example.labels)
        for example in source.read(np.arange(source.num_examples))
    }


def write(folder, content, name="labels.csv"):
    data = content.encode() if isinstance(content, str) else content
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder / name


def rows(number, *, split=""):
    """A table of images i.jpg of classes i mod 3."""
    lines = [f"{i}.jpg,{'abc'[i % 3]}" for i in range(number)]
    return "\n".join(["file_name,label", *lines])


@pytest.fixture
def images(tmp_path):
    """A folder with images in it, and in two others."""
    fill(tmp_path, ["0.jpg", "1.jpg", "2.jpg"])
    fill(tmp_path / "images", ["a1.jpg", "b2.jpeg", "deep/c3.png"])
    return tmp_path


EXPECTED = {"0.jpg": "cat", "1.jpg": "dog, wild", "2.jpg": "café"}
PLAIN = 'file,label\n0.jpg,cat\n1.jpg,"dog, wild"\n2.jpg,café\n'
ODD = 'n,Category, Image Path \n1, cat ,.\\0.jpg\n\n2,"dog, wild",1.jpg\n3,cafe\u0301,2\n'  # NFD


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (PLAIN, "a.csv"),
        (PLAIN, "a.csv.gz"),
        ("\ufeff" + PLAIN, "bom.csv"),
        ("\n" + PLAIN.replace("1.jpg", "  \n1.jpg"), "blank_lines.csv"),
        (PLAIN.replace("\n", "\r\n"), "windows.csv"),
        (PLAIN.encode("latin-1"), "latin.csv"),
        (PLAIN.encode("utf-16"), "utf16.csv"),
        (PLAIN.replace(",", ";").replace("dog;", "dog,"), "semicolons.csv"),
        ("filename\tclass\n0.jpg\tcat\n1.jpg\tdog, wild\n2.jpg\tcafé\n", "a.tsv"),
        (ODD, "c.csv"),
    ],
)
def test_forms(images, content, name):
    source = create(write(images, content, name))
    assert contents(source) == EXPECTED
    assert source.class_names == ("café", "cat", "dog, wild")


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())]
)
def test_parquet(images, kind):
    labels = pa.array(["cat", "dog, wild", "café"]).cast(kind)
    table = pa.table({"image_id": [0, 1, 2], "label": labels, "x": [1.0, 2.0, 3.0]})
    pq.write_table(table, images / "a.parquet", row_group_size=1)
    source = create(images / "a.parquet")
    assert contents(source) == EXPECTED
    assert source.notes[0].endswith("not read: 'x'")


def test_files_are_found_beside_the_table_and_without_extensions(images):
    content = "id,breed,size\na1,10,1\ndeep/c3,9,2\nimages/b2.jpeg,9,3\n./1.jpg,9,3\n"
    content += f"{images}/2.jpg,10,3\n"
    source = create(write(images, content), label="breed")
    assert source.class_names == ("9", "10")
    assert contents(source) == {
        "a1.jpg": "10", "deep/c3.png": "9", "b2.jpeg": "9", "1.jpg": "9", "2.jpg": "10",
    }  # fmt: skip
    assert source.notes == (
        "labels.csv: images of the column 'id', labels of 'breed'; not read: 'size'",
    )
    assert sorted(source.file_names() or ()) == ["1.jpg", "2.jpg", "a1.jpg", "b2.jpeg", "c3.png"]
    places = [source.describe(i) for i in range(5)]
    assert all(Path(place).is_file() for place in places)


def test_one_in_ten_of_each_class_is_held_out_whatever_the_order_of_rows(tmp_path):
    fill(tmp_path, [f"{i}.jpg" for i in range(300)])
    header, *lines = rows(300).split("\n")
    path = write(tmp_path, "\n".join([header, *lines]))
    train, val, both = (create(path, split) for split in ("train", "val", "all"))
    assert (train.num_examples, val.num_examples, both.num_examples) == (270, 30, 300)
    assert HELD_OUT in train.notes and HELD_OUT not in (*val.notes, *both.notes)
    assert contents(train).keys() | contents(val).keys() == contents(both).keys()
    labels = val.stored_labels()
    assert np.bincount(labels.labels).tolist() == [10, 10, 10]
    assert len(set(list(contents(train).values())[:12])) == 3  # a slice has all classes
    other = write(tmp_path, "\n".join([header, *lines[::-1]]), "reversed.csv")
    assert create(other, "train").fingerprint == train.fingerprint
    assert list(contents(create(path, "train[:50%]"))) == list(contents(train))[:135]


def test_the_fingerprint_covers_labels_paths_and_sizes(images):
    path = write(images, PLAIN)
    seen = {create(path).fingerprint}
    write(images, PLAIN.replace("cat", "ant"))
    seen.add(create(path).fingerprint)
    write(images, PLAIN.replace("0.jpg,cat", "0.jpg,café"))
    seen.add(create(path).fingerprint)
    write(images, PLAIN)
    assert create(path).fingerprint in seen
    (images / "0.jpg").write_bytes(b"another image")
    seen.add(create(path).fingerprint)
    assert len(seen) == 4


@pytest.mark.parametrize(
    ("column", "values", "sizes"),
    [
        ("split", ["train", "train", "test", ""], {"train": 2, "test": 1}),
        ("is_valid", ["False", "0", "True", "false"], {"train": 3, "val": 1}),
        ("fold", ["0", "1", "1", "2"], {"0": 1, "1": 2, "0+2": 2, "1[:1]": 1}),
        ("kfold", ["0.0", "1.0", "1.0", ""], {"0": 1, "1": 2}),  # as pandas has it
    ],
)
def test_columns_of_splits(images, column, values, sizes):
    names = ["0.jpg", "1.jpg", "2.jpg", "a1.jpg"]
    lines = [
        f"{name},{label},{value}" for name, label, value in zip(names, "aabb", values, strict=True)
    ]
    path = write(images, "\n".join([f"image,label,{column}", *lines]))
    if column == "split":  # b is in `test` and in no split
        with refused("'b'", "labels.csv, line 4"):
            create(path, "test")
        path.write_text(path.read_text().replace(",b,", ",a,"))
    for split, size in sizes.items():
        assert create(path, split).num_examples == size


def test_tables_named_after_splits(tmp_path):
    for split in ("train", "val"):
        fill(tmp_path / split, ["0.jpg", "1.jpg"])
        write(tmp_path, f"image,label\n0,{'a' if split == 'train' else 'b'}\n1,b\n", f"{split}.csv")
    write(tmp_path, "id\n9\n", "sample_submission.csv")  # not read
    train, val = create(tmp_path, "train"), create(tmp_path, "val")
    assert contents(train) == {"0.jpg": "a", "1.jpg": "b"}
    assert contents(val) == {"0.jpg": "b", "1.jpg": "b"}
    assert val.class_names == ("a", "b")
    assert Path(val.describe(0)).parent == tmp_path / "val"
    assert (
        sources.create(
            "image_table",
            sources.Request(
                data_dir=str(tmp_path), split="train+val", num_examples=4, num_classes=2
            ),
        ).num_examples
        == 4
    )
    with refused("input.split", "val"):
        create(tmp_path, "vla")


FOUND = {
    "metadata.csv": "file_name,label\n{0}0.jpg,a\n{0}1.jpg,b\n",
    "metadata.jsonl": '{{"file_name": "{0}0.jpg", "label": "a"}}\n'
    '{{"label": "b", "file_name": "{0}1.jpg"}}\n',
}


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("layout", ["", "images/", "train/ test/", "train/images/ test/images/"])
def test_the_table_of_an_image_folder(tmp_path, name, layout):
    """As load_dataset("imagefolder") of datasets 5.2.0 reads these files, labels and splits."""
    for folder in layout.split() or [""]:
        fill(tmp_path / folder, ["0.jpg", "1.jpg"])
        below = "images/" if "images/" in folder else ""
        write(tmp_path / folder.removesuffix(below), FOUND[name].format(below), name)
    request = sources.Request(data_dir=str(tmp_path), split="test" if "test" in layout else "all")
    source = sources.create("image_folder", request)
    assert contents(source) == {"0.jpg": "a", "1.jpg": "b"}
    assert name in source.notes[0]


@pytest.mark.parametrize(
    ("paths", "name"),
    [
        ("train/0.jpg TRAIN/1.jpg val/test_2.jpg eval-1/train_3.jpg", "metadata.csv"),
        ("a/train/0.jpg x-training/1.jpg dev/2.jpg x.eval-1/train_3.jpg", "labels.csv"),
        ("train_0.jpg my-training.1.jpg VAL-2.jpg images/a_evaluation_3.jpg", "metadata.csv"),
    ],
)
def test_splits_by_the_paths_of_files(tmp_path, paths, name):
    names = paths.split()
    fill(tmp_path, names)
    lines = [f"{tmp_path / names[0]},a", *(f"{k},b" for k in names[1:])]
    path = write(tmp_path, "\n".join(["file_name,label", *lines]), name)
    source = "image_folder" if name == "metadata.csv" else "image_table"
    data_dir = str(tmp_path if name == "metadata.csv" else path)
    create = lambda split: sources.create(source, sources.Request(data_dir=data_dir, split=split))
    train = create("train")
    assert contents(train).keys() == set(names[:2])
    assert contents(create("validation")).keys() == {names[2]}
    assert contents(create("test")).keys() == {names[3]}
    assert create("all").num_examples == 4
    assert "as datasets reads them: train (2), validation (1), test (1)" in train.notes[0]
    assert HELD_OUT not in train.notes
    with refused("'val'", "validation"):
        create("val")
    with path.open("a") as file:
        file.write("\nother.jpg,a\ntest-train_1.jpg,b")
    fill(tmp_path, ["other.jpg", "test-train_1.jpg"])
    with refused("test (", "say none, or several: other.jpg", "`split`", "all[:90%]"):
        create("train")
    assert create("all[:90%]").num_examples == 5


@pytest.mark.parametrize(
    "names", ["train_0 train_1", "test-tube_0 test-tube_1", "train/0 bus/1", "contest_0 trains_1"]
)
def test_paths_that_say_no_splits(tmp_path, names):
    """All the same, or `train`, which may be a class."""
    paths = names.split()
    fill(tmp_path, [f"{path}.jpg" for path in paths])
    lines = [f"{path}.jpg,a" for path in paths]
    source = create(write(tmp_path, "\n".join(["file_name,label", *lines])), "train")
    assert HELD_OUT in source.notes


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ('{"id": 0, "label": 3}\n\n{"id": "1", "label": null}', "cannot be read: Arrow"),
        ('{"id": "0", "label": 3}\n{"id": "1", "label": 4.0}', {"0.jpg": "3", "1.jpg": "4"}),
        ('{"id": "0", "label": "2020-01-02"}\r\n{"id": "1", "label": "b", "x": {}}\r\n',
         {"0.jpg": "2020-01-02", "1.jpg": "b"}),
        ('{"id": "0", "tags": ["a", "b"]}\n{"id": "1", "tags": []}', {"0.jpg": "a+b", "1.jpg": ""}),
        ('{"id": "0", "label": "a"}\n{"id": "1"', "line 2"),
        ('{"id": "0", "label": "a"}\n3', "line 2"),
        ('{"id": "0", "label": {"a": 1}}', "label"),
        ('{"id": "0", "label": "a"}\n\n{"id": "0", "label": "b"}', "lines 1, 3"),
        ("\n", "input.image_column"),
    ],
)  # fmt: skip
def test_json_lines(images, lines, expected):
    path = write(images, lines, "labels.jsonl")
    if isinstance(expected, dict):
        assert contents(create(path)) == expected
        return
    with pytest.raises(UserError, match=expected):
        create(path)


@pytest.mark.parametrize("separator", ["|", " ", ", "])
def test_several_labels(images, separator):
    cells = [separator.join(cell) for cell in (["b", "a"], ["c"], ["a", "c", "a"], [])]
    names = ["0.jpg", "1.jpg", "2.jpg", "a1.jpg"]
    lines = [f'{name},"{cell}"' for name, cell in zip(names, cells, strict=True)]
    source = create(write(images, "\n".join(["image,tags", *lines])), label_separator=separator)
    assert source.class_names == ("a", "b", "c")
    assert contents(source) == {"0.jpg": "a+b", "1.jpg": "c", "2.jpg": "a+c", "a1.jpg": ""}
    assert source.max_labels == 2


def test_lists_of_labels_in_parquet(images):
    table = pa.table({"image": ["0", "1", "2"], "labels": [[7, 10], [7], []]})
    pq.write_table(table, images / "a.parquet")
    source = create(images / "a.parquet")
    assert source.class_names == ("7", "10")
    assert contents(source) == {"0.jpg": "7+10", "1.jpg": "7", "2.jpg": ""}


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
@pytest.mark.parametrize(
    ("label", "dog", "expected"),
    [
        ("cat,dog,bird", [0, 1, None], ["cat", "bird+dog", ""]),
        ("bird, [cd]*", [False, True, False], ["cat", "bird+dog", ""]),
        ("*", [0, 1, 1], ["cat", "bird+dog", "dog"]),
        ("dog,bird", [0.0, 1.0, 1.0], ["", "bird+dog", "dog"]),
        ("*", [0, 1, 2], "line [34]: 'dog' has '2'"),
        ("*", [0, 1, -1], "'-1'"),
        ("cat,cow", [0, 1, 0], "no column 'cow'"),
        ("is_*", [0, 1, 0], r"no column 'is_\*'"),
        (None, [0, 1, 0], "input.label=cat,dog,bird"),
    ],
)
def test_a_column_for_each_class(images, name, label, dog, expected):
    """Rows of several ones have several labels, rows without a one none."""
    columns = {
        "file": ["0", "1", "2"],
        "cat": [1, 0, 0],
        "dog": dog,
        "bird": [0.0, 1.0, None],
        "split": ["train"] * 3,
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    lines = [",".join("" if v is None else str(v) for v in row.values()) for row in rows]
    write(images, "\n".join([",".join(columns), *lines]), "a.csv")
    write(images, "\n".join(map(json.dumps, rows)), "a.jsonl")
    pq.write_table(pa.table(columns), images / "a.parquet")
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            create(images / name, label=label)
        return
    source = create(images / name, "train", label=label)
    assert contents(source) == dict(zip(["0.jpg", "1.jpg", "2.jpg"], expected, strict=True))
    assert source.class_names == tuple(
        sorted({n for cell in expected for n in cell.split("+") if n})
    )


@pytest.mark.parametrize("parquet", [False, True])
def test_whole_numbers_that_pandas_wrote_as_floats(images, parquet):
    """A column with an empty cell is one of floats."""
    path = write(images, "image,label,split\n0,2.0,train\n1,10.0,train\n2,,test\n")
    if parquet:
        labels = pa.array([2.0, 10.0, float("nan")])
        columns = {"image": ["0", "1", "2"], "label": labels, "split": ["train", "train", "test"]}
        pq.write_table(pa.table(columns), path := images / "a.parquet")
    assert create(path, "train").class_names == ("2", "10")
    with refused("1 rows without a label"):
        create(path, "test")
    assert create(path, "test", labelled=False).num_examples == 1


@pytest.mark.parametrize("options", [{"label": "breed"}, {"label_separator": "|"}])
def test_without_labels_the_same_images_are_held_out(tmp_path, options):
    names = [f"{i}.jpg" for i in range(60)]
    fill(tmp_path, names)
    label = options.get("label", "label")
    cells = [f"{name},{'abc'[i % 3]}{'|d' * (i % 2)}" for i, name in enumerate(names)]
    path = write(tmp_path, "\n".join([f"image,{label}", *cells]))
    files = lambda **more: create(path, "val", **options, **more).file_names()
    assert files(labelled=False) == files()


def linked(folder):
    """Three ways to write one image: below the table, by a link to its folder, whole."""
    fill(folder / "photos", ["0.jpg", "1.jpg"])
    (folder / "link").symlink_to(folder / "photos")
    return folder / "photos/0.jpg"


@pytest.mark.parametrize("other", ["link/0.jpg", "{absolute}", "{linked}"])
@pytest.mark.parametrize(("end", "what"), [("b,train", "label"), ("a,val", "two splits")])
def test_one_image_by_two_paths(tmp_path, other, end, what):
    absolute = linked(tmp_path)
    other = other.format(absolute=absolute, linked=tmp_path / "link/0.jpg")
    start = "file,label,split\nphotos/0.jpg,a,train\nphotos/1.jpg,b,train\n"
    source = create(write(tmp_path, f"{start}{other},a,train\n"), "train")
    assert contents(source) == {"0.jpg": "a", "1.jpg": "b"}
    assert source.notes[1] == "rows that repeat another and count once: 1"
    for rows in (f"{start}{other},{end}\n", start.replace("a,train", end) + f"{other},a,train\n"):
        with pytest.raises(UserError, match=what):
            create(write(tmp_path, rows), "train")


@pytest.mark.parametrize(
    ("start", "unit", "message"),
    [
        ("file,label\n", "0.jpg,a", "line 2, .* it has at least"),
        ("", "file", "line 1, .* field larger than"),
    ],
)
def test_lines_and_fields_without_an_end(images, start, unit, message):
    path = write(images, start + unit * (2**18 if not start else 2**22), "a.csv.gz")
    tracemalloc.start()
    with pytest.raises(UserError, match=message):
        create(path)
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()


def test_missing_files(images):
    path = write(images, "image,label\n0,a\n7,b\n1,a\n8,b\n9,a\n6,a\n")
    with refused("4 of 6", "/7", "on_bad_image"):
        create(path)
    source = create(path, on_bad_image="skip")
    assert source.num_examples == 6
    faults = {Path(source.describe(i)).name: source.read(np.array([i]))[0].fault for i in range(6)}
    assert {name for name, fault in faults.items() if fault} == {"7", "8", "9", "6"}
    assert "4 of 6 images are not there" in source.notes[1]


@pytest.mark.parametrize(
    ("content", "options", "names"),
    [
        ("0.jpg,cat\n1.jpg,dog\n", {}, ["input.image_column"]),
        ("file,breed\n0.jpg,x\n", {}, ["input.label", "'breed'"]),
        ("file,label\n", {"label": "labl"}, ["'labl'", "'label'"]),
        ("file,label,class\n", {}, ["'label' and 'class'", "input.label"]),
        ("file,path,class\n", {}, ["'file' and 'path'", "input.image_column"]),
        ("file,label\n0.jpg,a\n", {"split_column": "part"}, ["'part'"]),
        ("file,label,is_valid\n0.jpg,a,maybe\n", {}, ["input.split", "maybe"]),
        ("file,label,fold\n0.jpg,a,1\n", {}, ["input.split", "'fold'"]),
        (PLAIN, {"label_separator": ""}, ["input.label_separator is empty"]),
        ("file,label\nhttp://x/0.jpg,cat\n", {}, ["http://x/0.jpg"]),
        ("file,label\n0.jpg,cat\n1.jpg,a\n0.jpg,dog\n", {}, ["lines 2, 4", "'dog'"]),
        ("file,label,split\n0.jpg,a,all\n1.jpg,b,all\n0.jpg,a,x\n", {}, ["2, 4", "all and x"]),
        ('file,label\n0.jpg,"cat\n', {}, ["labels.csv"]),
        ("file,label\n0.jpg,\n", {}, ["input.label"]),
        ("file,label\n0.jpg,a\n1.jpg,nan\n", {}, ["labels.csv, line 3"]),
        ("file,label\n0.jpg,a\n1.jpg,b,c\n", {}, ["labels.csv, line 3"]),
        ("file,label\n0.jpg,a\n,b\n", {}, ["labels.csv, line 3"]),
        ("file,label\n../0.jpg,a\n", {}, ["../0.jpg"]),
        ("file,label\n0.heic,a\n", {}, [".heic"]),
        ("", {}, ["input.image_column"]),
        ("file,label\n", {}, ["input.split", "0 in 'all'"]),
        (b"\x00\x01\x02", {}, ["labels.csv"]),
        (f"file,label\n{'a/' * 3000}0.jpg,cat\n", {}, ["labels.csv, line 2"]),
    ],
    ids=[
        "no header", "no column of labels", "unknown column", "two columns of labels",
        "two columns of files", "no column of splits", "neither yes nor no", "other splits",
        "no separator", "address", "two labels", "two splits", "open quotation", "no labels", "nan",
        "more fields", "no file", "outside", "format", "empty", "no rows", "binary", "folders",
    ],
)  # fmt: skip
def test_tables_that_are_refused(images, content, options, names):
    fill(images, ["0.heic"])
    with refused(*names):
        create(write(images, content), **options)  # texts and flags


def test_an_image_that_may_be_two(images):
    fill(images, ["0.png"])
    with refused("line 2"):
        create(write(images, "id,label\n0,cat\n"))
    assert contents(create(write(images, "id,label\n0.png,cat\n"))) == {"0.png": "cat"}
    fill(images / "other", ["a1.jpg"])
    with refused("a1.jpg"):
        create(write(images, "id,label\na1.jpg,cat\n"))


def test_places_without_a_table(images):
    for name in ("", "none.csv", "0.jpg"):
        with refused("input.data_dir"):
            create(images / name)
    for name in ("a.csv", "a.tsv"):
        write(images, PLAIN, name)
    with refused("input.data_dir"):
        create(images)


def test_bytes_of_images_in_parquet_are_for_prepare(images):
    table = pa.table({"image": [{"bytes": b"x", "path": None}], "label": [0]})
    pq.write_table(table, images / "a.parquet")
    with refused("vit-jax prepare records"):
        create(images / "a.parquet")
    several = {"image": [["0.jpg", "1.jpg"]], "label": [["a", "b"]]}
    pq.write_table(pa.table(several), images / "a.parquet")
    with refused("'image'", "list"):
        create(images / "a.parquet")
    (images / "a.parquet").write_bytes(b"PAR1")
    with refused("a.parquet"):
        create(images / "a.parquet")


def test_a_large_table_makes_no_object_for_each_row(tmp_path, monkeypatch):
    monkeypatch.setattr(image_table, "_CHUNK", 500)
    monkeypatch.setattr(table_file, "_CHUNK", 500)
    number = 20_000
    (tmp_path / "0.jpg").write_bytes(b"x")
    lines = [f"{i}.jpg,{i % 10}" for i in range(number)]
    path = write(tmp_path, "\n".join(["image,label", *lines]))
    del lines
    tracemalloc.start()
    source = create(path, on_bad_image="skip")
    kept_bytes, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert source.num_examples == number
    assert kept_bytes < 40 * number  # NumPy's; Arrow's are 20 more
    assert most_bytes < 200 * number


def test_files_and_folders_in_the_other_form_of_unicode(images):
    fill(images / "cafe\u0301", ["e\u0301.jpg"])
    source = create(write(images, "file,label\ncaf\xe9/\xe9.jpg,cat\n1.jpg,dog\n"))
    assert contents(source) == {"e\u0301.jpg": "cat", "1.jpg": "dog"}


def test_a_table_is_not_read_where_folders_say_more(tmp_path):
    request = sources.Request(data_dir=str(tmp_path), split="train")
    for class_name in "xyz":
        fill(tmp_path / class_name, ["0.jpg", "1.jpg"])
    write(tmp_path, FOUND["metadata.csv"].format("x/"), "metadata.csv")
    assert sources.create("image_folder", request).class_names == ("x", "y", "z")


def test_one_image_in_two_tables(tmp_path):
    absolute = linked(tmp_path)
    write(tmp_path, "file,label\nphotos/0.jpg,a\n", "train.csv")
    write(tmp_path, f"file,label\n{absolute},a\n", "val.csv")
    with pytest.raises(UserError, match="two splits"):
        create(tmp_path, "val")


def test_folders_that_are_not_there_are_looked_for_once(tmp_path, monkeypatch):
    """Each was looked for in each subfolder, and each of these was listed each time."""
    for i in range(20):
        fill(tmp_path / f"{i}", ["x/0.jpg"])
    path = write(tmp_path, "\n".join(["file,label", *(f"lost{i}/1.jpg,a" for i in range(500))]))
    folders = []
    scan = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (folders.append(str(path)), scan(path))[1])
    with pytest.raises(UserError, match="500 of 500 images are not there"):
        create(path)
    assert len(folders) == len(set(folders)) == 21
