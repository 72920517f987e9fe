"""The page, and the counts that it shows."""

import csv
import datetime
import io
import re
from types import SimpleNamespace

import numpy as np
import pytest
from flax import nnx
from PIL import Image

from vit_jax import models
from vit_jax.data.source import Example
from vit_jax.evals.classification import Scores
from vit_jax.evaluate import comparison, page
from vit_jax.evaluate.__main__ import look
from vit_jax.evaluate.comparison import Scored, Seen
from vit_jax.models import observe
from vit_jax.probes import by_class

#                  right, wrong, wrong, wrong, right, wrong
LABELS = np.array([[0, -1], [0, -1], [0, 2], [1, -1], [1, 2], [0, -1]], np.int32)
PREDICTION = np.array([0, 1, 1, 2, 2, 2], np.int32)
CONFIDENCE = np.array([0.9, 0.5, 0.8, 0.9976, 0.4, 0.3], np.float32)
LOSS = np.array([0.1, 1, 4, 6, 0.9, np.nan], np.float32)


def scores_of(labels, prediction, confidence=None, classes=4, loss=None):
    """The scores of a softmax."""
    some = np.linspace(0, 1, len(labels), dtype=np.float32)
    return Scores(
        np.arange(len(labels)) + 10,
        labels,
        prediction,
        some if confidence is None else confidence,
        (labels == prediction[:, None]).any(axis=1),
        some if loss is None else loss,
        by_class.count_largest(labels, prediction, classes),
    )


SCORES = scores_of(LABELS, PREDICTION, CONFIDENCE, loss=LOSS)


class Pictures:
    """Images of one colour; that of place 12 is damaged."""

    num_classes, class_names, location = 4, ("n01440764", "<goldfish>", "shark", "ray"), "/data"

    def read(self, indices):
        return [Example(b"" if i == 12 else self.png(int(i)), (0,)) for i in indices]

    def describe(self, index):
        return f"/data/<b>{index}.png"

    @staticmethod
    def png(i):
        out = io.BytesIO()
        Image.new("RGB", (300, 200), (i, 0, 0)).save(out, "PNG")
        return out.getvalue()


class Named(Pictures):
    """Classes with these names; of a number, that have numbers alone."""

    def __init__(self, *names, number=None):
        self.num_classes, self.class_names = number or len(names), names or None


def test_the_most_frequent_errors_come_first_and_the_surest_of_them():
    pairs = comparison.most_confused(SCORES, 2)
    assert [(p.label, p.prediction, p.places.tolist()) for p in pairs] == [
        (0, 1, [2, 1]),
        (0, 2, [5]),
    ]
    assert len(comparison.most_confused(SCORES, 10)) == 3


def test_a_confusion_matrix_has_all_images_once():
    classes, counts = comparison.confusion(SCORES)
    assert classes.tolist() == [0, 1, 2]
    assert counts.tolist() == [[1, 2, 1, 0], [0, 0, 1, 0], [0, 0, 1, 0]]
    another = scores_of(np.array([[1], [3]]), np.array([2, 3]))
    assert comparison.confusion(another).counts.tolist() == [[0, 0, 1], [0, 1, 0]]


def made(results, scored):
    return page.page(results, scored, datetime.datetime.now(datetime.UTC))


@pytest.fixture(scope="module")
def text():
    pixels = np.full((3, 8, 8, 3), 200, np.uint8)
    heat = np.random.default_rng(0).random((3, 2, 2))
    hardest = Seen(SCORES.highest_losses(3), pixels, heat, "attention rollout")
    one = Scored(Pictures(), SCORES, hardest)
    right = Scored(Pictures(), scores_of(LABELS, LABELS[:, 0]))
    results = {
        "a<b>": {
            "looked/high_norm_share": 0.25,
            "val/accuracy": 1 / 3,
            "val/loss": 2.0,
            "val/examples": 50_000.0,
            "val/skipped_images": 0.0,
        },
        "other": {"val/accuracy": 0.999996, "val/loss": 3.0, "val/top5_accuracy": 1.0},
    }
    return made(results, {"val": {"a<b>": one, "other": right}})


