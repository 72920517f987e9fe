import os
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.messages import refused
from vit_jax.data import files
from vit_jax.data.reader import encoded
from vit_jax.data.sources import table as sources
from vit_jax.data.sources.split_names import BY_NAMES, HELD_OUT


def fill(folder, names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(f"{folder.name}/{name}".encode())


def create(folder, split="train"):
    return sources.create(
        "image_folder",
        sources.Request(data_dir=None if folder is None else str(folder), split=split),
    )


def contents(source):
    examples = source.read(np.arange(source.num_examples))
    return [(example.image.decode(), example.labels[0]) for example in examples]


@pytest.fixture
def with_splits(tmp_path):
    for split, count in (("train", 5), ("val", 2)):
        for name in ("dog", "cat", "10"):
            fill(tmp_path / split / name, [f"{i}.jpg" for i in range(count)])
    return tmp_path


def test_folders_of_splits(with_splits):
    source = create(with_splits)
    assert source.class_names == ("10", "cat", "dog")
    assert (source.num_examples, source.num_classes) == (15, 3)
    for name, label in contents(source):
        assert name.startswith(("10", "cat", "dog")[label] + "/")
    assert create(with_splits, "val").num_examples == 6
    assert create(with_splits, "train[:20%]").num_examples == 3
    assert Path(source.describe(0)).parent.parent == with_splits / "train"


def test_a_data_set_of_tfds_is_named(tmp_path):
    fill(tmp_path / "1.0.0", ["dataset_info.json"])
    with refused("input.data_dir", 'input.source="tfds"'):
        create(tmp_path)


def test_folders_of_classes_are_split_by_name(tmp_path):
    for name in ("a", "b"):
        fill(tmp_path / name, [f"{i}.png" for i in range(500)])
    train, val = contents(create(tmp_path)), contents(create(tmp_path, "val"))
    assert len(train) + len(val) == len({*train, *val}) == 1000
    assert create(tmp_path, "all").num_examples == 1000
    notes = {split: create(tmp_path, split).notes for split in ("train", "val", "all")}
    assert notes == {"train": (HELD_OUT,), "val": (), "all": ()}
    fill(tmp_path / "a", [f"more{i}.png" for i in range(300)])
    assert len(set(train) - set(contents(create(tmp_path)))) < 10  # few move, where one in ten is
    assert len(set(val) - set(contents(create(tmp_path, "val")))) < 10


def test_names_of_files_may_say_the_splits(tmp_path):
    for name in ("a", "b"):
        fill(tmp_path / name, [f"{word}_{i}.png" for word in ("Train", "test") for i in range(4)])
    for split, word in (("train", "Train"), ("test", "test")):
        source = create(tmp_path, split)
        assert source.num_examples == 8
        assert all(f"/{word}_" in name for name, _ in contents(source))
    assert create(tmp_path).notes == (BY_NAMES,)
    assert create(tmp_path, "all").num_examples == 16
    fill(tmp_path / "b", ["new.png"])
    with refused("input.data_dir", "1 of 17 say none"):
        create(tmp_path)


def test_a_name_that_could_be_of_a_split_is_none_alone(tmp_path):
    fill(tmp_path / "a", ["test.png", "dev_board.png", *(f"{i}.png" for i in range(20))])
    fill(tmp_path / "b", [f"test_{i}.png" for i in range(20)])
    assert create(tmp_path).notes == (HELD_OUT,)


@pytest.mark.parametrize(
    ("sizes", "held_out"),
    [
        # As StratifiedShuffleSplit(test_size=0.1) of scikit-learn 1.9 has it with every seed.
        ((40, 40), (4, 4)),
        ((100, 7, 3), (10, 1, 0)),
        ((1000, 10, 9, 8, 2), (100, 1, 1, 1, 0)),
        ((30, 31, 32, 33), (3, 3, 3, 4)),
        ((57, 23, 11), (6, 3, 1)),
        ((400, 399, 38, 12, 6), (40, 40, 4, 1, 1)),
        # It refuses these: fewer images than classes, and classes of one image.
        ((57, 1, 23, 11, 1), (6, 0, 3, 1, 0)),
        ((2,), (1,)),
        ((4,) * 50, None),
    ],
)
def test_one_in_ten_images_of_each_class_is_held_out(tmp_path, sizes, held_out):
    for c, size in enumerate(sizes):
        fill(tmp_path / f"class{c:02d}", [f"{i}.png" for i in range(size)])
    train, val = (
        np.bincount([label for _, label in contents(create(tmp_path, split))], minlength=len(sizes))
        for split in ("train", "val")
    )
    assert train.min() >= 1 and (train + val).tolist() == list(sizes)
    assert val.tolist() == list(held_out) if held_out else val.sum() == 20 and val.max() == 1


def table_of(folder, names):
    rows = [f"{name},{i % 3}" for i, name in enumerate(names)]
    folder.write_text("\n".join(["file,label", *rows]))


@pytest.mark.parametrize("layout", ["images", "train_images", "img/../photos", "my_shots"])
def test_images_whose_classes_stand_in_a_table_are_refused(tmp_path, layout):
    """They were one class, by the name of their folder."""
    fill(tmp_path / layout, [f"{i}.png" for i in range(9)])
    table_of(tmp_path / "labels.csv", [f"{i}.png" for i in range(9)])
    with refused("labels.csv", "image_table"):
        create(tmp_path)
    fill(tmp_path / "test_images", ["x.png"])
    if layout != "my_shots":
        with refused("labels.csv"):
            create(tmp_path)


def test_folders_around_the_data_set_are_named(tmp_path):
    fill(tmp_path / "zip/train/cat", ["0.png"])
    fill(tmp_path / "__MACOSX/zip/train/cat", ["._0.png"])
    with refused("'train'", "zip"):
        create(tmp_path)
    fill(tmp_path / "mixed/cat", ["0.png"])
    fill(tmp_path / "mixed/dog/beagle", ["0.png"])
    with refused("'train'", "cat, dog"):
        create(tmp_path / "mixed")
    fill(tmp_path / "deep/train/cat/images", ["0.png"])
    with refused(tmp_path / "deep/train/cat"):
        create(tmp_path / "deep")


def test_files_that_are_not_read_are_counted_by_the_reason(with_splits):
    assert create(with_splits).notes == ()
    cat, dog = with_splits / "train/cat", with_splits / "train/dog"
    fill(cat / "old/deeper", ["1.jpg", "2.jpg"])
    fill(dog / "new", ["3.png", "notes.txt"])
    fill(cat, ["notes.txt", ".hidden.jpg", "Thumbs.db", ".DS_Store"])
    os.mkfifo(dog / "pipe.jpg")
    (dog / "gone.jpg").symlink_to("nowhere.jpg")
    fill(with_splits / "train", ["all.jpg", "readme.md"])
    fill(with_splits / "train/.cache", ["4.jpg"])
    fill(with_splits / "train/__MACOSX/cat", ["._0.jpg"])
    fill(with_splits, ["logo.png"])
    (with_splits / "train/cow").symlink_to("nowhere")
    fill(with_splits / "extra", ["5.jpg"])
    source = create(with_splits)
    assert source.num_examples == 15
    assert set(source.notes) == {
        f"passed over 1 file: beside the folders of classes, such as {with_splits}/train/all.jpg",
        f"passed over 1 file: beside the folders, such as {with_splits}/logo.png",
        f"passed over 1 file: in folders beside those of splits, such as {with_splits}/extra/5.jpg",
        f"passed over 1 file: hidden, by a dot before the name, such as {cat}/.hidden.jpg",
        f"passed over 1 file: without the extension of an image, such as {cat}/notes.txt",
        "passed over 2 files: in hidden folders, or those of an operating system, such as "
        f"{with_splits}/train/.cache/4.jpg",
        "passed over 3 files: not regular files (pipes, or links to nothing), such as "
        f"{with_splits}/train/cow",
        f"passed over 3 files: in folders inside a class, such as {cat}/old/deeper/1.jpg",
    }
    assert create(with_splits, "train+val").notes == tuple(
        dict.fromkeys(create(with_splits).notes + create(with_splits, "val").notes)
    )


def test_a_folder_that_cannot_be_read(with_splits, monkeypatch):
    """Root may read all."""
    scan = os.scandir

    def refuse(folder):
        if str(folder).endswith("train/dog"):
            raise PermissionError(13, "Permission denied", folder)
        return scan(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    with refused("train/dog", "Permission denied"):
        create(with_splits)


def test_joined_splits_have_the_same_classes(tmp_path):
    for split, names in (("training", ("bird", "cat", "dog")), ("validation", ("cat", "dog"))):
        for name in names:
            fill(tmp_path / split / name, ["0.jpg"])
    with refused("input.split=training+validation", "3 and 2", "'bird'", "`train`"):
        create(tmp_path, "training+validation")
    (tmp_path / "training").rename(tmp_path / "train")  # it gives the classes
    joined = create(tmp_path, "train+validation")
    assert contents(joined)[3:] == [("cat/0.jpg", 1), ("dog/0.jpg", 2)]
    assert joined.file_names() == ["0.jpg"] * 5


def test_order_does_not_depend_on_the_file_system(tmp_path):
    names = [f"{i}.jpg" for i in range(30)]
    fill(tmp_path / "one/train/a", names)
    fill(tmp_path / "two/train/a", reversed(names))
    one, two = create(tmp_path / "one"), create(tmp_path / "two")
    assert contents(one) == contents(two)
    assert one.fingerprint == two.fingerprint
    fill(tmp_path / "two/train/a", ["30.jpg"])
    assert create(tmp_path / "two").fingerprint != one.fingerprint


def test_a_class_that_the_other_split_lacks(with_splits):
    fill(with_splits / "train/ant", ["x.jpg"])
    assert create(with_splits, "val").class_names == ("10", "ant", "cat", "dog")
    fill(with_splits / "val/bee", ["x.jpg"])
    with refused("'bee'"):
        create(with_splits, "val")


def test_missing_folder(tmp_path):
    with refused("input.data_dir", "image.jpg"):
        create(None)
    with refused("image.jpg"):
        create(tmp_path / "nowhere")
    with refused("image_table"):
        create(tmp_path / "labels.csv")


def test_a_file_of_40_gb_is_not_read(with_splits, monkeypatch):
    """The file counts as a bad image, to be handled by input.on_bad_image."""
    with (with_splits / "train/cat/0.jpg").open("wb") as file:
        file.truncate(40 * 2**30)  # sparse: takes no disk
    source = create(with_splits)
    paths = [source.describe(i) for i in range(source.num_examples)]
    index = next(i for i, path in enumerate(paths) if path.endswith("cat/0.jpg"))
    monkeypatch.setattr(files, "read", lambda path: pytest.fail(f"{path} is read"))
    (example,) = source.read(np.array([index]))
    assert example.labels == (1,)
    assert "40 GiB" in example.fault and encoded(example, 10) == example.fault


@pytest.mark.parametrize("folder", ["", "/train"])
def test_a_class_whose_name_is_not_utf8(with_splits, folder):
    path = os.fsencode(f"{with_splits}{folder}") + b"/K\xe4se"
    os.mkdir(path)
    with open(path + b"/0.jpg", "wb") as file:
        file.write(b"x")
    with refused("udce4se"):
        create(with_splits)


@pytest.mark.parametrize(
    ("files", "split", "named"),
    [
        (["train/cat/0.jpg"], "test", "'test'"),
        (["train/cat/0.jpg", "train/empty/notes.txt"], "train", "train/empty has no images"),
        ([], "train", "has no images"),
        (["train/notes.txt"], "train", "has no images"),
        (["train/cat/scan.HEIC"], "train", "scan.HEIC"),
        # Folders of images are not classes.
        (["images/0.png"], "train", "method.kind"),
        (["train_images/0.png", "test_images/0.png"], "train", "method.kind"),
        (["img/0.png", "data/0.png"], "train", "method.kind"),
        (["0.jpg"], "train", "method.kind"),
        (["train/0.jpg"], "train", "method.kind"),
        (["val/0.jpg", "train/cat/0.jpg"], "val", "method.kind"),
    ],
)
def test_folders_that_are_refused(tmp_path, files, split, named):
    for file in map(Path, files):
        fill(tmp_path / file.parent, [file.name])
    with refused(named):
        create(tmp_path, split)


def test_composed_and_decomposed_names_are_one(tmp_path):
    """macOS decomposes the names of folders; the classes, splits and examples stay the same."""
    made = {}
    for form in ("NFC", "NFD"):
        folder = tmp_path / form
        for name in ("café", "zebra", "Ångström", "caftan"):
            of_class = folder / unicodedata.normalize(form, name)
            of_class.mkdir(parents=True)
            for i in range(12):
                file = unicodedata.normalize(form, f"é{i}.png")
                (of_class / file).write_bytes(f"{name}/{i}".encode())
        made[form] = {split: create(folder, split) for split in ("train", "val")}
    for split, composed in made["NFC"].items():
        decomposed = made["NFD"][split]
        assert composed.class_names == decomposed.class_names
        assert contents(composed) == contents(decomposed)
        assert composed.fingerprint == decomposed.fingerprint
    assert composed.class_names == ("caftan", "café", "zebra", "Ångström")


def test_a_folder_in_a_class_makes_no_splits(tmp_path):
    for name in ("a", "b"):
        fill(tmp_path / name, [f"{i}.png" for i in range(50)])
    fill(tmp_path / "a" / "originals", ["0.png"])
    (tmp_path / "b" / "up").symlink_to(tmp_path)
    source = create(tmp_path)
    assert source.class_names == ("a", "b")
    assert source.num_examples + create(tmp_path, "val").num_examples == 100


def test_orientation_is_honoured(tmp_path):
    folder = tmp_path / "train/a"
    folder.mkdir(parents=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (4, 4)).save(folder / "x.jpg", exif=exif)
    assert create(tmp_path).read(np.array([0]))[0].orientation == 6


def test_names_of_files_may_be_any_bytes(with_splits):
    os.makedirs(os.fsencode(with_splits) + b"/train/cat", exist_ok=True)
    path = os.fsencode(with_splits) + b"/train/cat/K\xe4se.jpg"
    with open(path, "wb") as file:
        file.write(b"cat/x")
    source = create(with_splits)
    assert source.num_examples == 16
    assert ("cat/x", 1) in contents(source)
    os.rename(path, path.replace(b"\xe4", b"\xf6"))
    assert create(with_splits).fingerprint != source.fingerprint


def test_classes_of_splits_in_two_encodings(tmp_path):
    fill(tmp_path / "train" / "café", ["a.png"])
    fill(tmp_path / "val" / unicodedata.normalize("NFD", "café"), ["b.png"])
    assert create(tmp_path, "val").class_names == create(tmp_path).class_names == ("café",)
    fill(tmp_path / "train" / unicodedata.normalize("NFD", "café"), ["a.png"])
    with refused("'cafe\\u0301'", "'caf\\xe9'"):
        create(tmp_path)
