"""Images and masks side by side: what is read, and what is refused."""

import shutil

import numpy as np
import pytest
from PIL import Image

from tests.data import masks
from tests.messages import refused
from vit_jax.data import pipeline
from vit_jax.data.source import Request
from vit_jax.data.sources.mask_folder import MaskFolder

PREPROCESS = "decode|resize(16)"


def batch(source, preprocess=PREPROCESS, *, size=None, skip=False):
    made = pipeline.eval_batches(
        source, preprocess, batch_size=size or source.num_examples, max_image_pixels=10**6,
        on_bad_image="skip" if skip else "fail", threads=1,
    )  # fmt: skip
    with made as batches:
        return next(batches)


@pytest.fixture
def root(tmp_path):
    return masks.write(tmp_path / "set")


def source(root, split="all", **fields):
    return MaskFolder(Request(split=split, data_dir=str(root), **fields))


def test_a_batch_has_the_classes_of_each_pixel_from_1(root):
    data = source(root)
    assert (data.num_examples, data.class_names) == (24, masks.CLASSES)
    made = batch(data)
    assert made["mask"].dtype == np.uint16 and made["mask"].shape == (24, 16, 16)
    for mask, index in zip(made["mask"], made["index"], strict=True):
        path = data.describe(index).replace("images", "masks")
        stored = np.asarray(Image.open(path)).astype(int)
        np.testing.assert_array_equal(mask, np.where(stored == 255, 0, stored + 1))
    splits = [source(root, split).num_examples for split in ("train", "val")]
    assert splits == [21, 3]


@pytest.mark.parametrize(
    "layout", ["{0}/{1}", "{1}/{0}"], ids=["folders of splits inside", "outside"]
)
def test_folders_of_splits(root, tmp_path, layout):
    for kind in ("images", "masks"):
        for i in range(24):
            split = "train" if i < 20 else "test"
            folder = tmp_path / "split" / layout.format(kind, split)
            folder.mkdir(parents=True, exist_ok=True)
            (root / kind / f"{i}.png").rename(folder / f"{i}.png")
    (root / "classes.txt").rename(tmp_path / "split" / "classes.txt")
    counts = [source(tmp_path / "split", s).num_examples for s in ("train", "test", "test[1:]")]
    assert counts == [20, 4, 3]


def test_a_table_of_files(root):
    rows = [f"images/{i}.png,masks/{i}.png,{'test' if i > 19 else 'train'}" for i in range(24)]
    (root / "pairs.csv").write_text("\n".join(["image,mask,split", *rows]))
    data = source(root / "pairs.csv", "train")
    assert (data.num_examples, data.num_classes) == (20, 3)
    by_folder = source(root)
    one = batch(data)["mask"].sum() + batch(source(root / "pairs.csv", "test"))["mask"].sum()
    assert one == batch(by_folder)["mask"].sum()


def test_void_may_be_another_value_and_classes_above_it_move_down(root):
    for path in (root / "masks").iterdir():
        mask = np.asarray(Image.open(path))
        Image.fromarray(np.where(mask == 255, 1, mask).astype(np.uint8)).save(path)
    (root / "classes.txt").write_text("ground\ngreen")
    made = batch(source(root, void=1))["mask"]
    assert set(np.unique(made)) == {0, 1, 2}


GEOMETRIC = (
    "inception_crop(8, method='nearest')", "random_resized_crop(8, method='nearest')",
    "pad_crop(16, 4)", "flip_lr", "central_crop(12)", "central_crop((20, 18), fill=(0, 0, 0))",
    "resize(24, method='nearest')", "resize_small(8, method='nearest')|central_crop(8)",
    "resize_long(24, method='nearest')|central_crop(24, fill=(0, 0, 0))", "crop_border(2)",
)  # fmt: skip


@pytest.mark.parametrize("op", GEOMETRIC)
@pytest.mark.parametrize("more", ["", "|color_jitter(0.3, 0.3)|grayscale(1.0)"])
def test_a_mask_moves_with_its_image(tmp_path, op, more):
    """Images that show their masks, by values that no colour may change the order of."""
    root = masks.write(tmp_path / "set", number=6)
    for path in (root / "masks").iterdir():
        shown = np.asarray(Image.open(path)).astype(int) + 1
        shown[0] = 3
        Image.fromarray((shown - 1).astype(np.uint8)).save(path)
        Image.fromarray(np.repeat(shown[..., None] * 80, 3, 2).astype(np.uint8)).save(
            root / "images" / path.name
        )
    made = batch(source(root), f"decode|{op}|resize(16, method='nearest')")
    np.testing.assert_array_equal(made["image"][..., 0], made["mask"] * 80)
    changed = batch(source(root), f"decode|{op}{more}|resize(16, method='nearest')")
    np.testing.assert_array_equal(changed["mask"], made["mask"])