def table_under(text, title):
    """The cells of the first table below a heading, by the head of their row."""
    table = text.split(title)[1].split("</table>")[0]
    rows = re.findall(r'<tr><th scope="row".*?>(.*?)</th>(.*?)</tr>', table, re.DOTALL)
    return {name: re.findall("<td.*?>(.*?)</td>", row) for name, row in rows}


def test_models_stand_side_by_side_and_the_best_number_is_bold(text):
    plain = text.replace(' class="number"', "")
    rows = re.findall(r'<span title="(val/\w+)">(.*?)</span></th>(.*?)</tr>', plain)
    assert rows == [
        ("val/accuracy", "accuracy", "<td>33.33%</td><td><b>&gt;99.99%</b></td>"),
        ("val/loss", "loss", "<td><b>2.000</b></td><td>3.000</td>"),
        ("val/examples", "images", "<td>50,000</td><td>–</td>"),
        ("val/top5_accuracy", "accuracy, top 5", "<td>–</td><td>100.00%</td>"),
    ]
    assert text.index(">val</th>") < text.index(">looked</th>")


def test_names_are_escaped_and_nothing_is_loaded_from_elsewhere(text):
    assert "a&lt;b&gt;" in text and "a<b>" not in text
    assert "&lt;goldfish&gt;" in text and "<goldfish>" not in text
    assert "<code>&lt;b&gt;15.png</code>" in text and "<b>15" not in text
    assert set(re.findall(r'src="(.{5})', text)) == {"data:"}
    assert "<script" not in text and "default-src 'none'" in text


def test_classes_are_listed_worst_first(text):
    assert table_under(text, "F1 by class</h2>") == {
        "<b>mean of classes</b>": [""] + [
            f"<b>{x}</b>"
            for x in ("44.44%", "41.67%", "26.67%", "66.67%", "100.00%", "66.67%")
        ],
        "&lt;goldfish&gt;": ["2", "0.00%", "50.00%", "0.00%", "100.00%", "100.00%", "100.00%"],
        "n01440764 tench, Tinca tinca":
            ["4", "100.00%", "25.00%", "40.00%", "100.00%", "100.00%", "100.00%"],
        "shark": ["2", "33.33%", "50.00%", "40.00%", "–", "100.00%", "0.00%"],
    }  # fmt: skip
    assert "1 class has no images" in text


def test_classes_of_models_are_the_same_by_name():
    one = scores_of(np.array([[0], [1], [1]]), np.array([0, 1, 0]), classes=2)
    other = scores_of(np.array([[2], [0], [0]]), np.array([2, 1, 0]), classes=3)
    by_model = {
        "one": Scored(Named("cat", "dog"), one),
        "other": Scored(Named("dog", "e\u0301el", "cat"), other),
    }
    models = {"one": {}, "other": {}, "without": {}}
    text = made(models, {"val": by_model})
    rows = table_under(text, "F1 by class</h2>")
    assert rows["cat"] == ["1", "50.00%", "100.00%", "66.67%", "100.00%", "100.00%", "100.00%"]
    assert rows["dog"] == ["2", "100.00%", "50.00%", "66.67%", "100.00%", "50.00%", "66.67%"]
    assert rows["e\u0301el"] == ["0", "–", "–", "–", "0.00%", "–", "–"]
    assert "1 class has no images" in text
    # Whose numbers they are is said of one of several models too.
    for model, scored in by_model.items():
        alone = made(models, {"val": {model: scored}})
        assert f'<small title="{model}">{model}</small>' in alone


