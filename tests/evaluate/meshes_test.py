"""Each example once, and the same numbers to the last digit, on any number of devices and hosts."""

import json

import jax
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from tests.processes import run_two
from vit_jax import models, weights

IMAGES, TO_LEARN_FROM = 19, 14
EVALUATE = """
import json, os, sys
from etils import epath
from vit_jax import config as configs
from vit_jax.core.screen import Screen
from vit_jax.evaluate.__main__ import evaluate

folder, runs = sys.argv[1:]
for name, (splits, batch_size, mesh) in json.loads(runs).items():
    shared = {"source": "image_folder", "data_dir": f"{folder}/data", "preprocess": "decode"}
    own = {
        "classification": {},
        "frozen": {
            "train_split": "all[19:]", "shots": [1, 3], "seeds": 2, "neighbours": [3], "l2": 1.0,
        },
    }
    evals = {
        f"{kind}{n}": {"kind": kind, "split": f"all[:{n}]", **shared, **own[kind]}
        for n in splits for kind in own
    }
    for each in evals.values():
        each["preprocess"] += "|resize(16)"
        if each["kind"] == "classification":
            each["calibration"] = True
    values = {"input": {"batch_size": batch_size}, "total": {"steps": 1}}
    values["evals"], scored = evals, {}
    os.environ["XDG_CACHE_HOME"] = f"{folder}/cache/{name}"  # no features of another mesh
    config = configs.resolve(values, mesh)
    numbers = evaluate(config, epath.Path(folder) / "weights", Screen(quiet=True), scored=scored)
    places = {key: each.scores.places.tolist() for key, each in scored.items()}
    print(json.dumps([name, numbers, places]))
"""
ONE = "mesh.data=1"
MESHES = {  # a batch's size, and overrides
    "one": (16, [ONE]),
    "one by one": (1, [ONE]),
    "data": (16, ["mesh.data=8"]),
    "data 4": (12, ["mesh.data=4"]),
    "fsdp": (16, [ONE, "mesh.fsdp=8"]),
    "replica x data x fsdp": (24, ["mesh.replica=2", "mesh.data=2", "mesh.fsdp=2"]),
    "tensor": (3, [ONE, "mesh.tensor=2"]),
    "data x fsdp x tensor": (12, ["mesh.data=2", "mesh.fsdp=2", "mesh.tensor=2"]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images of three classes and weights."""
    folder, numbers = tmp_path_factory.mktemp("evaluated"), np.random.default_rng(0)
    for i in range(IMAGES + TO_LEARN_FROM):
        place = folder / "data" / f"class{i % 3}"
        place.mkdir(parents=True, exist_ok=True)
        colours = np.eye(3)[i % 3] * 60 + numbers.integers(0, 190, (4, 4, 3))
        Image.fromarray(colours.astype(np.uint8)).save(place / f"{i}.png")
    model = models.create(
        "ViT-Ti/8", depth=1, width=16, mlp_dim=16, num_heads=2, num_classes=3, image_size=16,
        rngs=nnx.Rngs(0),
    )  # fmt: skip
    model.head.kernel[...] = 3 * jax.random.normal(jax.random.key(1), model.head.kernel.shape)
    names = tuple(f"class{i}" for i in range(3))
    weights.save(weights.Loaded(model, "ViT-Ti/8", names, 0), folder / "weights", "timm")
    return folder


def run(run_python, folder, runs):
    done = run_python("-c", EVALUATE, str(folder), json.dumps(runs), devices=8)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {name: numbers for name, numbers, _ in lines}, {name: at for name, _, at in lines}


def check(numbers, places, splits):
    """All runs agree, and see each example once, in order."""
    first, *others = numbers.values()
    assert len(first) >= 15 * len(splits)
    assert all(other == first for other in others)
    for found in places.values():
        assert found == {f"classification{n}": list(range(n)) for n in splits}
    for n in splits:
        assert first[f"classification{n}/examples"] == first[f"frozen{n}/examples"] == n


def test_one_device_and_eight_agree_to_the_last_digit(run_python, folder):
    splits = [IMAGES]
    runs = {name: (splits, *MESHES[name]) for name in ("one by one", "data 4")}
    check(*run(run_python, folder, runs), splits)


@pytest.mark.slow
def test_any_number_of_images_on_any_mesh(run_python, folder):
    splits = [1, 2, 15, 16, 17]
    runs = {name: (splits, *mesh) for name, mesh in MESHES.items()}
    check(*run(run_python, folder, runs), splits)


def run_in_two(run_python, command, cache):
    """Two processes with four devices each."""
    of_process = lambda i, port: [f"--coordinator=localhost:{port}", f"--process_id={i}"]
    arguments = lambda *process: [*command, *of_process(*process)]
    return run_two(run_python, arguments, devices=4, **cache)


@pytest.mark.slow
def test_two_processes_agree_on_a_dtype(run_python, folder):
    command = [
        "-m", "vit_jax", "evaluate", f"--checkpoint={folder / 'weights'}", "--dtype=auto",
        f"--data=set={folder / 'data'}", "--batch_size=2", "--num_processes=2",
    ]  # fmt: skip
    one, other = run_in_two(run_python, command, {"XDG_CACHE_HOME": str(folder / "c")})
    assert "--dtype=auto: ViT-1x16/8 computes in" in one.stderr
    assert "--dtype=auto" not in other.stderr


@pytest.mark.slow
def test_two_processes_agree_with_with_one_and_one_of_them_writes_json(run_python, folder):
    command = [
        "-m", "vit_jax", "evaluate", f"--checkpoint={folder / 'weights'}", "--json",
        f"--data=set={folder / 'data'}", "--batch_size=2", "--kinds=classification,frozen",
        "--config.evals.set_frozen.shots=1,3",
        "--config.evals.set_frozen.neighbours=3", "--num_processes=2",
    ]  # fmt: skip
    cache, page = {"XDG_CACHE_HOME": str(folder / "c")}, folder / "page.html"
    alone = run_python(*command[:-1], devices=8, **cache)
    assert alone.returncode == 0, alone.stderr
    command.append(f"--page={page}")
    one, other = run_in_two(run_python, command, cache)
    assert json.loads(one.stdout) == json.loads(alone.stdout)
    assert other.stdout == ""
    assert "most confused" in page.read_text()
