"""Pictures of a run: its first batch, and the wrong images of its evaluations."""

import io

import numpy as np
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from vit_jax.draw import contact_sheet
from vit_jax.tools.look import preview
from vit_jax.train import train

EVAL = ("evals.test.source=synthetic", "evals.test.preprocess=decode|resize(8)")


class Log:
    """A logger that keeps pictures."""

    def __init__(self):
        self.pictures = {}

    def write(self, step, values):
        """Rows are no matter."""

    def write_pictures(self, step, pictures):
        self.pictures |= {(name, step): png for name, png in pictures.items()}


def test_the_first_batch_is_what_preview_draws(tmp_path, tiny_run):
    config = tiny_run("loss.mixup=1", "log.first_batch=5")
    log = Log()
    train(config, tmp_path / "run", loggers=[log])
    png = log.pictures["input/batch", 1]
    expected = preview.preview(config, "run", step=1, max_images=5)
    sheet = np.asarray(Image.open(io.BytesIO(png)))
    cells = slice(0, 200)  # of the first row, without the notes below, which name the example
    np.testing.assert_array_equal(sheet[cells], np.asarray(Image.open(io.BytesIO(expected)))[cells])


def test_a_run_logs_them(tmp_path, tiny_run, monkeypatch):
    cells = {}
    draw = contact_sheet.draw
    monkeypatch.setattr(
        contact_sheet, "draw", lambda t, c: cells.setdefault(t[0], c) and draw(t, c)
    )
    log, fields = Log(), ("evals.test.wrong_images=3", "total.steps=2", *EVAL)
    train(tiny_run("log.first_batch=2", "log.tensorboard=true", *fields), tmp_path, loggers=[log])
    assert set(log.pictures) == {("input/batch", 1), ("test/wrong", 2)}
    for (name, step), png in log.pictures.items():
        assert (tmp_path / "pictures" / name / f"{step}.png").read_bytes() == png
    events = EventAccumulator(str(tmp_path)).Reload()
    (shown,) = events.Tensors("test/wrong")
    assert tensor_util.make_ndarray(shown.tensor_proto)[2] == log.pictures["test/wrong", 2]
    batch, wrong = cells.values()
    assert len(batch) == 2
    assert len(wrong) == 3
    sure = [float(cell.labels[0][1].rstrip("%")) for cell in wrong]
    assert sure == sorted(sure, reverse=True)
    assert all(cell.note != f"is {cell.labels[0][0]}" for cell in wrong)


def test_a_run_without_pictures_has_none(tmp_path, tiny_run):
    none = ("log.first_batch=0", "evals.test.wrong_images=0", "total.steps=2", *EVAL)
    train(tiny_run(*none), tmp_path)
    assert not (tmp_path / "pictures").exists()
