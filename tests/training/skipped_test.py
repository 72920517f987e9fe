"""Bad images are named, counted across restarts, and end a run when there are too many."""

import dataclasses
import json
import re

import numpy as np
import pytest
from PIL import Image

from vit_jax.core.errors import Preempted, UserError
from vit_jax.train import train
from vit_jax.training.feed import BadImages
from vit_jax.training.skipped import NUMBER, SkippedImages


def counter(**changed):
    fields = {"before": 3.0, "step": 10, "batch_size": 4, "num_examples": 40, "max_fraction": 0.1}
    return SkippedImages(BadImages(), **(fields | changed))


def settle(skipped, *counts):
    for count in counts:
        skipped.add({"skipped_images": count})
    return skipped.settle(skipped.pending)


def test_counts_continue_across_restarts():
    skipped = counter()
    assert settle(skipped) == {}
    assert settle(skipped, 0, 1, 2) == {NUMBER: 6}
    assert settle(skipped, 0) == {}
    assert skipped.row() == {NUMBER: 6}


def test_a_share_of_an_epoch_is_too_much():
    """Ten steps per epoch, of whose 40 examples four may be bad."""
    skipped = counter()
    settle(skipped, *[1, 1, 1, 1, 0, 0, 0, 0, 0, 0], *[2, 2])
    with pytest.raises(UserError) as error:
        settle(skipped, 1)
    assert str(error.value).startswith(
        "5 bad images were skipped in epoch 3 up to step 23, more than input.max_bad_fraction=0.1 "
        "of its 40 examples."
    )
    settle(counter(max_fraction=1.0), *[3] * 10)


def test_a_batch_that_straddles_epochs_is_not_held_against_the_first():
    """60 examples, 10 of them bad, in batches of 16: the fourth has four of the next epoch."""
    a_sixth = {"step": 0, "batch_size": 16, "num_examples": 60, "max_fraction": 0.17}
    settle(counter(**a_sixth), 2, 3, 3, 5)
    with pytest.raises(UserError, match="15 bad images were skipped in epoch 1 up to step 4"):
        settle(counter(**a_sixth), 3, 3, 3, 6)


def test_a_batch_without_a_good_image_is_too_much():
    with pytest.raises(UserError, match=r"All 4 images of step 12 are bad"):
        settle(counter(max_fraction=1.0), 3, 4)


@pytest.fixture
def images(tmp_path):
    """`images(2)`: overrides for 2 x 8 images, of which two of each class are empty files."""

    def make(bad):
        for split in ("train", "test"):
            for name in ("a", "b"):
                folder = tmp_path / "images" / split / name
                folder.mkdir(parents=True)
                for i in range(8):
                    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / f"{i}.png")
                for i in range(bad):
                    (folder / f"{i}.png").write_bytes(b"")
        return [
            "input.source=image_folder", f"input.data_dir={tmp_path / 'images'}",
            "input.num_examples=none", "input.num_classes=none", "input.batch_size=4",
            "input.on_bad_image=skip",
        ]  # fmt: skip

    return make


def counts(workdir):
    rows = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return {row["step"]: row[NUMBER] for row in rows if NUMBER in row}


class StopAfter:
    """A stop signal that comes at a given look."""

    def __init__(self, looks):
        self.looks = looks

    def __bool__(self):
        self.looks -= 1
        return self.looks < 0

    def __str__(self):
        return "SIGTERM"


@pytest.mark.slow
def test_each_file_is_named_once_and_the_count_survives(tmp_path, tiny_run, images, capsys):
    """16 examples, 2 of them bad: four steps see both, in any order."""
    config = tiny_run(
        *images(1), "input.max_bad_fraction=0.2", "total.steps=12", "log.every_steps=5",
        "evals.test.preprocess=decode|resize(8)", "evals.test.every_steps=4",
    )  # fmt: skip
    train(config, tmp_path / "straight")
    output = capsys.readouterr().out
    files = re.findall(r"^skipped  (.*): the file is empty$", output, re.MULTILINE)
    expected = [f"{tmp_path}/images/{s}/{c}/0.png" for s in ("train", "test") for c in "ab"]
    assert sorted(files) == sorted(expected)
    assert "skipped  bad images 6 times" in output
    straight = counts(tmp_path / "straight")
    assert straight[12] == 6

    with pytest.raises(Preempted):
        train(config, tmp_path / "resumed", stop=StopAfter(13))
    # Another limit does not make it another run.
    free = dataclasses.replace(config.input, max_bad_fraction=0.5)
    train(dataclasses.replace(config, input=free), tmp_path / "resumed")
    resumed = counts(tmp_path / "resumed")
    assert {step: resumed[step] for step in straight} == straight


def test_an_all_bad_data_set_ends_the_run(tmp_path, tiny_run, images):
    config = tiny_run(*images(8), "input.max_bad_fraction=1", "log.every_steps=2")
    with pytest.raises(UserError, match=r"All 4 .* step 1 are bad\. The first: .*png: the "):
        train(config, tmp_path / "run")
    assert not list((tmp_path / "run/checkpoints").glob("[0-9]*"))


def test_too_many_bad_images_end_the_run(tmp_path, tiny_run, images):
    with pytest.raises(UserError, match=r"more than input\.max_bad_fraction=0\.1 of its 16"):
        train(tiny_run(*images(2)), tmp_path / "run")