def test_pictures_come_first_and_what_is_long_is_folded(text):
    start = text.index("<main>")
    assert text.index("most confused") < text.index("<img") < text.index("<table")
    assert text.index(">Numbers</h2>", start) < text.index("F1 by class")
    folded = re.findall(r"<details><summary>(.*?)</summary>", text)
    assert folded == ["val: what other gets wrong", "val: classes, and which are confused"]
    heads = re.findall(r'data-head="(.*?)"', text)  # of lists on a phone
    assert heads[:2] == ["images", "precision a&lt;b&gt;"]


def test_of_many_classes_the_pairs_are_listed():
    labels = np.repeat(np.arange(1000), 2)[:, None]
    prediction = np.where(np.arange(2000) < 4, 999, labels[:, 0])
    scores = scores_of(labels, prediction, classes=1000)
    text = made({"m": {}}, {"val": {"m": Scored(Named(number=1000), scores)}})
    assert "confusion matrix" not in text
    for name in "01":
        assert f"<b>{name}</b> taken for <b>999</b>: 2 images, 100.00% of its class" in text
    assert len(text) < 300_000


def test_classes_that_are_decided_one_by_one():
    labels = np.array([[0, 1], [0, -1], [2, -1]])
    truth = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 1]], bool)
    taken = np.array([[1, 1, 0], [0, 0, 0], [1, 0, 1]], bool)
    scores = scores_of(labels, np.array([0, 1, 2]), classes=3)._replace(
        counts=by_class.count_each(truth, taken), exclusive=False
    )
    pixels, heat = np.zeros((1, 4, 4, 3), np.uint8), np.zeros((1, 2, 2))
    hardest = Seen(scores.highest_losses(1), pixels, heat, "relevance")
    text = made({"m": {}}, {"val": {"m": Scored(Named(number=3), scores, hardest)}})
    assert table_under(text, "F1 by class")["0"] == ["2", "50.00%", "50.00%", "50.00%"]
    assert "at least 50%" in text
    assert "calibration" not in text  # of probabilities that sum to 1
    assert not any(word in text for word in ("confusion", "confused by", "taken for <b>"))
    assert "<b>2</b>; most probable: <b>2</b> (100.00%), loss 1" in text
    assert "relevance" in text and "rollout" not in text


def test_a_resnet_is_shown_by_what_is_relevant_for_its_prediction():
    model = models.create("R1-1x1", num_classes=4, image_size=32, rngs=nnx.Rngs(0))
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    objective = SimpleNamespace(images=lambda batch: batch["image"] / np.float32(255))
    seen = look(model, {"image": images}, objective, SCORES, np.array([1, 5]))
    expected = observe.relevance(model, images / np.float32(255), PREDICTION[[1, 5]]).map.patches
    np.testing.assert_array_equal(seen.heat, expected)
    assert (seen.what, seen.pixels.dtype) == ("relevance", np.uint8)


def test_classes_in_files():
    one = Scored(Pictures(), SCORES)
    rows = list(csv.DictReader(comparison.class_csv({"val": {"m": one}}).splitlines()))
    assert [row["name"] for row in rows] == [
        "n01440764 tench, Tinca tinca", "<goldfish>", "shark", "ray",
    ]  # fmt: skip
    assert rows[3] == {
        "checkpoint": "m", "evaluation": "val", "name": "ray", "images": "0", "predicted": "0",
        "precision": "", "recall": "", "f1": "",
    }  # fmt: skip
    document = comparison.document({"m": {"val/accuracy": 0.5}}, {"val": {"m": one}})
    assert document["m"]["val/by_class"][0] == {
        "name": "n01440764 tench, Tinca tinca", "images": 4, "predicted": 1, "precision": 1.0,
        "recall": 0.25, "f1": 0.4,
    }  # fmt: skip
    assert '"precision": null' in comparison.as_json(document)


def test_confidence_is_compared_with_one_label_of_each_image():
    scores = scores_of(LABELS[:, :1], PREDICTION, CONFIDENCE)
    text = made({"m": {}}, {"val": {"m": Scored(Pictures(), scores)}})
    assert "Expected calibration error: 0.5163" in text
    assert "(of several:" not in text
