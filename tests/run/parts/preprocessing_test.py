"""Preprocessing stated by weights, as a string of ops, and back."""

import pytest

from tests.messages import refused
from vit_jax import config as configs
from vit_jax import models
from vit_jax.models import Preprocess
from vit_jax.run.parts import networks, preprocessing

SQUARE, UPRIGHT = (224, 224), (224, 160)
TIMM = (
    "decode|resize_small(248, method='bicubic', longer='down')|central_crop(224, middle='nearest')"
)
OPS = {
    "decode|resize(224)": Preprocess(SQUARE, SQUARE),
    "decode|resize((224, 160), method='nearest')": Preprocess(
        UPRIGHT, UPRIGHT, interpolation="nearest"
    ),
    TIMM: Preprocess(SQUARE, 248, SQUARE, interpolation="bicubic", longer="down", middle="nearest"),
    "decode|resize_small(256, method='area', antialias=False)|central_crop(224)": Preprocess(
        SQUARE, 256, SQUARE, interpolation="area", antialias=False
    ),
    "decode|resize_small((248, 177))|central_crop((224, 160))": Preprocess(
        UPRIGHT, (248, 177), UPRIGHT, fit="cover"
    ),
    "decode|resize_long(224)|central_crop(224, fill=(128, 128, 128))": Preprocess(
        SQUARE, SQUARE, SQUARE, fit="inside", fill=(128, 128, 128)
    ),
    "decode|resize_small(200)|central_crop(224, fill=(0, 0, 0))": Preprocess(
        SQUARE, 200, SQUARE, fill=(0, 0, 0)
    ),
    "decode|central_crop((224, 160))": Preprocess(UPRIGHT, None, UPRIGHT),
}


@pytest.mark.parametrize("ops", OPS)
def test_there_and_back(ops):
    assert preprocessing.as_preprocess(ops, "evals.val.preprocess") == OPS[ops]
    assert preprocessing.as_ops(OPS[ops]) == ops


def test_the_first_evaluation_says_how_predictions_images_are_resized():
    ops = "decode|resize_small(20, method='lanczos', longer='down')|central_crop(16)"
    config = configs.resolve(
        {
            "input": {"preprocess": "decode|inception_crop(16)", "mean": (0.1, 0.2, 0.3)},
            "evals": {"val": {"preprocess": ops}},
        }
    )
    assert networks.preprocess(config.input, config.evals) == Preprocess(
        (16, 16), 20, (16, 16), (0.1, 0.2, 0.3), interpolation="lanczos", longer="down"
    )


def test_unsupported_preprocessing_is_refused():
    for ops in ("decode|resize(8)|flip_lr", "decode|central_crop(16)|resize(8)"):
        with refused("evals.val"):
            preprocessing.as_preprocess(ops, "evals.val.preprocess")


def test_weights_is_for_evaluations_of_weights():
    config = {"evals": {"val": {"preprocess": "weights"}}}
    with refused("evals.val.preprocess", "'weights'"):
        resolved = configs.resolve(config)
        networks.preprocess(resolved.input, resolved.evals)
    about = models.Preprocess(SQUARE, 256, SQUARE, mean=(0.1, 0.2, 0.3))
    config["evals"]["test"] = {"preprocess": "decode|resize(224)"}
    resolved, notices = preprocessing.as_weights_say(configs.resolve(config), about)
    assert resolved.evals["val"].preprocess == "decode|resize_small(256)|central_crop(224)"
    assert resolved.evals["test"].preprocess == "decode|resize(224)"
    assert resolved.input.mean == (0.1, 0.2, 0.3)
    assert len(notices) == 2 and "0.1, 0.2, 0.3" in notices[1]
    assert preprocessing.as_weights_say(resolved, about) == (resolved, [])
