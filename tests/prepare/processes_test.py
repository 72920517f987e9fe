"""python -m vit_jax.prepare, as it is typed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.prepare.conftest import jpeg
from tests.prepare.evaluations_test import folder_of

ROOT = Path(__file__).parents[2]


def prepare(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vit_jax.prepare", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_tells_what_became_of_the_images(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "source", {f"{i}.jpg": jpeg(i) for i in range(6)})
    test_set = folder_of(tmp_path / "test_set", {"a.jpg": jpeg(0), "b.jpg": jpeg(9)})
    arguments = ("image_folder", "--source", source, "--output", tmp_path, "--workers=1")
    arguments += ("--drop_duplicates_of", test_set)
    done = prepare(*arguments)
    assert done.returncode == 0, done.stderr
    assert "train        5 examples in 1 files" in done.stdout
    assert "look at      Images of test_set that are also here: 1" in done.stdout
    again = prepare(*arguments)
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[-6:] == done.stdout.splitlines()[-6:]


def test_a_wrong_flag_is_one_message(tmp_path: Path) -> None:
    done = prepare("image_folder", "--source=x", f"--output={tmp_path}", "--near_bits=20")
    assert done.returncode == 1 and "near_bits" in done.stderr and "Traceback" not in done.stderr
