"""How numbers are called and written for people."""

import math

import pytest

from vit_jax.core import metric_names


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("test/accuracy", 0.9976, "99.76%"), ("accuracy", 1.0, "100.00%"), ("f1", 0.0, "0.00%"),
        ("macro_recall", 0.99996, ">99.99%"), ("macro_precision", 1e-9, "<0.01%"),
        ("accuracy", 0.9999, "99.99%"), ("test/loss", 0.099951, "0.09995"), ("ece", 1.0, "1.000"),
        ("val/examples", 50_000.0, "50,000"), ("skipped_images", 3.0, "3"), ("loss", -0.0, "0.000"),
        ("nll", 1234.0, "1234"),
    ],
)  # fmt: skip
def test_numbers_for_people(name, value, text):
    assert metric_names.readable(name, value) == text


def test_numbers_of_a_column_have_as_many_decimals():
    for column, texts in (
        ([2.6, 0.04862, None, 3.612], ["2.600", "0.049", "3.612"]),
        ([0.3613, math.nan, 0.0486], ["0.3613", "nan", "0.0486"]),
        ([0.0], ["0.000"]),
    ):
        numbers = [x for x in column if x is not None]
        assert [metric_names.readable("loss", x, column) for x in numbers] == texts


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("top5_accuracy", "accuracy, top 5"), ("5shot_accuracy", "accuracy, 5-shot"),
        ("10shot_chosen_l2_accuracy", "accuracy with chosen L2, 10-shot"),
        ("scaled_ece", "expected calibration error, scaled by temperature"),
        ("knn20_accuracy", "accuracy, 20 nearest neighbours"), ("macro_f1", "F1, mean of classes"),
        ("test/top5_accuracy", "test: accuracy, top 5"),
        ("last_distance_px", "attention distance in the last layer, in pixels"),
        ("sgd_probe_lr", "learning rate, linear probe by SGD"), ("of_a_plug_in", "of a plug in"),
    ],
)  # fmt: skip
def test_names_in_words(name, text):
    assert metric_names.words(name) == text


def test_less_is_better_of_losses_and_errors():
    for name in ("test/loss", "test/top5_error", "test/scaled_ece", "test/brier"):
        assert metric_names.is_less_better(name)
        assert metric_names.best_mode(name, None) == "min"
        assert metric_names.best_mode(name, "max") == "max"
    assert not metric_names.is_less_better("test/accuracy")
    assert metric_names.best_mode("test/accuracy", None) == "max"
    assert not metric_names.is_less_better("lossless/knn20_accuracy")
