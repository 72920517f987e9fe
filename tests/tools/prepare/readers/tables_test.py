"""CSV and TSV files of images and labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.prepare.conftest import jpeg
from tests.tools.prepare.pipeline_test import prepared
from tests.tools.prepare.readers.records_test import SMALL, labels
from vit_jax.core.errors import UserError
from vit_jax.tools.prepare.collection import Collection, CollectionRequest
from vit_jax.tools.prepare.readers import records


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table's folder, with images in it and in train/."""
    for number, name in enumerate(["0.jpg", "1.jpg", "2.jpg", "train/a1.jpg", "train/b2.jpeg"]):
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / name).write_bytes(jpeg(number))
    return tmp_path / "set"


def table(
    folder: Path, content: str | bytes, name: str = "labels.csv", **options: object
) -> Collection:
    data = content.encode() if isinstance(content, str) else content
    (folder / name).write_bytes(data)
    return records.collection(CollectionRequest(str(folder / name), **options))  # type: ignore[arg-type]


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
def test_forms_of_tables(tmp_path: Path, folder: Path, content: str | bytes, name: str) -> None:
    assert contents(table(folder, content, name), tmp_path / "out") == EXPECTED


def test_files_in_the_other_form_of_unicode(tmp_path: Path, folder: Path) -> None:
    """As macOS packs them."""
    (folder / "cafe\u0301").mkdir()
    (folder / "0.jpg").rename(folder / "cafe\u0301" / "e\u0301.jpg")
    collection = table(folder, "file,label\ncaf\xe9/\xe9.jpg,cat\n1.jpg,dog\n")
    assert contents(collection, tmp_path / "out") == {jpeg(0): "cat", jpeg(1): "dog"}


def test_classes_that_are_numbers_are_in_their_order(folder: Path) -> None:
    collection = table(folder, "file,label\n0.jpg,10\n1.jpg,-1\n2.jpg,2\n")
    assert collection.class_names == ["-1", "2", "10"]


def test_ids_without_extensions_in_a_folder_beside_the_table(tmp_path: Path, folder: Path) -> None:
    collection = table(folder, "id,breed\na1,10\nb2,9\n", label_field="breed")
    assert collection.class_names == ["9", "10"]
    assert collection.notes[0] == "labels.csv: images of the column 'id', labels of 'breed'."
    assert contents(collection, tmp_path / "out") == {jpeg(3): "10", jpeg(4): "9"}


def test_rows_that_are_left_out_are_named(tmp_path: Path, folder: Path) -> None:
    rows = ["0.jpg,cat", "1.jpg,", "no.jpg,cat", "../x.jpg,cat", "2.jpg,bee", "0.jpg,cat", "9"]
    (folder / "names.txt").write_text("cat\ndog\n")
    (folder.parent / "x.jpg").write_bytes(jpeg(9))
    content = "\n".join(["path,label", *rows, ",cat"])
    data_set = prepared(
        table(folder, content, classes=str(folder / "names.txt")), tmp_path / "out", SMALL
    )
    assert sorted(data_set.assignment.left_out.values()) == [
        "bad_entry", "bad_entry", "bad_label", "missing", "no_label", "outside", "same_name",
    ]  # fmt: skip
    left_out = (data_set.folder / "set_aside.jsonl").read_text()
    for name in ("no.jpg", "../x.jpg", "labels.csv, line 8", "labels.csv, line 9"):
        assert f'"name": "{name}"' in left_out


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("0.jpg,cat\n", {}, r"names the columns '0\.jpg', 'cat': name one with --image_field"),
        ("file,breed\n0.jpg,x\n", {}, r"'file', 'breed': name one with --label_field"),
        ("file,label\n", {"label_field": "labl"}, r"no column 'labl'; it has 'file', 'label'"),
        ("file,label,class\n", {}, r"columns 'label' and 'class' for their classes: name one"),
        ("file,label\nhttp://x/0.jpg,cat\n", {}, r"line 2: http://x/0\.jpg is an address"),
        ("file,label\n0.jpg,cat\n1.jpg,a\n0.jpg,dog\n", {}, r"'cat' in line 2, 'dog' in line 4"),
        ('file,label\n0.jpg,"cat\n', {}, r"labels\.csv, line 2: .*quotation"),
        ("file,label\n0.jpg,\n", {}, "no row has a label"),
        ("", {}, "columns none"),
        ("file,label\n0.jpg,cat\n", {"multi_label": True}, "--multi_label: a row"),
        (b"\x00\x01\x02", {}, "is not text"),
    ],
)
def test_tables_that_cannot_be_read(
    folder: Path, content: str | bytes, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        table(folder, content, **options)


def test_an_image_that_may_be_two(folder: Path) -> None:
    (folder / "0.png").write_bytes(b"x")
    with pytest.raises(UserError, match=r"line 2: 0 may be 0\.jpg or 0\.png"):
        table(folder, "id,label\n0,cat\n")
