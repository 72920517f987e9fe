"""A fine-tuning by vision_transformer's train.py, of drawn weights and on given batches.

Its own loop runs; stand-ins for its data sets and its log give it the batches and keep the numbers.
"""

import json
import os
import sys
from types import SimpleNamespace
from unittest import mock

import jax
import ml_collections
import numpy as np
from drawing import drawn

rows = []  # of the log
sys.modules["clu.metric_writers"] = SimpleNamespace(
    create_default_writer=lambda *_, **__: SimpleNamespace(
        write_scalars=lambda _, row: rows.append(row), write_hparams=len
    )
)
sys.modules["clu.periodic_actions"] = SimpleNamespace(
    Profile=lambda **_: abs, ReportProgress=lambda **_: abs
)
sys.modules["vit_jax.models_lit"] = SimpleNamespace(LitModel=None)
from vit_jax import checkpoint, input_pipeline, models, train  # noqa: E402, after its stand-ins

inputs = dict(np.load(sys.argv[1]))
about = json.loads(str(inputs["about"]))
size = inputs["images"].shape[2]


def flat(params):
    arrays = checkpoint._flatten_dict(params)
    return {name: x for name, x in arrays.items() if not isinstance(x, dict)}


def batches(images, labels):
    """As its pipeline makes them from uint8 images, with an axis of devices."""
    for x, y in zip(images, labels, strict=True):
        one_hot = np.eye(about["num_classes"], dtype=np.float32)[y]
        yield {"image": ((x.astype(np.float32) - 127.5) / 127.5)[None], "label": one_hot[None]}


class Test(list):
    def cardinality(self):
        return SimpleNamespace(numpy=lambda: len(self))


def trained(name, fields):
    """(shapes in the pretrained file, losses, rates, accuracies, parameters after the last step)"""
    config = ml_collections.ConfigDict(
        {
            "dataset": "drawn", "pretrained_dir": ".", "model": fields | {"model_name": name},
            "prefetch": 0, "progress_every": 1, "eval_every": 1, "checkpoint_every": 0,
            "batch": inputs["images"].shape[1], "batch_eval": inputs["test_images"].shape[1],
            **about["config"],
        }
    )  # fmt: skip
    pretrained = models.VisionTransformer(**about["pretrained"], **config.model)
    shapes = jax.eval_shape(
        lambda: pretrained.init(jax.random.key(0), np.zeros((1, size, size, 3)), train=False)
    )
    shapes = {n: x.shape for n, x in flat(shapes["params"]).items()}
    np.savez(f"{name}.npz", **drawn(shapes))
    rows.clear()
    train_set = list(batches(inputs["images"], inputs["labels"]))
    test_set = Test(batches(inputs["test_images"], inputs["test_labels"]))
    with (
        mock.patch.object(
            input_pipeline, "get_dataset_info", lambda *_: {"num_classes": about["num_classes"]}
        ),
        mock.patch.object(input_pipeline, "get_datasets", lambda _: (train_set, test_set)),
        mock.patch.object(input_pipeline, "prefetch", lambda data, _: iter(data)),
    ):
        after = train.train_and_evaluate(config, os.path.abspath(f"run_{name}"))
    scalars = {key: [row[key] for row in rows if key in row] for key in KEYS}
    return json.dumps(shapes), scalars, flat(after)


KEYS = ("train_loss", "lr", "accuracy_test")
outputs = {}
for name, fields in about["cases"].items():
    shapes, scalars, after = trained(name, fields)
    outputs[f"{name}/shapes"] = shapes
    outputs |= {f"{name}/{key}": x for key, x in scalars.items()}
    outputs |= {f"{name}/params/{n}": x for n, x in after.items()}
np.savez(sys.argv[2], **outputs)
