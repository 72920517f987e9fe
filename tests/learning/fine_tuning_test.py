"""Pre-trains, fine-tunes on other classes at another size, and resumes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.messages import refused
from vit_jax import config as configs
from vit_jax.core.errors import Preempted
from vit_jax.train import train

CONFIG = Path(__file__).parents[2] / "configs" / "finetune.py"
STEPS = 20


@pytest.fixture
def own_images(tmp_path):
    """A folder with fewer images than a batch; the classes differ by colour."""
    for split, numbers in (("train", range(3)), ("val", range(3, 5))):
        for name, colour in (("blue", (0, 0, 255)), ("green", (0, 255, 0)), ("red", (255, 0, 0))):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for number in numbers:
                pixels = np.random.default_rng(number).integers(0, 60, (20, 30, 3), np.uint8)
                pixels[..., np.argmax(colour)] += 190
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "images"


def rows(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_pretrain_fine_tune_and_resume(tmp_path, tiny_run, own_images, quick_compilation, capsys):
    pretrained = tmp_path / "pretrained"
    train(tiny_run("model.pre_logits=true"), pretrained)

    def fine_tune(*more, **arguments):
        config = configs.load(
            str(CONFIG),
            [
                f"init.weights={pretrained}",
                f"input.data_dir={own_images}",
                "input.preprocess=decode|resize((16, 24))|flip_lr",
                "evals.val.preprocess=decode|resize((16, 24))",
                "input.batch_size=16",
                "model.dtype=float32",
                f"total.steps={STEPS}",
                "optim.warmup_steps=2",
                "optim.lr=0.1",
                "log.every_steps=1",
                "log.tensorboard=false",
                *more,
            ],
        )
        return train(config, tmp_path / "fine_tuned", **arguments)

    with pytest.raises(Preempted):
        fine_tune(stop="SIGTERM")
    assert f"from {pretrained}/checkpoints/6; 2 x 2 patches become 4 x 6" in capsys.readouterr().out

    # Resuming needs the architecture of the weights, but no array.
    shutil.rmtree(pretrained / "checkpoints" / "6" / "state")
    state = fine_tune()
    assert int(state.step) == STEPS
    assert state.params["positions"]["embedding"].shape == (4 * 6 + 1, 16)
    assert state.params["head"]["kernel"].shape == (16, 3)
    assert "pre_logits" not in state.params
    losses = [row["train/loss"] for row in rows(tmp_path / "fine_tuned")]
    assert len(losses) == STEPS
    assert losses[0] == pytest.approx(np.log(3), abs=1e-3)  # a head of zeros
    assert losses[-1] < 0.5 * losses[0]
    assert rows(tmp_path / "fine_tuned")[-1]["val/accuracy"] > 0.5

    # Without the weights, the message says how to continue.
    shutil.rmtree(pretrained)
    with refused(pretrained):
        fine_tune()
    named = [
        "model.name=ViT-Ti/4", "model.depth=2", "model.width=16", "model.mlp_dim=32",
        "model.num_heads=2",
    ]  # fmt: skip
    assert int(fine_tune(*named, allow_config_change=True).step) == STEPS
