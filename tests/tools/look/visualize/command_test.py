"""vit-jax visualize, on a run with several checkpoints."""

import re

import pytest
from PIL import Image

COMMAND = ["-m", "vit_jax", "visualize"]


@pytest.mark.slow
def test_a_run_and_how_it_developed(digits_run, tmp_path, run_python):
    done = run_python(
        *COMMAND, f"--checkpoint={digits_run}", "--images=docs/digits", f"--output={tmp_path}/o",
        "--steps=all", "--max_images=4", f"--compare={digits_run}/checkpoints/2",
        "--at=blocks/0/mlp",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "first_distance_px" in done.stdout
    files = {file.name for file in (tmp_path / "o").iterdir()}
    wanted = {"index.html", "filters.png", "development.png", "rollout_over_steps.webp", "cka.png"}
    assert wanted <= files
    assert sum(name.startswith("cka_with_ViT") for name in files) == 1
    with Image.open(tmp_path / "o" / "positions_over_steps.webp") as movie:
        assert movie.n_frames == 3
    page = (tmp_path / "o" / "index.html").read_text()
    assert {*re.findall(r"<code>([\w.-]+)</code>", page)} == files - {"index.html"}
    assert 'src="http' not in page
    assert "What the model has at blocks/0/mlp of each patch" in page


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--steps=3"], r"--steps=3 is not all, or some, of the steps there: 2, 4"),
        (["--query=1"], "--query=1 .*not 2 numbers from 1 on"),
        (["--layers=0"], "numbers from 1 on"),
        (["--images=tests/tools/look/visualize"], "No image in tests/tools/look/visualize"),
        (["--output=setup.py/x"], "--output=setup.py/x cannot be written"),
        (
            ["--images=docs", "--output=docs/looked"],
            "--output=docs/looked is not .* outside of docs",
        ),
        (["--max_images=3", "--compare=RUN"], "--compare takes 4 images or more, and 3 are shown"),
        (["--compare=docs"], "No checkpoint in docs"),
        (["--at=blocks/1"], "no activation 'blocks/1'"),
        (["--image_size=9"], "Image size .9, 9. does not divide .* nearest: .8, 8."),
    ],
)
def test_mistakes_are_told_in_one_message(digits_run, tmp_path, run_python, flags, says):
    given = {"images": "docs/digits", "output": str(tmp_path / "o")}
    given |= dict(
        flag.removeprefix("--").replace("RUN", str(digits_run)).split("=") for flag in flags
    )
    done = run_python(
        *COMMAND,
        f"--checkpoint={digits_run}",
        *(f"--{name}={value}" for name, value in given.items()),
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("error: ") == 1 and "Traceback" not in done.stderr
    assert re.search(says, done.stderr), done.stderr
    assert not (tmp_path / "o").exists()
