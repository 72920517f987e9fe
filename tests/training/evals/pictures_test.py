"""Evaluations that draw."""

import io
import json

import numpy as np
from PIL import Image

from vit_jax.training.clock import Cadence
from vit_jax.training.evals import Evals
from vit_jax.training.evals.pictures import NUMBERS


class Drawing:
    """An evaluator that draws and counts."""

    def run(self, params, progress, stop):
        return {"number": params, "picture": b"png of %d" % params}


def test_pictures_are_kept_apart_from_numbers_until_the_next_run():
    evals = Evals({"look": (Drawing(), Cadence(2, 4))})
    run = lambda step: evals.run(step, {"": 1, "_ema": 2}, lambda *_: None)
    assert run(2) == {"look/number": 1, "look_ema/number": 2}
    assert evals.drawn() == {"look/picture": b"png of 1", "look_ema/picture": b"png of 2"}
    assert evals.drawn() == {}
    assert (run(3), evals.drawn()) == ({}, {})


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
