"""A run's log in metrics.jsonl, TensorBoard and Weights & Biases."""

from vit_jax.training.log.parameters import write_parameters
from vit_jax.training.log.run_log import RunLog, Writer
from vit_jax.training.log.tensorboard import TensorBoard
from vit_jax.training.log.weights_and_biases import WeightsAndBiases, check_project

__all__ = [
    "RunLog", "TensorBoard", "WeightsAndBiases", "Writer", "check_project", "write_parameters",
]  # fmt: skip
