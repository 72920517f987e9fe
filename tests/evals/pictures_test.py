"""Evaluations that draw."""

import io
import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from tests.messages import refused
from vit_jax import models
from vit_jax.draw import attention_pictures
from vit_jax.draw.html_page import Findings, Section
from vit_jax.evals import Evals
from vit_jax.evals.kind import Shown
from vit_jax.evals.pictures import NUMBERS, Pictures, PicturesConfig
from vit_jax.learning.clock import Cadence
from vit_jax.parallel import mesh as meshes


class Drawing:
    """An evaluator that draws and counts."""

    def run(self, params, progress, stop):
        return {"number": params, "picture": b"png of %d" % params}


def test_pictures_are_kept_apart_from_numbers_until_the_next_run():
    evals = Evals({"look": (Drawing(), Cadence(2, 4))})
    run = lambda step: evals.run(step, {"": 1, "_ema": 2}, lambda *_: None)
    assert run(2) == {"look/number": 1, "look_ema/number": 2}
    assert evals.take_pictures() == {"look/picture": b"png of 1", "look_ema/picture": b"png of 2"}
    assert evals.take_pictures() == {}
    assert (run(3), evals.take_pictures()) == ({}, {})


def test_weights_that_are_not_finite_are_refused():
    fields = {"depth": 1, "width": 8, "mlp_dim": 8, "num_heads": 2, "image_size": 8}
    model = models.create("ViT-Ti/4", num_classes=3, rngs=nnx.Rngs(0), **fields)
    model.head.kernel[...] = np.nan
    graph, params = nnx.split(model, nnx.Param)
    shown = Shown(np.zeros((1, 8, 8, 3), "f"), np.zeros((1, 8, 8, 3), "u1"), [0], ["a"])
    mesh = meshes.make_mesh(replica=1, data=1, fsdp=1, tensor=1)
    inputs = SimpleNamespace(graph=graph, mesh=mesh, images=lambda number: shown)
    pictures = Pictures(PicturesConfig(), inputs)
    with refused("not finite"):
        pictures.run(nnx.to_pure_dict(params), lambda *_: None, False)


@pytest.mark.slow
def test_a_run_draws_at_its_own_cadence(tmp_path, run_python):
    fields = {"kind": "pictures", "every_steps": 2, "pictures": 3}
    fields["preprocess"] = "decode|resize(8)"
    done = run_python(
        "-m", "vit_jax.train", "--config", "configs/vit_digits.py", "--workdir", str(tmp_path),
        "--config.total.epochs=none", "--config.total.steps=3", "--config.optim.warmup_epochs=none",
        "--config.model.depth=1", "--config.log.tensorboard=false", "--config.input.batch_size=32",
        *(f"--config.evals.look.{name}={value}" for name, value in fields.items()),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    for step in (2, 3):
        (row,) = (row for row in rows if row["step"] == step and "look/filters_explained" in row)
        assert {name for name in row if name.startswith("look/")} == {f"look/{n}" for n in NUMBERS}
        assert all(np.isfinite(value) for value in row.values())
    for name in ("filters", "positions", "attention", "distances", "heads_of_layer_1"):
        files = sorted(tmp_path.glob(f"pictures/look/{name}/*.png"))
        assert [file.stem for file in files] == ["2", "3"]
        for file in files:
            Image.open(io.BytesIO(file.read_bytes())).verify()


def test_an_image_without_a_label_shows_the_class_that_is_predicted(monkeypatch):
    model = models.create(
        "ViT-Ti/4", num_classes=3, image_size=8, depth=1, width=8, mlp_dim=8, num_heads=1,
        rngs=nnx.Rngs(0),
    )  # fmt: skip
    model.head.bias[...] = np.array([0.0, 0.0, 9.0])
    graph, params = nnx.split(model)
    images = np.zeros((2, 8, 8, 3), np.float32)
    shown = Shown(images, images.astype(np.uint8), [None, 1], ["without a label", "cat"])
    asked = []
    nothing = Findings(Section("", []), {})
    monkeypatch.setattr(attention_pictures, "findings", lambda *a: asked.append(a[-1]) or nothing)
    one = jax.devices()[:1]
    mesh = meshes.make_mesh(replica=1, data=1, fsdp=1, tensor=1, devices=one)
    inputs = SimpleNamespace(graph=graph, mesh=mesh, images=lambda number: shown)
    Pictures(PicturesConfig(), inputs).run(params, lambda *_: None, stop=False)
    assert list(asked[0].classes) == [2, 1]