PAGE = Image.fromarray(np.zeros((16, 16), np.uint8))


@pytest.mark.parametrize(
    ("mask", "name", "named"),
    [
        (np.zeros((8, 16), np.uint8), "3.png", "8 x 16"),
        (np.zeros((16, 16, 3), np.uint8), "3.png", "RGB"),
        (np.full((16, 16), 3, np.uint8), "3.png", "value 3"),
        (np.asarray(PAGE), "3.tif", "2 pages"),
    ],
)
def test_masks_that_do_not_fit(root, mask, name, named):
    (root / "masks" / "3.png").unlink()
    pages = {"save_all": True, "append_images": [PAGE]} if name == "3.tif" else {}
    Image.fromarray(mask).save(root / "masks" / name, **pages)
    with refused("3.png", named):
        batch(source(root))


def test_a_bad_mask_makes_a_bad_image(root):
    (root / "masks" / "3.png").write_bytes(b"no image")
    with refused("3.png", "mask"):
        batch(source(root))
    made = batch(source(root), skip=True)
    assert (made["weight"] == 0).sum() == 1 and not made["mask"][made["weight"] == 0].any()


def test_a_palette_is_of_numbers_of_classes(root):
    image = Image.open(root / "masks" / "3.png").convert("P")
    expected = batch(source(root))["mask"]
    palette = Image.fromarray(np.asarray(Image.open(root / "masks" / "3.png")))
    palette.putpalette([255 - i // 3 for i in range(768)])
    assert palette.mode == "P" and image.mode == "P"
    palette.save(root / "masks" / "3.png")
    np.testing.assert_array_equal(batch(source(root))["mask"], expected)


@pytest.mark.parametrize(("kind", "named"), [("images", "image"), ("masks", "mask")])
def test_pairs_have_to_be_complete(root, kind, named):
    (root / kind / "3.png").unlink()
    with refused("3.png", f"no {named}", "input.data_dir"):
        source(root)


@pytest.mark.parametrize("layout", ["folders", "table"])
def test_a_split_without_any_mask_is_refused(root, tmp_path, layout):
    if layout == "folders":
        for split in ("train", "val"):
            (tmp_path / split).mkdir()
            shutil.copytree(root / "images", tmp_path / split / "images")
        shutil.copytree(root / "masks", tmp_path / "train" / "masks")
        data = tmp_path
    else:
        data = root / "t.csv"
        data.write_text("image,mask,split\nimages/1.png,,val\n")
    with refused("no mask for", "images", "input.data_dir"):
        source(data, split="val")


def test_names_of_classes_may_begin_with_a_byte_order_mark(root):
    (root / "classes.txt").write_text("ground\nred\ngreen\n", encoding="utf-8-sig")
    assert source(root).class_names == ("ground", "red", "green")


def test_refused_folders(root, tmp_path):
    (root / "masks" / "3.jpg").write_bytes(b"")
    with refused("3.jpg", ".png"):
        source(root)
    (root / "masks" / "3.jpg").unlink()
    (root / "masks" / "3.bmp").write_bytes(b"")
    with refused("3.bmp", "3.png"):
        source(root)
    (root / "masks" / "3.bmp").unlink()
    (root / "classes.txt").unlink()
    with refused("input.num_classes"):
        source(root)
    assert source(root, num_classes=3).num_classes == 3
    (tmp_path / "empty" / "images").mkdir(parents=True)
    with refused("input.data_dir", "masks"):
        source(tmp_path / "empty")
    rows = "images/0.png,masks/0.png,train\nimages/1.png,masks/1.png,\n"
    (root / "t.csv").write_text(f"image,mask,split\n{rows}")
    with refused("t.csv", "row 2", "split"):
        source(root / "t.csv", "train")
    (tmp_path / "t.csv").write_text("file,label\na,b\n")
    with refused("t.csv", "mask"):
        source(tmp_path / "t.csv")


@pytest.mark.parametrize("ending", ["jpg", "avif", "tif"])
def test_an_image_that_is_turned_has_no_mask(root, ending):
    exif = Image.Exif()
    exif[0x0112] = 3
    path = root / "images" / "3.png"
    Image.open(path).convert("RGB").save(path.with_suffix(f".{ending}"), exif=exif)
    path.unlink()
    with refused(f"3.{ending}", "EXIF orientation is 3"):
        batch(source(root))
