"""What goes into a preparation comes out, or is counted and named, by every reader."""

import dataclasses
import io
import json
import os
import tarfile
import unicodedata
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.messages import refused
from tests.tools.prepare.conftest import SYNSETS, jpeg, tar
from tests.tools.prepare.pipeline_test import prepared
from vit_jax.core.errors import UserError
from vit_jax.tools.prepare import image_folder, imagenet, records, report_files, tars
from vit_jax.tools.prepare.collection import CollectionRequest, PrepareOptions

OPTIONS = PrepareOptions(shard_mib=0.05)


def tiff(seed):
    out = io.BytesIO()
    Image.open(io.BytesIO(jpeg(seed))).save(out, "TIFF")
    return out.getvalue()


def a_folder(root):
    train = root / "train"
    images = ["cat/a.jpg", "cat/b.JPG", "cat/c.jfif", "dog/a.jpeg"]
    others = [".hidden/a.jpg", "__MACOSX/cat/._a.jpg", "cat/.DS_Store", "cat/Thumbs.db",
              "cat/deep/er/x.jpg", "cat/deep/.y.jpg", "../top.jpg", "readme.txt"]  # fmt: skip
    for number, name in enumerate(images + others):
        (train / name).parent.mkdir(parents=True, exist_ok=True)
        (train / name).write_bytes(jpeg(number))
    (train / "dog/d.tif").write_bytes(tiff(20))
    (train / "dog/empty.jpg").write_bytes(b"")
    (train / "dog/notes.txt").write_bytes(b"text")
    os.mkfifo(train / "cat/pipe.jpg")
    (train / "cat/device.jpg").symlink_to("/dev/zero")
    (train / "cat/broken.jpg").symlink_to("nowhere")
    (train / "cat/circle.jpg").symlink_to("circle.jpg")
    (root / "loop").symlink_to(root)
    (train / "dog/above").symlink_to(root)
    return image_folder.collection(CollectionRequest(str(root))), Counter(
        kept=5, empty=1, unreadable=1, hidden=5, nested=2, beside_classes=3, no_file=4
    )


def folders_of_classes(root):
    """With a folder inside a class, which are not taken for a split with a class."""
    for number, name in enumerate(["café/a.jpg", "dog/a.jpg", "dog/more/b.jpg"]):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(jpeg(number))
    collection = image_folder.collection(CollectionRequest(str(root)))
    return collection, Counter(kept=2, nested=1)


def a_webdataset(root):
    members = [(f"photo{i}.jpg", jpeg(i)) for i in range(3)]
    members += [(f"clip.{i:02}.jpg", jpeg(10 + i)) for i in range(6)]
    members += [("s.seg.png", jpeg(20)), ("s.JPG", jpeg(21)), ("s.png", jpeg(22))]
    members += [("t.tif", tiff(3)), ("u.jfif", jpeg(31)), ("w.jpg", jpeg(32)), ("w.jpg", jpeg(33))]
    members += [("x.txt", b"no image"), (".DS_Store", b"x"), ("__MACOSX/._t.jpg", b"x")]
    with_labels = []
    for name, data in members:
        with_labels += [(name, data)]
        stem = name.split(".")[0]
        if stem and name.lower().endswith(("jpg", "jfif", "tif")) and "/" not in name:
            with_labels += [(name.rsplit(".", 1)[0] + ".cls", b"0")]
    with tarfile.open(root / "a.tar", "w") as archive:
        for name, data in with_labels:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return tars.webdataset(CollectionRequest(str(root), num_classes=2)), Counter(
        kept=7, dotted_name=6, other_image=2, same_member=1, no_image=1, hidden=2
    )


def a_list(root):
    for i in range(3):
        (root / f"{i}.jpg").write_bytes(jpeg(i))
    entries = [{"image": f"{i}.jpg", "label": 0} for i in (0, 1, 2, 2, 7)]
    lines = [json.dumps(entry) for entry in entries]
    (root / "a.jsonl").write_text("\n".join([*lines, "{"]))
    wanted = CollectionRequest(str(root), num_classes=1, multi_label=False)
    return records.collection(wanted), Counter(kept=3, same_name=1, missing=1, bad_entry=1)


def a_parquet(root):
    images = [{"bytes": jpeg(i), "path": None} for i in range(3)] + [None]
    pq.write_table(pa.table({"image": images, "label": [0, 1, 5, 0]}), root / "a.parquet")
    wanted = CollectionRequest(str(root), num_classes=2, multi_label=False)
    return records.collection(wanted), Counter(kept=2, bad_label=1, bad_entry=1)


