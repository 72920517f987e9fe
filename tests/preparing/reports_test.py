"""What report.json, report.html and set_aside.jsonl say of a data set."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.preparing.conftest import jpeg
from tests.preparing.duplicates_test import table
from vit_jax.preparing import (
    arrangement,
    charts,
    faults,
    image_folder,
    report_page,
    summary,
    workers,
)
from vit_jax.preparing.arrangement import Splits
from vit_jax.preparing.collection import Request
from vit_jax.preparing.preparation import Options, prepare
from vit_jax.screen import Screen

STRANGE = "<b>&amp; 'x'.jpg"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of images with one of everything; its class c is empty, and c has no images."""
    source = tmp_path_factory.mktemp("source")
    large = [jpeg(seed, (120, 160), quality=95) for seed in range(12)]
    files = {f"a/{i}.jpg": data for i, data in enumerate(large[:8])}
    files |= {f"b/{i}.jpg": data for i, data in enumerate(large[8:])}
    image = Image.open(io.BytesIO(large[2]))
    small = io.BytesIO()
    image.resize((60, 80)).save(small, "JPEG", quality=80)
    files |= {
        "b/copy.jpg": large[1],
        "a/small.jpg": small.getvalue(),
        f"a/{STRANGE}": jpeg(50)[:-300],
        "a/empty.jpg": b"",
        "b/text.jpg": b"404",
        "c/only.jpg": b"",
    }
    for name, data in files.items():
        path = source / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    options = Options(splits="test=4,train=rest", duplicates="drop")
    collection = image_folder.collection(Request(str(source)))
    output = tmp_path_factory.mktemp("output")
    run = workers.in_processes(1)
    return prepare(collection, output, options, run, Screen(io.StringIO())).folder


@pytest.fixture(scope="module")
def said(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text())


def test_the_counts(said: dict[str, Any]) -> None:
    assert said["images"] | {"bytes_read": 0} == {
        "listed": 18,
        "examples": 13,
        "left_out": 5,
        "bytes_read": 0,
    }
    assert {name: split["examples"] for name, split in said["splits"].items()} == {
        "test": 4,
        "train": 9,
    }
    assert said["left_out"] == {"empty": 2, "duplicate": 1, "truncated": 1, "unreadable": 1}
    assert said["faults"]["truncated"]["became"] == {"set_aside": 1}
    assert said["formats"] == {"JPEG": 15, "unknown": 3}
    assert said["shorter_side"]["max"] == 120 and said["shorter_side"]["min"] == 60
    for spread in (said["shorter_side"], said["file_bytes"]):
        assert sum(count for _, _, count in spread["bins"]) == 13
        assert all(low < high for low, high, _ in spread["bins"])


def test_the_classes(said: dict[str, Any]) -> None:
    classes = said["classes"]
    assert classes["number"] == 3 and sum(classes["examples_of_each"]) == 13
    assert classes["empty_names"] == ["c"] and classes["empty"] == 1
    assert [name for name, _ in classes["most"]] == ["a", "b"]


def test_the_duplicates(said: dict[str, Any]) -> None:
    found = said["duplicates"]
    assert found["same_bytes"]["images"] == 1 == found["same_bytes"]["of_other_classes"]
    assert found["near"]["images"] == 1 and found["near"]["of_other_classes"] == 0
    assert found["in_evaluation"] == {} and found["not_compared"] == 0


def test_what_was_set_aside_is_listed(folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "set_aside.jsonl").read_text().splitlines()]
    why = {line["name"]: line["why"] for line in lines}
    copies = {line["name"]: line["of"] for line in lines if "of" in line}
    assert len(why) == 5 and why[f"a/{STRANGE}"] == "truncated"
    assert {*copies.items()} <= {("a/1.jpg", "b/copy.jpg"), ("b/copy.jpg", "a/1.jpg")}
    assert len(copies) == 1


def test_the_page_is_one_file(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert "Content-Security-Policy" in page and "<script" not in page
    assert not re.search(r"""(src|href)=["'](?!data:)|url\(|@import|https?://""", page)
    assert STRANGE not in page and report_page.escape(STRANGE) in page
    assert page.count('<div class="pair">') == 1
    assert page.count('src="data:image/jpeg;base64,') == 9 + 2 + 2  # of train, a pair, left out
    assert "Classes without examples: 1, first c." in page


def test_every_reason_has_words() -> None:
    for reason in (*faults.FAULTS, *summary.REASONS, "in_evaluation:imagenet2012"):
        assert summary.what(reason)


def test_charts_of_nothing_and_of_one() -> None:
    for bins in ([], [(1.0, 1.4, 0)], [(1.0, 1.4, 5)]):
        assert charts.bars("title", "note", bins, str).count("<rect") == len(bins)
    for values in ([], [0], [3], [0, 0], [1000, 1, 0]):
        assert "nan" not in charts.curve("title", "note", values)


def test_merged_images_count_for_all_of_their_classes() -> None:
    images = table(("a", 1), ("b", 2), ("a", 1))
    found = arrangement.arrange(images, Splits.parse("train=rest"), duplicates="merge")
    counts = summary.labels_of(images, found, found.splits["train"], 4)
    assert counts.tolist() == [1, 1, 1, 0]
