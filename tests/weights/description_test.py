"""The description of a checkpoint's model, as this version writes it and as a later one may."""

import json

import pytest

from tests.messages import refused
from vit_jax import models
from vit_jax.weights.description import describe, parse


@pytest.mark.parametrize("section", ["model", "preprocess"])
def test_a_field_of_a_later_version_is_refused(section):
    preprocess = models.Preprocess((224, 224), 256, (224, 224))
    text = json.dumps(
        describe(models.info("ViT-B/16"), num_classes=9, class_names=None, preprocess=preprocess)
    )
    about = json.loads(text)
    assert parse(about, origin="RUN")["preprocess"] == preprocess
    assert about == json.loads(text)
    about[section]["later"] = 1
    with refused("RUN", "later", "version"):
        parse(about, origin="RUN")
