import jax
import numpy as np
import pytest
from etils import epath
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from vit_jax.core.errors import UserError
from vit_jax.training.histograms import Histogram
from vit_jax.training.run_log import TensorBoard, write_parameters


def test_scalars_and_histograms_are_read_back(tmp_path):
    writer = TensorBoard(epath.Path(tmp_path))
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


def test_parameters_that_cannot_be_written_give_a_message(tmp_path):
    (tmp_path / "parameters.txt").mkdir()
    params = {"head": {"bias": jax.numpy.zeros(3)}}
    with pytest.raises(UserError, match=r"parameters\.txt cannot be written: .*directory\. Delete"):
        write_parameters(epath.Path(tmp_path), params)
