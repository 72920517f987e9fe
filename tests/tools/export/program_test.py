"""Files written by vit-jax export run where this package cannot be imported."""

import json

import jax
import numpy as np
import pytest
from jax import export

from tests.weights.conftest import randomised
from vit_jax import weights
from vit_jax.models.layers.linear import quantise
from vit_jax.tools.export.program import stablehlo

# The program of docs/export.md, in a process without vit_jax.
PROGRAM = """
import json, sys
sys.modules["vit_jax"] = None  # importing it fails
import jax, numpy as np
from jax import export
folder = sys.argv[1]
program = export.deserialize(open(f"{folder}/program.jax_export", "rb").read())
params = dict(np.load(f"{folder}/weights.npz"))
about = json.load(open(f"{folder}/about.json"))
images = np.load(sys.argv[2])
for batch in (1, len(images)):
    logits = program.call(params, images[:batch])
    assert logits.shape == (batch, about["num_classes"]), logits.shape
np.save(sys.argv[3], logits)
try:
    import vit_jax
except ImportError:
    print(about["class_names"], about["preprocess"]["image_size"], program.platforms)
"""


@pytest.fixture
def toy():
    """A Loaded model in which every parameter affects the output."""
    return randomised(
        "ViT-Ti/4", depth=2, width=16, mlp_dim=24, num_heads=2, num_classes=3, image_size=(12, 8),
        position_embedding="sincos_2d",
    )  # fmt: skip


def test_stablehlo_runs_without_this_package(toy, tmp_path, run_python):
    images = np.random.default_rng(1).normal(size=(5, 12, 8, 3)).astype(np.float32)
    np.save(tmp_path / "images.npy", images)
    stablehlo(toy, tmp_path / "out", ("cpu", "cuda", "tpu"))
    files = [str(tmp_path / name) for name in ("out", "images.npy", "logits.npy")]
    done = run_python("-c", PROGRAM, *files, fresh=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['ant', 'bee', 'cat'] [12, 8] ('cpu', 'cuda', 'tpu')\n"
    logits = np.load(tmp_path / "logits.npy")
    np.testing.assert_allclose(logits, jax.jit(toy.model)(images), atol=1e-5)  # two compilations
    facts = json.loads((tmp_path / "out" / "about.json").read_text())
    assert facts["preprocess"]["mean"] == [0.5, 0.5, 0.5]
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def test_stablehlo_takes_kernels_of_8_bits(toy, tmp_path):
    quantise(toy.model)
    stablehlo(toy, tmp_path / "out", ("cpu",))
    params = dict(np.load(tmp_path / "out" / "weights.npz"))
    assert params["head/kernel"].dtype == np.int8
    program = export.deserialize((tmp_path / "out" / "program.jax_export").read_bytes())
    images = np.random.default_rng(1).normal(size=(2, 12, 8, 3)).astype(np.float32)
    expected = jax.jit(toy.model)(images)
    np.testing.assert_allclose(program.call(params, images), expected, atol=1e-5)


@pytest.mark.parametrize("to", ["huggingface", "stablehlo", "onnx"])
def test_the_command(toy, tmp_path, run_python, to):
    weights.save(toy, tmp_path / "weights", "timm")
    output = f"{tmp_path}/out"
    if to == "onnx":
        pytest.importorskip("onnx")
        output += ".onnx"
    arguments = [f"--checkpoint={tmp_path}/weights", f"--output={output}"]
    arguments += [f"--to={to}"] if to == "stablehlo" else []  # the others are the defaults
    done = run_python("-m", "vit_jax", "export", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    what = {"stablehlo": "a program", "onnx": "a file", "huggingface": "a folder"}[to]
    assert done.stdout.startswith(f"saved {output}, {what} for ")
    first, *lines = done.stdout.splitlines()
    assert first.endswith(": ViT-2x16/4")
    mean = [0.5, 0.5, 0.5]
    takes = f"takes images, float32 [any number, 12, 8, 3]: (pixel / 255 - {mean}) / {mean}"
    assert lines == ([] if to == "huggingface" else [takes])
    if to == "huggingface":
        assert weights.load_with_info(tmp_path / "out").class_names == ("ant", "bee", "cat")
    elif to == "stablehlo":
        assert (tmp_path / "out" / "program.jax_export").stat().st_size < 200_000
    done = run_python("-m", "vit_jax", "export", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert output in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--to=stablehlo", "--batch_size=3"), "--batch_size is for --to=tflite alone"),
        (("--to=onnx", "--platforms=cpu"), "--platforms is for --to=stablehlo alone"),
        (("--to=huggingface", "--dtype=bfloat16"), "--dtype is for --to=stablehlo alone"),
        (("--to=stablehlo", "--platforms="), "--platforms is empty"),
        (("--to=onnx",), "--output="),  # of another ending
        (("--output=docs",), "docs is there already"),
        (("--to=tflite", "--output=x.tflite", "--batch_size=0"), "flag --batch_size=0"),
        (("--output=",), "--output is empty"),
        (("--checkpoint=",), "--checkpoint is empty"),
    ],
)
def test_flags_that_nothing_would_read_are_refused(tmp_path, run_python, arguments, message):
    given = (f"--checkpoint={tmp_path}", f"--output={tmp_path / 'new'}", *arguments)
    done = run_python("-m", "vit_jax", "export", *given)
    assert done.returncode == 1 and done.stderr.startswith(f"error: {message}")