def a_table(root):
    for i in range(3):
        (root / f"{i}.jpg").write_bytes(jpeg(i))
    rows = ["0.jpg,cat", "1,dog", "2.jpg,", "1.jpg,dog", "none.jpg,cat", "one field"]
    (root / "a.csv").write_text("\n".join(["image,label", *rows]))
    collection = records.collection(CollectionRequest(str(root)))
    return collection, Counter(kept=2, no_label=1, same_name=1, missing=1, bad_entry=1)


def synsets(root):
    files = {"a.JPEG": jpeg(0), "b.txt": b"text", "c.JPEG": b""}
    whole = {f"{SYNSETS[0]}.tar": tar(files), "x/other.tar": b"", "._n.tar": b"", "notes": b""}
    (root / "whole.tar").write_bytes(tar(whole))
    collection = imagenet.imagenet21k(CollectionRequest(str(root / "whole.tar")))
    return collection, Counter(kept=1, unreadable=1, empty=1, hidden=1, beside_classes=2)


def folder_of_synsets(root):
    (root / f"{SYNSETS[0]}.tar").write_bytes(tar({"a.JPEG": jpeg(0)}))
    for name in ("other.tar", ".DS_Store", "notes.txt"):
        (root / name).write_bytes(b"")
    collection = imagenet.imagenet21k(CollectionRequest(str(root)))
    return collection, Counter(kept=1, hidden=1, beside_classes=2)


def validation(root):
    (root / "val").mkdir()
    for name in ("ILSVRC2012_val_00000001.JPEG", "ILSVRC2012_val_00000002.JPEG", "other.JPEG"):
        (root / "val" / name).write_bytes(jpeg(len(name)))
    (root / "val" / ".DS_Store").write_bytes(b"x")
    collection = imagenet.imagenet2012(CollectionRequest(str(root)))
    return collection, Counter(kept=2, no_label=1, hidden=1)


def version_2(root):
    for number, name in enumerate(["3/a.jpeg", "3/.DS_Store", "3/deep/b.jpeg", "other/c.jpeg"]):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(jpeg(number))
    collection = imagenet.imagenet_v2(CollectionRequest(str(root)))
    return collection, Counter(kept=1, hidden=1, nested=1, no_label=1)


READERS = [
    a_folder, folders_of_classes, a_webdataset, a_list, a_parquet, a_table, synsets,
    folder_of_synsets, validation, version_2,
]  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_what_goes_in_comes_out_or_is_named(tmp_path, reader):
    root = tmp_path / "source"
    root.mkdir()
    collection, expected = reader(root)
    collection = dataclasses.replace(collection, splits="train=rest")
    data_set = prepared(collection, tmp_path / "out", OPTIONS)
    kept = sum(map(len, data_set.assignment.splits.values()))
    assert Counter(data_set.assignment.left_out.values()) + Counter(kept=kept) == expected
    report = report_files.read(data_set.folder)
    assert report["images"]["listed"] == expected.total()
    lines = (data_set.folder / "set_aside.jsonl").read_text().splitlines()
    named = [json.loads(line) for line in lines]
    assert Counter(one["why"] for one in named) == expected - Counter(kept=kept)
    assert all(one["name"] for one in named)


def test_names_of_folders_are_composed(tmp_path):
    name = unicodedata.normalize("NFD", "café")
    (tmp_path / name).mkdir()
    (tmp_path / name / "a.jpg").write_bytes(jpeg(0))
    wanted = CollectionRequest(str(tmp_path))
    assert image_folder.collection(wanted).class_names == ["café"]
    (tmp_path / "café").mkdir()
    with refused():
        image_folder.collection(wanted)


def test_compressed_files_in_a_folder_are_not_lost(tmp_path):
    (tmp_path / "a.TAR").write_bytes(tar({"0.jpg": jpeg(0), "0.cls": b"0"}))
    wanted = CollectionRequest(str(tmp_path), num_classes=1)
    assert len(tars.webdataset(wanted).parts) == 1
    (tmp_path / "b.tar.zst").write_bytes(b"x")
    with refused("b.tar.zst"):
        tars.webdataset(wanted)


@pytest.mark.parametrize("names", [("train", "val"), ("train_images", "dev")])
def test_folders_of_splits_without_classes(tmp_path, names):
    """They became two classes."""
    for number, name in enumerate(names):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.jpg").write_bytes(jpeg(number))
    with pytest.raises(UserError, match="not classes"):
        image_folder.collection(CollectionRequest(str(tmp_path)))
