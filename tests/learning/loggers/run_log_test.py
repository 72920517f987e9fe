import errno
import io

import numpy as np
import pytest
from etils import epath
from PIL import Image
from tensorboard.backend.event_processing import data_provider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins import base_plugin
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util import tensor_util

from tests.messages import refused
from vit_jax.core.errors import UserError
from vit_jax.learning.histograms import EDGES, Distributions, Histogram
from vit_jax.learning.loggers import RunLog
from vit_jax.learning.loggers.tensorboard import TensorBoard


def test_scalars_and_histograms_are_read_back(tmp_path):
    writer = TensorBoard(epath.Path(tmp_path), start_step=0)
    writer.write(7, {"train/loss": 0.5})
    edges, counts = np.array([-1.0, 0.0, 0.5, 2.0]), np.array([3, 0, 4])
    writer.write_histograms(7, {"gradients/head/bias": Histogram(counts, edges)})
    writer.close(None)
    events = EventAccumulator(str(tmp_path)).Reload()
    (loss,) = events.Tensors("train/loss")
    assert (loss.step, tensor_util.make_ndarray(loss.tensor_proto)) == (7, 0.5)
    (histogram,) = events.Tensors("gradients/head/bias")
    assert histogram.step == 7
    rows = tensor_util.make_ndarray(histogram.tensor_proto)
    np.testing.assert_array_equal(rows, np.stack([edges[:-1], edges[1:], counts], axis=1))
    plugin = events.SummaryMetadata("gradients/head/bias").plugin_data.plugin_name
    assert plugin == "histograms"


class Rows:
    """A logger with nothing but `write`."""

    def __init__(self):
        self.rows = []

    def write(self, step, values):
        self.rows.append((step, values))


class Ends(Rows):
    """One that is to be closed, and may fail in that."""

    def __init__(self, error=None):
        super().__init__()
        self.error, self.ends = error, []

    def close(self, error):
        self.ends.append(error)
        if self.error:
            raise self.error


def test_write_is_enough_for_a_logger(tmp_path):
    rows, counts = Rows(), np.zeros(len(EDGES) - 1, int)
    with RunLog(epath.Path(tmp_path), writers=[rows], start_step=0, profile=None) as log:
        log.write(1, {"x": 1.0}, {"look/filters": png("red")})
        log.write_distributions(2, Distributions({"y": 2.0}, {"gradients": counts}))
        log.flush()
    assert rows.rows == [(1, {"x": 1.0}), (2, {"y": 2.0})]


def test_all_are_closed_though_one_fails(tmp_path):
    failing, other = Ends(OSError("full")), Ends()
    with (
        pytest.raises(OSError, match="full"),
        RunLog(epath.Path(tmp_path), writers=[failing, other], start_step=0, profile=None),
    ):
        pass
    assert failing.ends == other.ends == [None]


def write_rows(folder, *, start, end):
    writer = TensorBoard(epath.Path(folder), start_step=start)
    for step in range(start + 1, end + 1):
        writer.write(step, {"train/loss": float(step)})
    writer.close(None)


def test_rows_after_the_restored_step_are_written_once(tmp_path):
    """As after kill -9 at step 5, twice, with a checkpoint of step 3."""
    write_rows(tmp_path, start=0, end=5)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-10])  # killed while it wrote
    write_rows(tmp_path, start=3, end=5)
    write_rows(tmp_path, start=3, end=4)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in events.Tensors("train/loss")] == [1, 2, 3, 4]


def test_rows_before_a_checkpoint_survive_a_kill(tmp_path):
    """`flush` comes before each save."""
    log = RunLog(
        epath.Path(tmp_path),
        writers=[TensorBoard(epath.Path(tmp_path), start_step=0)],
        start_step=0,
        profile=None,
    )
    for step in (1, 2):
        log.write(step, {"train/loss": float(step)})
    log.flush()
    events = EventAccumulator(str(tmp_path)).Reload()  # as the file is now
    assert [event.step for event in events.Tensors("train/loss")] == [1, 2]
    log.__exit__(None, None, None)


@pytest.mark.parametrize("method", ["write", "flush"])
def test_rows_that_cannot_be_written_give_a_message(tmp_path, monkeypatch, method):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    writer, one_more = (TensorBoard(epath.Path(tmp_path), start_step=0) for _ in range(2))
    writer.flush()
    one_more.flush()
    monkeypatch.setattr(RecordWriter, method, full)
    with refused("No space left"):
        for step in range(1, 100):  # the thread takes a moment
            writer.write(step, {"train/loss": 1.0})
            writer.flush()
    writer.close(UserError("the first"))  # which is told, and not this one
    one_more.write(1, {"train/loss": 1.0})
    with refused("No space left"):
        one_more.close(None)


