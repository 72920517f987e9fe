"""Pre-trains, fine-tunes on other classes at another size, and resumes."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from etils import epath
from PIL import Image

from vit_jax import config as configs
from vit_jax.core.errors import Preempted
from vit_jax.run import folders
from vit_jax.store import checkpoint_dir
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
    train(tiny_run("model.pre_logits=true", "model.gelu=exact"), pretrained)

    def fine_tune(name, **arguments):
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
                "optim.freeze=cls",
                "optim.layer_decay=0.9",
            ],
        )
        folders.check_folders(config, epath.Path(tmp_path / name))
        return train(config, tmp_path / name, **arguments)

    straight = fine_tune("straight")
    capsys.readouterr()
    with pytest.raises(Preempted):
        fine_tune("fine_tuned", stop="SIGTERM")
    assert f"from {pretrained}/checkpoints/6; 2 x 2 patches become 4 x 6" in capsys.readouterr().out

    # Resuming does not need the weights, though model.name=None took the architecture from them.
    shutil.rmtree(pretrained)
    state = fine_tune("fine_tuned")
    jax.tree.map(np.testing.assert_array_equal, state, straight)
    about = [
        checkpoint_dir.read_description(tmp_path / name / "checkpoints" / str(STEPS))
        for name in ("fine_tuned", "straight")
    ]
    assert about[0] == about[1]
    assert about[0]["model"]["gelu"] == "exact"
    assert int(state.step) == STEPS
    assert state.params["positions"]["embedding"].shape == (4 * 6 + 1, 16)
    assert state.params["head"]["kernel"].shape == (16, 3)
    assert "pre_logits" not in state.params
    losses = [row["train/loss"] for row in rows(tmp_path / "fine_tuned")]
    assert len(losses) == STEPS
    assert losses[0] == pytest.approx(np.log(3), abs=1e-3)  # a head of zeros
    assert losses[-1] < 0.5 * losses[0]
    assert rows(tmp_path / "fine_tuned")[-1]["val/accuracy"] > 0.5
