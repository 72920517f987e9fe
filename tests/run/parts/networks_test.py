from types import SimpleNamespace

import pytest
from flax import nnx

from vit_jax import models
from vit_jax.run.parts import networks


@pytest.fixture
def described(tiny_run, monkeypatch):
    """`described(2, "loss.kind=sigmoid")`: the model in the checkpoints of a run on 2 labels."""
    spec = models.spec("ViT-Ti/4", probabilities="sigmoid")
    weights = SimpleNamespace(spec=spec, name="ViT-Ti/4")
    monkeypatch.setattr(networks.weights, "checkpoint_info", lambda path: weights)

    def describe(max_labels, *overrides):
        config = tiny_run(*overrides)
        source = SimpleNamespace(class_names=None, num_classes=4)
        model = networks.model(config, num_classes=4, several_labels=max_labels > 1)
        about = networks.description(config.init, model, source)["model"]
        # What evaluations ask, and what a checkpoint says.
        evaluated = nnx.eval_shape(lambda: model.make(nnx.Rngs(0))).spec
        assert evaluated.probabilities == about["probabilities"]
        return about

    return describe


KEPT = ("init.weights=sigmoids", "model.name=none")


@pytest.mark.parametrize(
    ("max_labels", "overrides", "probabilities"),
    [
        (2, ["loss.kind=sigmoid"], "sigmoid"),
        (1, ["loss.kind=sigmoid"], "softmax"),  # as in pre-training on ImageNet-21k
        (2, [], "softmax"),
        (1, ["loss.kind=sigmoid", *KEPT], "sigmoid"),
        (1, KEPT, "softmax"),
        (1, ["loss.kind=sigmoid", *KEPT, "init.head=reset"], "softmax"),
    ],
)
def test_classes_have_probabilities_of_their_own_where_a_run_learns_so(
    described, max_labels, overrides, probabilities
):
    assert described(max_labels, *overrides)["probabilities"] == probabilities
