import gzip
import itertools
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.messages import refused
from vit_jax.data.sources import image_table, table_file
from vit_jax.data.sources import table as sources
from vit_jax.data.sources.request import TableOptions
from vit_jax.data.sources.splits import HELD_OUT


def fill(folder: Path, names: Iterable[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())


def create(
    data_dir: Path,
    split: str = "all",
    *,
    label: str | None = None,
    labelled: bool = True,
    **options: str,
) -> sources.Source:
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


def contents(source: sources.Source) -> dict[str, str]:
    """File -> its classes."""
    assert source.class_names is not None
    return {
        example.image.decode(): "+".join(source.class_names[label] for label in example.labels)
        for example in source.read(np.arange(source.num_examples))
    }


def write(folder: Path, content: str | bytes, name: str = "labels.csv") -> Path:
    data = content.encode() if isinstance(content, str) else content
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder / name


def rows(number: int, *, split: str = "") -> str:
    """A table of images i.jpg of classes i mod 3."""
    lines = [f"{i}.jpg,{'abc'[i % 3]}" for i in range(number)]
    return "\n".join(["file_name,label", *lines])


@pytest.fixture
def images(tmp_path: Path) -> Path:
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
        (PLAIN.replace("\n", "\r\n"), "windows.csv"),
        (PLAIN.encode("latin-1"), "latin.csv"),
        (PLAIN.encode("utf-16"), "utf16.csv"),
        (PLAIN.replace(",", ";").replace("dog;", "dog,"), "semicolons.csv"),
        ("filename\tclass\n0.jpg\tcat\n1.jpg\tdog, wild\n2.jpg\tcafé\n", "a.tsv"),
        (ODD, "c.csv"),
    ],
)
def test_forms(images: Path, content: str | bytes, name: str) -> None:
    source = create(write(images, content, name))
    assert contents(source) == EXPECTED
    assert source.class_names == ("café", "cat", "dog, wild")


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())]
)
def test_parquet(images: Path, kind: pa.DataType) -> None:
    labels = pa.array(["cat", "dog, wild", "café"]).cast(kind)
    table = pa.table({"image_id": [0, 1, 2], "label": labels, "x": [1.0, 2.0, 3.0]})
    pq.write_table(table, images / "a.parquet", row_group_size=1)
    source = create(images / "a.parquet")
    assert contents(source) == EXPECTED
    assert source.notes[0].endswith("not read: 'x'")


def test_files_are_found_beside_the_table_and_without_extensions(images: Path) -> None:
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


def test_files_and_folders_in_the_other_form_of_unicode(images: Path) -> None:
    fill(images / "cafe\u0301", ["e\u0301.jpg"])
    source = create(write(images, "file,label\ncaf\xe9/\xe9.jpg,cat\n1.jpg,dog\n"))
    assert contents(source) == {"e\u0301.jpg": "cat", "1.jpg": "dog"}


def test_one_in_ten_of_each_class_is_held_out_whatever_the_order_of_rows(tmp_path: Path) -> None:
    fill(tmp_path, [f"{i}.jpg" for i in range(300)])
    header, *lines = rows(300).split("\n")
    path = write(tmp_path, "\n".join([header, *lines]))
    train, val, both = (create(path, split) for split in ("train", "val", "all"))
    assert (train.num_examples, val.num_examples, both.num_examples) == (270, 30, 300)
    assert HELD_OUT in train.notes and HELD_OUT not in (*val.notes, *both.notes)
    assert contents(train).keys() | contents(val).keys() == contents(both).keys()
    labels = val.stored_labels()
    assert labels is not None
    assert np.bincount(labels.labels).tolist() == [10, 10, 10]
    assert len(set(list(contents(train).values())[:12])) == 3  # a slice has all classes
    other = write(tmp_path, "\n".join([header, *lines[::-1]]), "reversed.csv")
    assert create(other, "train").fingerprint == train.fingerprint
    assert list(contents(create(path, "train[:50%]"))) == list(contents(train))[:135]


def test_the_fingerprint_covers_labels_paths_and_sizes(images: Path) -> None:
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
def test_columns_of_splits(
    images: Path, column: str, values: list[str], sizes: dict[str, int]
) -> None:
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


