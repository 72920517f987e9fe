import contextlib
import dataclasses
import json
import re
import socket
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests.messages import refused, told
from vit_jax.core import waiting
from vit_jax.core.errors import Preempted, UserError
from vit_jax.core.waiting import waiting_for
from vit_jax.learning.feed import SKIPPED_IMAGES, BadImages, Feed, SkippedImages
from vit_jax.train import train


class Batches:
    """A pipeline that gives the batches of a list and counts how often it was closed."""

    def __init__(self, *items):
        self.items, self.closed = items, 0

    def __iter__(self):
        for item in self.items:
            if isinstance(item, Exception):
                raise item
            yield {
                "x": np.full(2, item, np.float32),
                "weight": np.array([1, 0], np.float32),
                "index": np.array([5, -1 if item else 6]),
            }

    def bad_image(self, index):
        return f"{index}.jpg: broken"

    def close(self):
        self.closed += 1


LAYOUT = {
    "x": jax.ShapeDtypeStruct(
        (2,), jnp.float32, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0])
    )
}


def feed_of(batches, timeout_secs=60, **more):
    return Feed(batches, LAYOUT, timeout_secs=timeout_secs, **more)


def test_gives_batches_in_order_then_ends():
    batches = Batches(0, 1, 2, 3)
    with feed_of(batches) as feed:
        assert [float(b["x"][0]) for b in feed] == [0, 1, 2, 3]
        assert list(feed) == []
        assert feed.skipped_images == 1  # weight 0 at an index; padding has none
        assert feed.bad_images.untold() == ["6.jpg: broken"]
        assert feed.bad_images.untold() == []
        assert feed.wait_secs > 0
    assert batches.closed == 1


def test_a_bad_image_is_named_once():
    """An image is named once even if it returns, in this feed or the next one of the same data."""
    bad_images = BadImages()
    for _ in range(2):
        with feed_of(Batches(0, 0, 1, 0), bad_images=bad_images) as feed:
            next(feed)
            assert bad_images.files == ["6.jpg: broken"]  # as soon as its batch is handed out
            list(feed)
            assert feed.skipped_images == 3
    assert bad_images.untold() == ["6.jpg: broken"]


def test_an_error_is_raised_where_batches_are_requested():
    with feed_of(Batches(0, UserError("a.jpg is broken"))) as feed:
        next(feed)
        for _ in range(2):
            with refused("a.jpg"):
                next(feed)


def test_can_be_closed_before_its_end():
    batches = Batches(*range(1000))
    with feed_of(batches) as feed:
        next(feed)
    assert batches.closed == 1
    assert not feed._thread.is_alive()


def test_each_process_holds_the_rows_of_its_devices(run_python):
    """Rows need not be neighbours, and several devices may hold the same ones."""
    code = """
import jax, numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from vit_jax.learning.feed import Feed, local_rows

devices = np.array(jax.devices())[[0, 4, 2, 6, 1, 5, 3, 7]].reshape(4, 2)
mesh = Mesh(devices, ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
layout = jax.ShapeDtypeStruct((8, 3), np.float32, sharding=NamedSharding(mesh, P("data")))
np.testing.assert_array_equal(local_rows(layout), np.arange(8))

class Half:  # as a process with every second pair of devices sees it
    addressable = [devices[i, j] for i in (0, 2) for j in (0, 1)]
    def addressable_devices_indices_map(self, shape):
        return {d: i for d, i in layout.sharding.devices_indices_map(shape).items()
                if d in self.addressable}

half = type("L", (), {"sharding": Half(), "shape": (8, 3)})
np.testing.assert_array_equal(local_rows(half), [0, 1, 4, 5])

x = np.arange(24, dtype=np.float32).reshape(8, 3)
class Batches:
    def __iter__(self):
        yield {"x": x, "weight": np.ones(8, np.float32), "index": np.arange(8)}
    def close(self): pass
with Feed(Batches(), {"x": layout}, timeout_secs=60) as feed:
    np.testing.assert_array_equal(next(feed)["x"], x)
"""
    done = run_python("-c", code, devices=8)
    assert done.returncode == 0, done.stderr


