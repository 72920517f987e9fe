"""The page, and the counts that it shows."""

import datetime
import io
import re

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.source import Example
from vit_jax.evals.classification import Scores
from vit_jax.evaluate import comparison, page

#                  right, wrong, wrong, wrong, right, wrong
LABELS = np.array([[0, -1], [0, -1], [0, 2], [1, -1], [1, 2], [0, -1]], np.int32)
PREDICTION = np.array([0, 1, 1, 2, 2, 2], np.int32)
CONFIDENCE = np.array([0.9, 0.5, 0.8, 0.7, 0.4, 0.3], np.float32)
CORRECT = np.array([True, False, False, False, True, False])
SCORES = Scores(np.arange(6) + 10, LABELS, PREDICTION, CONFIDENCE, CORRECT)


class Pictures:
    """Images of one colour; that of place 12 is damaged."""

    num_classes, class_names = 4, ("n01440764", "<goldfish>", "shark", "ray")

    def read(self, indices):
        return [Example(b"" if i == 12 else self.png(int(i)), (0,)) for i in indices]

    def describe(self, index):
        return f"/data/{index}.png"

    @staticmethod
    def png(i):
        out = io.BytesIO()
        Image.new("RGB", (300, 200), (i, 0, 0)).save(out, "PNG")
        return out.getvalue()


def test_images_of_several_classes_count_for_each():
    images, correct = comparison.count_by_class(SCORES, 4)
    assert images.tolist() == [4, 2, 2, 0]
    assert correct.tolist() == [1, 1, 1, 0]


def test_the_most_frequent_errors_come_first_and_the_surest_of_them():
    pairs = comparison.most_confused(SCORES, 2)
    assert [(p.label, p.prediction, p.places.tolist()) for p in pairs] == [
        (0, 1, [2, 1]),
        (0, 2, [5]),
    ]
    assert len(comparison.most_confused(SCORES, 10)) == 3


@pytest.fixture(scope="module")
def text():
    one = comparison.Scored(Pictures(), SCORES)
    right = comparison.Scored(
        Pictures(), SCORES._replace(prediction=LABELS[:, 0], correct=CORRECT | True)
    )
    results = {
        "a<b>": {"val/accuracy": 1 / 3, "val/loss": 2.0, "val/examples": 6.0},
        "other": {"val/accuracy": 1.0, "val/loss": 3.0, "val/examples": 6.0},
    }
    return page.page(
        results, {"val": {"a<b>": one, "other": right}}, datetime.datetime.now(datetime.UTC)
    )


def test_models_stand_side_by_side_and_the_best_number_is_bold(text):
    rows = dict(re.findall(r"<code>(val/\w+)</code></th>(.*?)</tr>", text))
    assert rows["val/accuracy"] == "<td>33.33%</td><td><b>100.00%</b></td>"
    assert rows["val/loss"] == "<td><b>2</b></td><td>3</td>"
    assert rows["val/examples"] == "<td>6</td><td>6</td>"


def test_names_are_escaped_and_nothing_is_loaded_from_elsewhere(text):
    assert "a&lt;b&gt;" in text and "a<b>" not in text
    assert "&lt;goldfish&gt;" in text and "<goldfish>" not in text
    assert set(re.findall(r'src="(.{5})', text)) == {"data:"}
    assert "<script" not in text and "default-src 'none'" in text


def test_classes_are_listed_worst_first(text):
    table = text.split("accuracy by class</h2>")[1]
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', table)
    cells = [(name, re.findall("<td>(.*?)</td>", row)) for name, row in rows]
    assert cells == [
        ("n01440764 tench, Tinca tinca", ["4", "25.0%", "100.0%"]),
        ("&lt;goldfish&gt;", ["2", "50.0%", "100.0%"]),
        ("shark", ["2", "50.0%", "100.0%"]),
    ]


def test_errors_are_shown_with_their_pictures(text):
    first, second = text.split("most confused by ")[1:]
    assert "4 of 4 wrong images" in first and "Every image is right." in second
    assert (
        "<b>n01440764 tench, Tinca tinca</b> taken for <b>&lt;goldfish&gt;</b>: 2 images" in first
    )
    assert first.count("data:image/jpeg;base64,") == 3  # one of four is damaged
    assert 'title="/data/11.png"' in first and 'title="damaged"' in first


def test_bars_are_as_high_as_accuracy(text):
    first, second = re.findall(r"<figure>.*?</figure>", text, re.DOTALL)
    assert "ECE 50.00%" in first
    assert first.count('class="bar"') == 6
    paths = re.findall(r'class="bar">.*?<path d="(.*?)"', second, re.DOTALL)
    heights = [{float(y) for y in re.findall(r"[ML] \S+ (\S+)", path)} for path in paths]
    assert heights == [{10.0, 196.0}] * 6  # from the bottom to the top
