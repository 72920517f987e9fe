import json
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image
from pyarrow import csv, parquet

from tests.messages import refused, told
from vit_jax import models, weights
from vit_jax.core.errors import NonFiniteError, UserError
from vit_jax.core.screen import Screen
from vit_jax.models import inference
from vit_jax.predict import TABLES, Predictor, write_table
from vit_jax.store.workdir import check_output
from vit_jax.train import train

PREDICT = ("-m", "vit_jax", "predict")


def predict(checkpoint, paths, *, top_k, on_bad_image="fail", **options):
    return Predictor(checkpoint, **options)(paths, top_k=top_k, on_bad_image=on_bad_image)


@pytest.fixture
def photo(tmp_path):
    file = tmp_path / "photo.png"
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)
    return file


def test_table_and_json(digits_run, photo, run_python):
    done = run_python(*PREDICT, "--checkpoint", str(digits_run), "--top_k=2", str(photo))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{photo}  ")
    assert done.stdout.count("%") == 2
    (photo.parent / "phone.heic").write_bytes(b"")
    done = run_python(*PREDICT, "--checkpoint", str(digits_run), "--json", str(photo.parent))
    assert ".heic" in done.stderr
    answer = json.loads(done.stdout)
    assert answer["file"] == str(photo)
    assert len(answer["classes"]) == 5
    probabilities = [c["probability"] for c in answer["classes"]]
    assert probabilities == sorted(probabilities, reverse=True)


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_a_table(tmp_path, ending):
    name = 'a, "quoted" cat'
    of = lambda p: [{"class": 1, "name": name, "probability": p},
                    {"class": 0, "name": "dog", "probability": 1 - p}]  # fmt: skip
    found = [(Path("ä.png"), of(0.75)), (Path("b.png"), of(0.5))]
    output = tmp_path / f"predictions{ending}"
    write_table(found, output, len(found), Screen())
    read = {".csv": csv.read_csv, ".parquet": parquet.read_table}[ending]
    assert read(output).to_pylist() == [
        {"file": "ä.png", "rank": 1, "class": 1, "name": name, "probability": 0.75},
        {"file": "ä.png", "rank": 2, "class": 0, "name": "dog", "probability": 0.25},
        {"file": "b.png", "rank": 1, "class": 1, "name": name, "probability": 0.5},
        {"file": "b.png", "rank": 2, "class": 0, "name": "dog", "probability": 0.5},
    ]


@pytest.mark.parametrize("ending", TABLES)
@pytest.mark.parametrize("error", [UserError("b is bad"), PermissionError("b is bad")])
def test_a_table_that_fails_leaves_nothing(tmp_path, ending, error):
    def broken():
        yield Path("a.png"), [{"class": 0, "name": "cat", "probability": 1.0}]
        raise error

    with pytest.raises(type(error), match="b is bad"):  # no error of writing
        write_table(broken(), tmp_path / f"a{ending}", 2, Screen())
    assert not list(tmp_path.iterdir())


def test_a_table_goes_where_a_table_can_be(tmp_path):
    write_table([], tmp_path / "new" / "a.csv", 0, Screen())
    with refused("--output"):
        write_table([], tmp_path / "new" / "a.csv" / "b.csv", 0, Screen())
    for name in ("a.xlsx", "\udcff.csv"):
        with refused("--output", ".parquet"):
            check_output(tmp_path / name, endings=tuple(TABLES))


