"""What an evaluation takes from the run that wrote the weights."""

import dataclasses

import pytest

from vit_jax import config as configs
from vit_jax import plugins
from vit_jax.core.schema import entry_points
from vit_jax.core.schema.fields import field
from vit_jax.evaluate import data_sets, prepared
from vit_jax.learning.losses import LossConfig, Sigmoid, sigmoid_cross_entropy
from vit_jax.run.parts import examples
from vit_jax.store import checkpoint_dir
from vit_jax.train import train


@dataclasses.dataclass(frozen=True)
class Scaled(LossConfig):
    factor: float = field(1.0, "of all losses", bounds=(0, 10))
    exclusive = False

    def compute(self, logits, targets, class_weights=None):
        return self.factor * sigmoid_cross_entropy(logits, targets, class_weights)


def test_the_loss_of_sigmoids_has_the_fields_of_its_run(tmp_path, tiny_run, monkeypatch):
    monkeypatch.setattr(entry_points, "_added", {})
    plugins.add("losses", "scaled", Scaled)
    config = tiny_run("loss.kind=scaled", "loss.factor=3", "total.steps=1", "optim.warmup_steps=0")
    train(config, tmp_path / "run")
    checkpoint = checkpoint_dir.find(tmp_path / "run")
    assert prepared._loss_of(checkpoint) == config.loss
    monkeypatch.setattr(entry_points, "_added", {})
    assert prepared._loss_of(checkpoint) == Sigmoid()


@pytest.mark.parametrize(
    ("split", "seen"), [("train[:50]", True), ("train", True), ("test", False)]
)
def test_parts_of_what_was_trained_on_are_known(digits_run, split, seen):
    c = configs.resolve({"input": {"source": "digits", "split": split}}).input
    checkpoint = checkpoint_dir.find(digits_run)
    assert data_sets.was_trained_on(checkpoint, examples.source(c)) == seen