def test_a_tensorboard_that_is_open_drops_rows_after_the_restored_step(tmp_path):
    """It has read rows before the resumed run deletes them."""
    write_rows(tmp_path, start=0, end=5)
    tensorboard = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    assert len(tensorboard.Tensors(".", "train/loss")) == 5
    write_rows(tmp_path, start=3, end=4)
    tensorboard.Reload()
    assert [event.step for event in tensorboard.Tensors(".", "train/loss")] == [1, 2, 3, 4]


def test_event_files_of_other_programs_stay(tmp_path):
    other = tmp_path / "events.out.tfevents.1.other"
    other.write_bytes(b"\3" + bytes(11) + b"\xff\xff\xff" + bytes(20))
    write_rows(tmp_path, start=0, end=1)
    assert len(other.read_bytes()) == 35


def test_the_config_is_text_hyperparameters_and_the_order_of_charts(tmp_path):
    """As TensorBoard's own tabs read them."""
    for name, lr in (("a", 1e-3), ("b", 3e-3)):
        (tmp_path / name).mkdir()
        config = {"optim": {"lr": lr, "name": "adamw"}, "total": {"steps": 5, "epochs": None}}
        told = {"config": config, "program": f"load_config({lr})"}
        writer = TensorBoard(epath.Path(tmp_path / name), start_step=0, **told)
        writer.write(5, {"test/accuracy": lr * 100})
        writer.close(None)
    events = EventAccumulator(str(tmp_path / "a")).Reload()
    (text,) = events.Tensors("config")
    assert tensor_util.make_ndarray(text.tensor_proto) == b"```python\nload_config(0.001)\n```"
    assert events.SummaryMetadata("config").plugin_data.plugin_name == "text"
    (layout,) = events.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(tensor_util.make_ndarray(layout.tensor_proto).item())
    assert [c.title for c in layout.category[0].chart][:2] == ["loss", "accuracy"]
    runs = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    provider = data_provider.MultiplexerDataProvider(runs, str(tmp_path))
    hparams = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    asked = api_pb2.ListSessionGroupsRequest(
        start_index=0, slice_size=9, allowed_statuses=[api_pb2.STATUS_UNKNOWN]
    )
    args = RequestContext(), hparams, "", asked
    groups = list_session_groups.Handler(*args).run().session_groups
    found = {g.hparams["optim.lr"].number_value: g.hparams for g in groups}
    assert found.keys() == {1e-3, 3e-3}
    assert found[1e-3]["optim.name"].string_value == "adamw"
    assert found[1e-3]["total.steps"].number_value == 5
    (metric,) = (m for g in groups for m in g.metric_values if m.value == pytest.approx(0.3))
    assert (metric.name.tag, metric.training_step) == ("test/accuracy", 5)


def test_counts_are_left_out_until_they_move(tmp_path):
    """metrics.jsonl has them: a run resumes by them."""
    rows = Rows()
    make = lambda step: RunLog(epath.Path(tmp_path), writers=[rows], start_step=step, profile=None)
    counts = lambda loss, skipped: {
        "train/loss": loss, "input/skipped_images": skipped, "test/examples": 9.0,
    }  # fmt: skip
    with make(0) as log:
        log.write(1, counts(0.5, 0.0))
        log.write(2, counts(0.5, 1.0))
        log.write(3, {"test/examples": 9.0})
    with make(2) as log:
        log.write(3, counts(0.4, 1.0))
    assert rows.rows == [
        (1, {"train/loss": 0.5}),
        (2, {"train/loss": 0.5, "input/skipped_images": 1.0}),
        (3, {"train/loss": 0.4, "input/skipped_images": 1.0}),
    ]
    assert (tmp_path / "metrics.jsonl").read_text().count("examples") == 3


def png(colour):
    out = io.BytesIO()
    Image.new("RGB", (3, 2), colour).save(out, "PNG")
    return out.getvalue()


def test_pictures_are_read_back(tmp_path):
    writer = TensorBoard(epath.Path(tmp_path), start_step=0)
    writer.write_pictures(7, {"look/filters": png("red")})
    writer.close(None)
    events = EventAccumulator(str(tmp_path)).Reload()
    (found,) = events.Tensors("look/filters")
    width, height, data = tensor_util.make_ndarray(found.tensor_proto)
    assert (found.step, width, height, data) == (7, b"3", b"2", png("red"))
    assert events.SummaryMetadata("look/filters").plugin_data.plugin_name == "images"


def test_pictures_after_the_restored_step_go(tmp_path):
    make = lambda step: RunLog(epath.Path(tmp_path), writers=(), start_step=step, profile=None)
    with make(0) as log:
        for step in (2, 4):
            log.write(step, {"x": 1.0}, {"look/filters": png("red"), "look/rollout": png("blue")})
    with make(2) as log:
        log.write(3, {"x": 1.0}, {"look/filters": png("green")})
    files = {str(f.relative_to(tmp_path)): f.read_bytes() for f in tmp_path.rglob("*.png")}
    assert files == {
        "pictures/look/filters/2.png": png("red"),
        "pictures/look/rollout/2.png": png("blue"),
        "pictures/look/filters/3.png": png("green"),
    }