def test_tables_named_after_splits(tmp_path: Path) -> None:
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


def test_a_folder_of_hugging_face(tmp_path: Path) -> None:
    for split in ("train", "test"):
        fill(tmp_path / split, ["0.jpg", "1.jpg"])
        write(tmp_path / split, "file_name,label\n0.jpg,a\n1.jpg,b\n", "metadata.csv")
    assert contents(create(tmp_path, "test")) == {"0.jpg": "a", "1.jpg": "b"}
    one = create(tmp_path / "train", "all")  # the only table of its folder
    assert contents(one) == {"0.jpg": "a", "1.jpg": "b"}


@pytest.mark.parametrize("labels", itertools.permutations(["1", "01", "10"]))
def test_the_order_of_classes_is_not_that_of_rows(images: Path, labels: tuple[str, ...]) -> None:
    rows = [f"{k}.jpg,{label}" for k, label in enumerate(labels)]
    source = create(write(images, "\n".join(["image,label", *rows])))
    assert source.class_names == ("01", "1", "10")


@pytest.mark.parametrize("separator", ["|", " ", ", "])
def test_several_labels(images: Path, separator: str) -> None:
    cells = [separator.join(cell) for cell in (["b", "a"], ["c"], ["a", "c", "a"], [])]
    names = ["0.jpg", "1.jpg", "2.jpg", "a1.jpg"]
    lines = [f'{name},"{cell}"' for name, cell in zip(names, cells, strict=True)]
    source = create(write(images, "\n".join(["image,tags", *lines])), label_separator=separator)
    assert source.class_names == ("a", "b", "c")
    assert contents(source) == {"0.jpg": "a+b", "1.jpg": "c", "2.jpg": "a+c", "a1.jpg": ""}
    assert source.max_labels == 2


def test_lists_of_labels_in_parquet(images: Path) -> None:
    table = pa.table({"image": ["0", "1", "2"], "labels": [[7, 10], [7], []]})
    pq.write_table(table, images / "a.parquet")
    source = create(images / "a.parquet")
    assert source.class_names == ("7", "10")
    assert contents(source) == {"0.jpg": "7+10", "1.jpg": "7", "2.jpg": ""}


def test_an_empty_separator(images: Path) -> None:
    with refused("input.label_separator is empty"):
        create(write(images, PLAIN), label_separator="")


def test_labels_that_look_like_several_are_named(images: Path) -> None:
    source = create(write(images, "image,label\n0,a\n1,b\n2,a|b\n"))
    assert source.class_names == ("a", "a|b", "b")
    assert "input.label_separator='|'" in source.notes[0]


@pytest.mark.parametrize("parquet", [False, True])
def test_whole_numbers_that_pandas_wrote_as_floats(images: Path, parquet: bool) -> None:
    """A column with an empty cell is one of floats."""
    path = write(images, "image,label,split\n0,2.0,train\n1,10.0,train\n2,,test\n")
    if parquet:
        labels = pa.array([2.0, 10.0, float("nan")])
        columns = {"image": ["0", "1", "2"], "label": labels, "split": ["train", "train", "test"]}
        pq.write_table(pa.table(columns), path := images / "a.parquet")
    assert create(path, "train").class_names == ("2", "10")
    with refused("without a label: 1"):
        create(path, "test")
    assert create(path, "test", labelled=False).num_examples == 1


def test_images_without_labels(images: Path) -> None:
    source = create(write(images, "image\n0\n1\n"), labelled=False)
    assert source.num_examples == 2
    assert source.read(np.array([0]))[0].labels == ()


@pytest.mark.parametrize("options", [{"label": "breed"}, {"label_separator": "|"}])
def test_without_labels_the_same_images_are_held_out(
    tmp_path: Path, options: dict[str, str]
) -> None:
    names = [f"{i}.jpg" for i in range(60)]
    fill(tmp_path, names)
    label = options.get("label", "label")
    cells = [f"{name},{'abc'[i % 3]}{'|d' * (i % 2)}" for i, name in enumerate(names)]
    path = write(tmp_path, "\n".join([f"image,{label}", *cells]))
    files = lambda **more: create(path, "val", **options, **more).file_names()
    assert files(labelled=False) == files()