def test_imports_no_tensorflow_and_no_data(digits_run, photo, run_python):
    code = (
        "import sys; from vit_jax.predict import Predictor\n"
        f"assert list(Predictor({str(digits_run)!r})([{str(photo)!r}], top_k=1))\n"
        "bad = [m for m in sys.modules if m.split('.')[0] == 'tensorflow' or m == 'vit_jax.data']\n"
        "assert not bad, bad"
    )
    done = run_python("-c", code, fresh=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("ema", [False, True])
def test_evaluate_reproduces_the_runs_numbers(digits_run, run_python, ema):
    rows = [json.loads(line) for line in (digits_run / "metrics.jsonl").read_text().splitlines()]
    flags = ("--checkpoint", str(digits_run), "--json", *["--ema"] * ema)
    done = run_python("-m", "vit_jax", "evaluate", *flags)
    assert done.returncode == 0, done.stderr
    numbers, test = json.loads(done.stdout), "test_ema" if ema else "test"
    assert numbers[f"{test}/examples"] == 360
    more = {f"{test}/macro_{share}" for share in ("precision", "recall", "f1")}
    assert {name for name in numbers if name not in rows[-1]} == {*more, f"{test}/by_class"}
    for name in numbers.keys() & rows[-1].keys():
        assert numbers[name] == pytest.approx(rows[-1][name], rel=1e-6), name
    assert rows[-1]["test_ema/loss"] != rows[-1]["test/loss"]


def test_predicts_with_the_ema(digits_run, photo):
    ((_, raw),) = predict(str(digits_run), [str(photo)], top_k=1)
    ((_, averaged),) = predict(str(digits_run), [str(photo)], top_k=1, ema=True)
    assert raw[0]["probability"] != averaged[0]["probability"]


def test_a_checkpoint_without_an_ema_cannot_give_one(toy_npz, tmp_path):
    weights.save(weights.load_with_info(toy_npz(3)), tmp_path / "run", "checkpoint")
    with refused("optim.ema_decay"):
        weights.load(tmp_path / "run", ema=True)


def test_the_best_ema_can_be_kept_and_taken(tiny_run, tmp_path, capsys):
    evaluated = ("evals.test.split=test", "evals.test.preprocess=decode|resize(8)")
    best = "checkpoint.best_metric=test_ema/accuracy"
    with refused("checkpoint.best_metric"):
        train(tiny_run("total.steps=2", best, *evaluated), tmp_path)
    train(tiny_run("total.steps=2", best, *evaluated, "optim.ema_decay=0.9"), tmp_path)
    told = next(line for line in capsys.readouterr().out.splitlines() if "@best" in line)
    assert told.startswith("best     step 2 by test_ema: accuracy ")
    assert weights.load_with_info(f"{tmp_path}@best", ema=True).step == 2


@pytest.fixture
def toy_npz(tmp_path):
    """`toy_npz(num_classes)`: a toy ViT in Google's format, which has no class names."""

    def make(num_classes):
        fields = {"depth": 1, "width": 8, "mlp_dim": 8, "num_heads": 2, "image_size": 8}
        model = models.create("ViT-Ti/4", num_classes=num_classes, rngs=nnx.Rngs(0), **fields)
        kernel = model.head.kernel
        kernel[...] = jnp.full_like(kernel[...], 1e-6)  # as good as equal, but not zeros
        file = tmp_path / "toy.npz"
        weights.save(weights.Loaded(model, "ViT-Ti/4", None, 0), file, "google_npz")
        return str(file)

    return make


@pytest.mark.parametrize(
    ("number", "name", "probability"),
    [(21_843, "n00004475 organism, being", 4.6e-05), (3, "0", 0.333)],
)
def test_classes_of_the_released_heads_have_names(
    toy_npz, photo, capsys, number, name, probability
):
    ((_, (first, *_)),) = predict(toy_npz(number), [str(photo)], top_k=3)
    assert first == {"class": 0, "name": name, "probability": pytest.approx(probability, rel=0.01)}
    said = "The weights do not name their classes; 21,843" in capsys.readouterr().err
    assert said == (number > 3)


def test_non_finite_probabilities_are_refused(toy_npz, photo):
    file = toy_npz(3)
    arrays = dict(np.load(file))
    arrays["head/bias"] = np.full_like(arrays["head/bias"], np.nan)
    np.savez(file, **arrays)
    with refused("photo.png", error=NonFiniteError):
        list(predict(file, [str(photo)], top_k=1))


def test_the_batch_size_changes_nothing(digits_run, photo):
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 256, (9, 7, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photo.parent / f"{number}.png")
    together, one_by_one = (
        list(predict(str(digits_run), [str(photo.parent)], top_k=10, batch_size=b)) for b in (3, 1)
    )
    assert [file.name for file, _ in together] == ["0.png", "1.png", "2.png", "3.png", "photo.png"]
    for (file, left), (_, right) in zip(together, one_by_one, strict=True):
        expected = {c["class"]: c["probability"] for c in right}
        probabilities = {c["class"]: c["probability"] for c in left}
        assert probabilities == pytest.approx(expected, abs=2e-6), file
    with refused("--batch_size"):
        list(predict(str(digits_run), [str(photo)], top_k=1, batch_size=0))


def test_a_cpu_computes_eight_images_at_once(digits_run, photo, monkeypatch):
    sizes = []
    compute = inference.ImageFunction._compute
    seen = lambda self, batch: (sizes.append(len(batch)), compute(self, batch))[1]
    monkeypatch.setattr(inference.ImageFunction, "_compute", seen)
    assert len(list(predict(str(digits_run), [str(photo)] * 17, top_k=1))) == 17
    assert len(list(predict(str(digits_run), [str(photo)] * 17, top_k=1, batch_size=16))) == 17
    assert sizes == [8, 8, 8, 16, 16]


def test_images_are_prepared_while_the_ones_before_are_computed():
    begun, prepared = [], threading.Semaphore(0)

    def prepare(number):
        begun.append(number)
        prepared.release()
        return np.full(1, number)

    images_ahead = inference._ahead(prepare, range(10), 3, threads=2)
    assert next(images_ahead) == 0
    for _ in range(4):
        assert prepared.acquire(timeout=60)
    assert sorted(begun) == [0, 1, 2, 3]  # and no others until the next is taken
    assert next(images_ahead) == 1
    images_ahead.close()
    assert max(begun) <= 4
    assert [int(x[0]) for x in inference._ahead(prepare, range(10), 3, threads=2)] == list(
        range(10)
    )


def test_images_before_a_bad_one_are_predicted(digits_run, photo):
    bad = photo.parent / "zzz.png"
    bad.write_text("no image")
    predictions = predict(str(digits_run), [str(photo)] * 8 + [str(bad)], top_k=1)
    assert len([next(predictions) for _ in range(8)]) == 8
    with refused("zzz.png"):
        next(predictions)


def test_images_that_cannot_be_read_are_passed_over(digits_run, photo, run_python, tmp_path):
    bad = photo.parent / "bad.png"
    bad.write_text("no image")
    flags = ("--checkpoint", str(digits_run), "--on_bad_image=skip")
    done = run_python(*PREDICT, *flags, "--json", str(bad), str(photo), str(bad), str(photo))
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["file"] for row in rows] == [str(photo)] * 2
    ((_, expected),) = predict(str(digits_run), [str(photo)], top_k=5)
    for row in rows:
        assert [c["class"] for c in row["classes"]] == [c["class"] for c in expected]
    told_lines = done.stderr.splitlines()
    assert [str(bad) in line for line in told_lines] == [True, True, False]
    assert told_lines[-1] == "passed over 2 of 4 images"
    table = tmp_path / "out" / "a.csv"
    done = run_python(*PREDICT, *flags, "--top_k=1", "--output", str(table), str(photo), str(bad))
    assert done.returncode == 0, done.stderr
    assert [row["file"] for row in csv.read_csv(table).to_pylist()] == [str(photo)]
    assert f"saved 1 rows to {table}\n" in done.stderr
    done = run_python(*PREDICT, *flags, str(bad))
    assert (done.returncode, done.stdout) == (1, "")
    told(done.stderr, "None of the 1 images")
    with refused("--on_bad_image"):
        list(predict(str(digits_run), [str(photo)], top_k=1, on_bad_image="ignore"))


def test_dtypes_of_the_computation(digits_run, photo, capsys):
    """With kernels in 8 bits; evaluate/command_test.py has those of all bits."""
    by_dtype = {
        dtype: [c["probability"] for c in sorted(classes, key=lambda c: c["class"])]
        for dtype in (None, "float32", "bfloat16", "auto")
        for _, classes in predict(str(digits_run), [str(photo)], top_k=10, int8=True, dtype=dtype)
    }
    assert by_dtype[None] == by_dtype["float32"] != by_dtype["bfloat16"]
    assert by_dtype["bfloat16"] == pytest.approx(by_dtype["float32"], abs=1e-2)
    assert by_dtype["auto"] in (by_dtype["float32"], by_dtype["bfloat16"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"--dtype=auto: {digits_run} computes in ")
    with refused("--dtype"):
        list(predict(str(digits_run), [str(photo)], top_k=1, dtype="float64"))
