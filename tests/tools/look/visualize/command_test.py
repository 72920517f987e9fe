"""vit-jax visualize, on a run with several checkpoints."""

import re

import pytest
from PIL import Image

COMMAND = ["-m", "vit_jax", "visualize"]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, run_python):
    folder = tmp_path_factory.mktemp("run")
    done = run_python(
        "-m", "vit_jax.train", "--config", "configs/vit_digits.py", "--workdir", str(folder),
        "--config.total.epochs=none", "--config.total.steps=4", "--config.optim.warmup_epochs=none",
        "--config.model.depth=1", "--config.log.tensorboard=false", "--config.input.batch_size=32",
        "--config.checkpoint.every_steps=2", "--config.checkpoint.keep_every_steps=2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_a_run_and_how_it_developed(workdir, tmp_path, run_python):
    done = run_python(
        *COMMAND, f"--checkpoint={workdir}", "--images=docs/digits", f"--output={tmp_path / 'o'}",
        "--steps=all", "--max_images=4", f"--compare={workdir}/checkpoints/2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "first_distance_px" in done.stdout
    files = {file.name for file in (tmp_path / "o").iterdir()}
    wanted = {"index.html", "filters.png", "development.png", "rollout_over_steps.webp", "cka.png"}
    assert wanted <= files
    assert sum(name.startswith("cka_with_ViT") for name in files) == 1
    with Image.open(tmp_path / "o" / "positions_over_steps.webp") as movie:
        assert movie.n_frames == 2
    page = (tmp_path / "o" / "index.html").read_text()
    assert {*re.findall(r"<code>([\w.-]+)</code>", page)} == files - {"index.html"}
    assert 'src="http' not in page


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--steps=3"], r"no checkpoint of step '3' in .*; there are 2, 4"),
        (["--query=1"], "give ROW,COLUMN"),
        (["--layers=0"], "numbers from 1 on"),
        (["--images=tests/tools/look/visualize"], "No image in tests/tools/look/visualize"),
        (["--output=setup.py/x"], "--output=setup.py/x cannot be written"),
        (["--images=docs", "--output=docs/looked"], "--output=docs/looked is inside docs"),
        (["--max_images=3", "--compare=RUN"], "--compare takes 4 images or more, and 3 are shown"),
        (["--compare=docs"], "No checkpoint in docs"),
        (["--image_size=9"], "--image_size=9 does not suit .* nearest: .8, 8."),
    ],
)
def test_mistakes_are_told_in_one_message(workdir, tmp_path, run_python, flags, says):
    given = {"images": "docs/digits", "output": str(tmp_path / "o")}
    given |= dict(flag.removeprefix("--").replace("RUN", str(workdir)).split("=") for flag in flags)
    done = run_python(
        *COMMAND, f"--checkpoint={workdir}", *(f"--{name}={value}" for name, value in given.items())
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("error: ") == 1 and "Traceback" not in done.stderr
    assert re.search(says, done.stderr), done.stderr
    assert not (tmp_path / "o").exists()
