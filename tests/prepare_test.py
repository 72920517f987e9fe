"""The command; what it does is tested in tests/preparing."""

import importlib.util

import pytest

from tests.preparing.conftest import jpeg


@pytest.fixture
def prepare(tmp_path, run_python):
    """A list of two images, and the command on it."""
    for number in range(2):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(number))
    (tmp_path / "list.jsonl").write_text(
        '{"image": "0.jpg", "labels": [0, 2]}\n{"image": "1.jpg", "labels": [1]}\n'
    )
    usual = {"source": f"{tmp_path}/list.jsonl", "num_classes": 3, "output": f"{tmp_path}/out"}

    def run(collection="records", **options):
        flags = {name: value for name, value in (usual | options).items() if value is not None}
        given = [f"--{name}={value}" for name, value in flags.items()]
        return run_python("-m", "vit_jax.prepare", collection, "--workers=1", *given)

    return run


def test_tells_what_it_made(tmp_path, prepare):
    done = prepare(name="mine")
    assert done.returncode == 0, done.stderr
    assert "train        2 examples in 1 files" in done.stdout
    assert f"ready        {tmp_path}/out/mine/1.0.0" in done.stdout


def test_tells_why_images_were_left_out(prepare):
    done = prepare(num_classes=2)
    assert done.returncode == 0, done.stderr
    assert "left out     1 images: 1 bad_label" in done.stdout


MISTAKES = {
    "a bucket": ({"output": "gs://bucket/data"}, "--output=gs://bucket/data: only folders of"),
    "a name with capitals": ({"name": "Mine"}, "--name=Mine: lower-case letters"),
    "an unknown collection": ({"collection": "recods"}, "Did you mean 'records'"),
    "no such file": ({"source": "nowhere.jsonl"}, "--source: no file nowhere.jsonl"),
    "a flag of others": (
        {"collection": "image_folder"}, "--num_classes is for records and webdataset: leave it out"
    ),
    "nowhere": ({"output": ""}, "--output is empty: name a folder."),
    "a place in the collection": (
        {"collection": "image_folder", "source": ".", "output": "sets", "num_classes": None},
        "--output=sets lies in --source=., where every folder is a class",
    ),
    "an unknown fault": ({"policy": "grey:set_aside"}, "no such fault. Did you mean 'gray'"),
}  # fmt: skip


@pytest.mark.parametrize("options, message", MISTAKES.values(), ids=list(MISTAKES))
def test_mistakes_are_one_message(prepare, options, message):
    done = prepare(**options)
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("apache_beam") is not None, reason="it is there")
def test_without_beam(prepare):
    done = prepare(runner="beam")
    assert done.returncode == 1 and "pip install 'vit_jax[beam]'" in done.stderr