def test_a_row_with_a_split_counts_whatever_the_order(images: Path) -> None:
    lines = ["0,a,", "0,a,train", "0,a,", "1,b,train"]
    for order in (lines, lines[::-1]):
        path = write(images, "\n".join(["image,label,split", *order]))
        assert create(path, "train").num_examples == 2


def test_rows_that_repeat_count_once(images: Path) -> None:
    source = create(write(images, "image,label\n0,a\n1,b\n./0.jpg,a\n"))
    assert source.num_examples == 2
    assert source.notes[1] == "rows that repeat another and count once: 1"


def test_missing_files(images: Path) -> None:
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
        ("file,label,is_valid\n0.jpg,a,maybe\n", {}, ["'maybe'", "input.split_column"]),
        ("file,label,fold\n0.jpg,a,1\n", {}, ["input.split", "'fold'"]),
        ("file,label\nhttp://x/0.jpg,cat\n", {}, ["http://x/0.jpg"]),
        ("file,label\n0.jpg,cat\n1.jpg,a\n0.jpg,dog\n", {}, ["lines 2, 4", "'dog'"]),
        ("file,label,split\n0.jpg,a,all\n1.jpg,b,all\n0.jpg,a,x\n", {}, ["2, 4", "all and x"]),
        ('file,label\n0.jpg,"cat\n', {}, ["labels.csv"]),
        ("file,label\n0.jpg,\n", {}, ["input.label"]),
        ("file,label\n0.jpg,a\n1.jpg,nan\n", {}, ["labels.csv, line 3"]),
        ("file,label\n0.jpg,a\n1.jpg,b,c\n", {}, ["labels.csv, line 3"]),
        ("file,label\n0.jpg,a\n,b\n", {}, ["labels.csv, line 3"]),
        ("file,label\n../0.jpg,a\n", {}, ["../0.jpg"]),
        ("file,label\n0.tiff,a\n", {}, [".tiff"]),
        ("", {}, ["input.image_column"]),
        ("file,label\n", {}, ["no rows"]),
        (b"\x00\x01\x02", {}, ["labels.csv"]),
    ],
    ids=[
        "no header", "no column of labels", "unknown column", "two columns of labels",
        "two columns of files", "no column of splits", "neither yes nor no", "other splits",
        "address", "two labels", "two splits", "open quotation", "no labels", "nan", "more fields",
        "no file", "outside", "format", "empty", "no rows", "binary",
    ],
)  # fmt: skip
def test_tables_that_are_refused(
    images: Path, content: str | bytes, options: dict[str, str], names: list[str]
) -> None:
    fill(images, ["0.tiff"])
    with refused(*names):
        create(write(images, content), **options)  # type: ignore[arg-type]  # texts and flags


def test_an_image_that_may_be_two(images: Path) -> None:
    fill(images, ["0.png"])
    with refused("line 2"):
        create(write(images, "id,label\n0,cat\n"))
    assert contents(create(write(images, "id,label\n0.png,cat\n"))) == {"0.png": "cat"}
    fill(images / "other", ["a1.jpg"])
    with refused("a1.jpg"):
        create(write(images, "id,label\na1.jpg,cat\n"))


def test_places_without_a_table(images: Path) -> None:
    with refused("input.data_dir"):
        create(images)
    with refused("input.data_dir"):
        create(images / "none.csv")
    with refused("input.data_dir"):
        create(images / "0.jpg")
    for name in ("a.csv", "a.tsv"):
        write(images, PLAIN, name)
    with refused("input.data_dir"):
        create(images)


def test_bytes_of_images_in_parquet_are_for_prepare(images: Path) -> None:
    table = pa.table({"image": [{"bytes": b"x", "path": None}], "label": [0]})
    pq.write_table(table, images / "a.parquet")
    with refused("vit-jax prepare records"):
        create(images / "a.parquet")
    several = {"image": [["0.jpg", "1.jpg"]], "label": [["a", "b"]]}
    pq.write_table(pa.table(several), images / "a.parquet")
    with refused("'image' has list"):
        create(images / "a.parquet")
    (images / "a.parquet").write_bytes(b"PAR1")
    with refused("a.parquet"):
        create(images / "a.parquet")


def test_a_large_table_makes_no_object_for_each_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
