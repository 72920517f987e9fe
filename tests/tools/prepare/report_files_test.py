"""Contents of report.json, report.html and the lists of images."""

import io
import json
import re

import pytest
from markupsafe import escape
from PIL import Image, ImageOps

from tests.tools.prepare.conftest import jpeg
from tests.tools.prepare.duplicates_test import A, B, assigned, table, with_column
from vit_jax.core.screen import Screen
from vit_jax.tools.prepare import faults, image_folder, summary, tasks
from vit_jax.tools.prepare.collection import CollectionRequest, PrepareOptions
from vit_jax.tools.prepare.pipeline import prepare

STRANGE = "<b>&amp; 'x'.jpg"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data set with one of everything; class c is empty."""
    source = tmp_path_factory.mktemp("source")
    large = [jpeg(seed, (120, 160), quality=95) for seed in range(12)]
    files = {f"a/{i}.jpg": data for i, data in enumerate(large[:8])}
    files |= {f"b/{i}.jpg": data for i, data in enumerate(large[8:])}
    image = Image.open(io.BytesIO(large[2]))
    small, mirrored = io.BytesIO(), io.BytesIO()
    ImageOps.mirror(Image.open(io.BytesIO(large[5]))).save(mirrored, "JPEG", quality=90)
    image.resize((60, 80)).save(small, "JPEG", quality=80)
    files |= {"b/copy.jpg": large[1], "a/small.jpg": small.getvalue(), "c/only.jpg": b""}
    files |= {"a/mirrored.jpg": mirrored.getvalue(), f"a/{STRANGE}": jpeg(50)[:-300]}
    files |= {"a/empty.jpg": b"", "b/text.jpg": b"404"}
    for name, data in files.items():
        path = source / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    options = PrepareOptions(splits="test=4,train=rest", duplicates="drop")
    collection = image_folder.collection(CollectionRequest(str(source)))
    output = tmp_path_factory.mktemp("output")
    run = tasks.process_runner(1)
    return prepare(collection, output, options, run, Screen(io.StringIO())).folder


@pytest.fixture(scope="module")
def report(folder):
    return json.loads((folder / "report.json").read_text())


def test_the_numbers(report):
    images, classes, copies = report["images"], report["classes"], report["duplicates"]
    assert (images["listed"], images["examples"], images["left_out"]) == (19, 14, 5)
    sizes = {name: split["examples"] for name, split in report["splits"].items()}
    assert sizes == {"test": 4, "train": 10}
    assert report["left_out"] == {"empty": 2, "duplicate": 1, "truncated": 1, "unreadable": 1}
    assert report["faults"]["truncated"]["became"] == {"set_aside": 1}
    assert report["formats"] == {"JPEG": 16, "unknown": 3}
    assert report["shorter_side"]["max"] == 120 and report["shorter_side"]["min"] == 60
    for spread in (report["shorter_side"], report["file_bytes"]):
        assert sum(count for _, _, count in spread["bins"]) == 14
        assert all(low < high for low, high, _ in spread["bins"])
    assert classes["number"] == 3 and sum(classes["examples_of_each"]) == 14
    assert classes["empty_names"] == ["c"] and classes["empty"] == 1
    assert [name for name, _ in classes["most"]] == ["a", "b"]
    for kind, of_other_classes in (("same_bytes", 1), ("near", 0), ("mirrored", 0)):
        assert copies[kind] == {"images": 1, "of_other_classes": of_other_classes}
    assert copies["in_evaluation"] == {} and copies["not_compared"] == 0
    (pair,) = copies["class_pairs"]["most"]
    assert pair == {"classes": ["a", "b"], "copies": 1, "same_bytes": 1}


def test_left_out_images_are_listed(folder):
    lines = [json.loads(line) for line in (folder / "set_aside.jsonl").read_text().splitlines()]
    why = {line["name"]: line["why"] for line in lines}
    copies = {line["name"]: line["of"] for line in lines if "of" in line}
    assert len(why) == 5 and why[f"a/{STRANGE}"] == "truncated"
    assert {*copies.items()} <= {("a/1.jpg", "b/copy.jpg"), ("b/copy.jpg", "a/1.jpg")}
    assert len(copies) == 1


def test_the_page_is_one_file(folder):
    page = (folder / "report.html").read_text()
    assert "Content-Security-Policy" in page and "<script" not in page
    assert not re.search(r"""(src|href)=["'](?!data:)|url\(|@import|https?://""", page)
    assert STRANGE not in page and escape(STRANGE) in page
    assert "Copies: 3 of 3" in page and "<img" not in page
    assert "Classes without examples: 1 (c)." in page and "<li>c</li>" in page
    assert page.index(">the same bytes, of another class<") < page.index(">near, ")
    assert "a and b</th>" in page
    counts = page[page.index("<h2>Counts") : page.index("<h2>Images and classes")]
    for reason in ("duplicate", "truncated"):
        assert counts.count(f">{summary.reason_in_words(reason)}<") == 1


def test_all_pairs_are_listed_harmful_ones_first(folder):
    lines = [json.loads(line) for line in (folder / "copies.jsonl").read_text().splitlines()]
    kinds = [(line["kind"], line["other_class"], line["other_split"]) for line in lines]
    assert kinds[0] == ("same_bytes", True, False)  # an image that was left out is in no split
    assert kinds[1:] == [("near", False, True), ("mirrored", False, False)]
    assert {lines[0]["name"], lines[0]["of"]} == {"a/1.jpg", "b/copy.jpg"}
    assert [lines[0]["classes"], lines[0]["classes_of"]] in ([["a"], ["b"]], [["b"], ["a"]])
    assert lines[0]["left_out"] == "duplicate" and "bits" not in lines[0]
    for line in lines[1:]:
        assert line["bits"] <= 4 and line["left_out"] is None
        assert line["other_split"] == (line["split"] != line["split_of"])


def test_every_reason_has_a_description():
    for reason in (*faults.FAULTS, *summary.REASONS, "in_evaluation:imagenet2012"):
        assert summary.reason_in_words(reason)


def pairs_of_classes(labels, *looks):
    images = with_column(table(*looks), "labels", labels)
    result = assigned(images)
    pairs = summary.copy_pairs(images, result)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summary, "CLASS_PAIRS", 2)
        return summary.class_pairs(images, list("abcd"), pairs)


def test_pairs_of_classes_are_sorted_by_their_copies():
    """Among several labels, only those count that exactly one of the two images has."""
    copies = [("x", A), ("x", A), ("y", A ^ 1), ("z", B), ("z", B), ("z", B)]
    assert pairs_of_classes([[0], [1], [1], [0, 2], [2, 3], [2]], *copies) == {
        "number": 3,
        "most": [
            {"classes": ["a", "b"], "copies": 2, "same_bytes": 1, "near": 1},
            {"classes": ["a", "c"], "copies": 1, "same_bytes": 1},
        ],
    }
    assert pairs_of_classes([[0], [0]], ("x", A), ("x", A)) == {"number": 0, "most": []}