def test_a_missing_batch_names_host_and_file(monkeypatch):
    monkeypatch.setattr("vit_jax.learning.feed.CLOSING_SECS", 0.1)
    free = threading.Event()

    class Hanging(Batches):
        def __iter__(self):
            with waiting_for(lambda: "/data/a.png"):
                free.wait()
            return iter(())

    batches = Hanging()
    with feed_of(batches, timeout_secs=0.2) as feed, pytest.raises(UserError) as error:
        next(feed)
    told(str(error.value), socket.gethostname(), "input.timeout_secs", "/data/a.png")
    assert waiting.any_abandoned()
    free.set()
    feed._thread.join()
    assert batches.closed == 1
    assert not waiting.any_abandoned()


# --- bad images are named, counted across restarts, and end a run when there are too many


def counter(**changed):
    fields = {"logged": (), "step": 10, "batch_size": 4, "num_examples": 40, "max_fraction": 0.1}
    return SkippedImages(BadImages(), **(fields | changed))


def settle(skipped, *counts):
    for count in counts:
        skipped.add({"skipped_images": count})
    return skipped.commit(skipped.uncommitted)


def test_counts_continue_across_restarts():
    skipped = counter(logged=[(5, 2.0), (10, 3.0)])
    assert settle(skipped) == {}
    assert settle(skipped, 0, 1, 2) == {SKIPPED_IMAGES: 6}
    assert settle(skipped, 0) == {}
    skipped.add({})  # of a step that is left out
    assert settle(skipped) == {}
    assert skipped.row() == {SKIPPED_IMAGES: 6}


LOGGED = [(5, 3.0), (10, 4.0), (13, 6.0), (17, 7.0)]
# 60 examples, 10 of them bad, in batches of 16: the fourth has four of the next epoch.
A_SIXTH = {"step": 0, "batch_size": 16, "num_examples": 60, "max_fraction": 0.17}


@pytest.mark.parametrize(
    ("fields", "counts", "refusal"),
    [
        # Ten steps per epoch, of whose 40 examples four may be bad.
        ({}, [1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 2, 2, 1],
         ("epoch 3", "step 23", "input.max_bad_fraction=0.1")),
        ({"max_fraction": 1.0}, [3] * 10, ()),
        ({"max_fraction": 1.0}, [3, 4], ("step 12",)),  # a batch without a good image
        # Those skipped in this epoch before this start count.
        ({"logged": LOGGED, "step": 17}, [1], ()),
        ({"logged": LOGGED, "step": 17}, [1, 0, 1], ("5 bad images", "epoch 2", "step 20")),
        ({"logged": [(4, 4.0)], "step": 4}, [1], ("5 bad images", "epoch 1", "step 5")),
        # Without a row of step 10, those up to step 13 may be of the epoch before.
        ({"logged": [(5, 3.0), *LOGGED[2:]], "step": 17}, [1, 1, 1], ()),
        (A_SIXTH, [2, 3, 3, 5], ()),
        (A_SIXTH, [3, 3, 3, 6], ("input.max_bad_fraction",)),
    ],
)  # fmt: skip
def test_what_is_too_much(fields, counts, refusal):
    with refused(*refusal) if refusal else contextlib.nullcontext():
        settle(counter(**fields), *counts)


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
    return {row["step"]: row[SKIPPED_IMAGES] for row in rows if SKIPPED_IMAGES in row}


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


@pytest.mark.parametrize(
    ("bad", "fraction", "name"), [(8, 1, "step 1"), (2, 0.1, "input.max_bad_fraction=0.1")]
)
def test_too_many_bad_images_end_the_run(tmp_path, tiny_run, images, bad, fraction, name):
    config = tiny_run(*images(bad), f"input.max_bad_fraction={fraction}", "log.every_steps=2")
    with refused(name):
        train(config, tmp_path / "run")
    assert not list((tmp_path / "run/checkpoints").glob("[0-9]*"))
