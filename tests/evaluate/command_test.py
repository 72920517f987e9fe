"""vit-jax evaluate on converted weights, with the preprocessing that they state."""

import csv
import json
import re
import shutil

import jax
import numpy as np
import pytest
from etils import epath
from flax import nnx
from PIL import Image

from tests.messages import refused, told
from vit_jax import config as configs
from vit_jax import models, weights
from vit_jax.core.screen import Screen
from vit_jax.evaluate import comparison, thresholds
from vit_jax.evaluate.__main__ import evaluate
from vit_jax.models import images
from vit_jax.models.layers.linear import quantise
from vit_jax.predict import Predictor
from vit_jax.probes.thresholds import choose
from vit_jax.store import checkpoint_dir
from vit_jax.tools.export import program

ROUNDING = 1e-4  # pixels may differ by a level where a sum lies between two
ABOUT = models.Preprocess(
    (16, 16), 18, (16, 16), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "bicubic",
    longer="down", middle="nearest",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """Three classes of blocks, which make kernels overshoot, in sizes with off-centre crops."""
    rng = np.random.default_rng(0)
    for i in range(9):
        blocks = rng.integers(0, 2, (7, 5 + i % 3, 3), np.uint8) * 255
        place = tmp_path / "data/val" / f"class{i % 3}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(blocks.repeat(7, 0).repeat(7, 1)).save(place / f"{i}.png")
    (tmp_path / "data/train").symlink_to(tmp_path / "data/val")
    return tmp_path / "data"


@pytest.fixture
def timm_folder(tmp_path):
    model = models.create(
        "ViT-Ti/8", depth=1, width=16, mlp_dim=16, num_heads=2, num_classes=3, image_size=16,
        preprocess=ABOUT, norm_epsilon=1e-6, gelu="exact", rngs=nnx.Rngs(0),
    )  # fmt: skip
    model.head.kernel[...] = 3 * jax.random.normal(jax.random.key(1), model.head.kernel.shape)
    weights.save(weights.Loaded(model, "ViT-Ti/8", None, 0), tmp_path / "timm", "timm")
    return tmp_path / "timm"


def loss(model, folder, about):
    files = sorted(folder.glob("val/*/*"))
    logits = model(np.stack([images.load(file, about) for file in files]))
    labels = [int(file.parent.name.removeprefix("class")) for file in files]
    return float(-jax.nn.log_softmax(logits)[np.arange(len(files)), np.array(labels)].mean())


def configured(folder, *overrides):
    given = (f"input.data_dir={folder}", "input.batch_size=4", "mesh.data=1", *overrides)
    return configs.load("configs/finetune.py", ("evals.val.preprocess=weights", *given))


def evaluated(timm_folder, folder, capsys, *overrides):
    results = evaluate(configured(folder, *overrides), epath.Path(timm_folder), Screen())
    return results["val/loss"], capsys.readouterr().out


def test_weights_says_how_images_are_prepared(timm_folder, folder, capsys):
    mean_loss, output = evaluated(timm_folder, folder, capsys)
    model = weights.load(timm_folder)
    assert model.preprocess == ABOUT
    assert mean_loss == pytest.approx(loss(model, folder, ABOUT), abs=ROUNDING)
    assert "resize_small(18, method='bicubic', longer='down')" in output
    assert f"data     val: image_folder, val: 9 examples, 3 classes, in {folder}\n" in output
    assert "(0.485, 0.456, 0.406)" in output
    bilinear = models.Preprocess((16, 16), 18, (16, 16), ABOUT.mean, ABOUT.std)
    assert mean_loss != pytest.approx(loss(model, folder, bilinear), abs=20 * ROUNDING)


def test_colours_are_those_of_the_weights_whatever_the_config_says(timm_folder, folder, capsys):
    ops = "evals.val.preprocess=decode|resize(16, method='bicubic')"
    mean_loss, output = evaluated(timm_folder, folder, capsys, ops)
    whole = models.Preprocess((16, 16), (16, 16), None, ABOUT.mean, ABOUT.std, "bicubic")
    assert mean_loss == pytest.approx(loss(weights.load(timm_folder), folder, whole), abs=ROUNDING)
    assert "as the weights say" in output


def test_pictures_of_a_training_are_left_out(timm_folder, folder, capsys):
    _, output = evaluated(timm_folder, folder, capsys, "evals.look.kind=pictures")
    assert "left out look" in output and "look/" not in output
    with refused("visualize"):
        values = {"evals": {"look": {"kind": "pictures"}}, "total": {"steps": 1}}
        evaluate(configs.resolve(values), epath.Path(timm_folder), Screen())


def test_weights_are_compared_on_data_without_a_config(timm_folder, folder, tmp_path, run_python):
    table, again, page = tmp_path / "table.csv", tmp_path / "again", tmp_path / "new" / "page.html"
    by_class = tmp_path / "by_class.csv"
    shutil.copytree(timm_folder, again)
    done = run_python(
        "-m", "vit_jax", "evaluate", f"--checkpoint={timm_folder}", f"--data={folder}",
        "--kinds=classification,frozen", "--batch_size=4", f"--csv={table}", f"--page={page}",
        f"--class_csv={by_class}",
        "--config.evals.val_frozen.shots=1", "--config.evals.val_frozen.neighbours=3", str(again),
        XDG_CACHE_HOME=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with table.open() as file:
        first, second = csv.DictReader(file)
    assert first.pop("checkpoint") == str(timm_folder) and second.pop("checkpoint") == str(again)
    assert first == second
    model = weights.load(timm_folder)
    mean_loss = loss(model, folder, model.preprocess)
    assert float(first["val_classification/loss"]) == pytest.approx(mean_loss, abs=ROUNDING)
    assert first["val_frozen/examples"] == "9.0"
    head, *rows = (line.split() for line in done.stdout.splitlines()[-len(first) : -3])
    assert head == [str(timm_folder), str(again)]
    assert rows[0][0] == "val_classification/accuracy"
    assert all(one == other for _, one, other in rows)
    wrong = round(9 * (1 - float(first["val_classification/accuracy"])))
    text = page.read_text()
    assert f"{wrong} of {wrong} wrong images" in text
    files = {file.relative_to(folder).as_posix() for file in folder.glob("val/*/*")}
    assert set(re.findall(r"<code>(val/class\d/\d.png)</code>", text)) == files
    assert text.count('title="attention rollout"') == 2 * len(files)
    with by_class.open() as file:
        classes = list(csv.DictReader(file))
    assert [row["name"] for row in classes] == 2 * ["class0", "class1", "class2"]
    recall = np.mean([float(row["recall"]) for row in classes[:3]])
    assert float(first["val_classification/macro_recall"]) == pytest.approx(recall)
    assert recall == pytest.approx(float(first["val_classification/accuracy"]))  # of equal classes


def test_json_is_all_of_the_output(timm_folder, folder, tmp_path, run_python):
    done = run_python(
        "-m", "vit_jax", "evaluate", f"--checkpoint={timm_folder}", f"--data=set={folder}",
        "--batch_size=2", "--json", devices=2, XDG_CACHE_HOME=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    numbers = json.loads(done.stdout)
    assert {"set/accuracy", "set/ece", "set/temperature"} <= set(numbers)
    assert numbers["set/examples"] == 9
    classes = numbers["set/by_class"]
    assert [each["images"] for each in classes] == [3, 3, 3]
    f1 = [each["f1"] for each in classes]
    assert numbers["set/macro_f1"] == pytest.approx(np.mean(f1))


def test_labels_in_a_table(timm_folder, folder, tmp_path, run_python):
    """Two images of each class, in an order of their own, and one class that has no images."""
    lines = ["file,label"]
    for i in (4, 0, 8, 1, 3, 5):
        lines.append(f"val/class{i % 3}/{i}.png,class{i % 3}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    done = run_python(
        "-m", "vit_jax", "evaluate", f"--checkpoint={timm_folder}", "--json",
        f"--data=set={folder / 'labels.csv'}", XDG_CACHE_HOME=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    numbers, model = json.loads(done.stdout), weights.load(timm_folder)
    assert numbers["set/examples"] == 6
    files = [folder / line.partition(",")[0] for line in lines[1:]]
    logits = model(np.stack([images.load(file, ABOUT) for file in files]))
    labels = np.array([int(line[-1]) for line in lines[1:]])
    expected = -jax.nn.log_softmax(logits)[np.arange(6), labels].mean()
    assert numbers["set/loss"] == pytest.approx(float(expected), abs=ROUNDING)
    assert numbers["set/accuracy"] == np.mean(logits.argmax(-1) == labels)


def test_kernels_in_eight_bits(timm_folder, folder):
    config = configured(folder)
    exact = evaluate(config, epath.Path(timm_folder), Screen())
    for dtype in (None, "bfloat16"):
        numbers = evaluate(config, epath.Path(timm_folder), Screen(), int8=True, dtype=dtype)
        assert {name.replace("_int8/", "/") for name in numbers} == set(exact)
        assert all(name.startswith("val_int8/") for name in numbers)
        assert numbers["val_int8/loss"] != exact["val/loss"]
        if dtype is None:
            model = quantise(weights.load(timm_folder))
            rounded = pytest.approx(loss(model, folder, ABOUT), abs=ROUNDING)
            assert numbers["val_int8/loss"] == rounded


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (["--labels=real.json"], ["--labels", "--data"]),
        (["--data=nowhere", "--csv={0}/a.csv"], ["--csv={0}/a.csv"]),  # a folder
        (["--data=nowhere", "--csv={0}/timm/config.json/x/a.csv"], ["/config.json/x/a.csv"]),
        (["--data=nowhere", "--csv=a.csv", "--class_csv=a.csv"], ["csv="]),
        (["--data={0}/data", "{0}/nothing"], ["{0}/nothing"]),
        (["--data=nowhere", "--dtype=fp16"], ["--dtype=fp16", "float32"]),
    ],
)
def test_wrong_flags_are_told_before_anything_is_evaluated(
    timm_folder, folder, tmp_path, run_python, flags, names
):
    for name in ("a.csv", "a.html"):
        (tmp_path / name).mkdir()
    given = [flag.format(tmp_path) for flag in flags]
    done = run_python("-m", "vit_jax", "evaluate", f"--checkpoint={timm_folder}", *given)
    assert done.returncode == 1 and "accuracy" not in done.stdout
    told(done.stderr, *(name.format(tmp_path) for name in names))


def test_dtypes_of_the_computation(timm_folder, folder, capsys):
    losses = {}
    for dtype in (None, "float32", "bfloat16", "auto"):
        numbers = evaluate(configured(folder), epath.Path(timm_folder), Screen(), dtype=dtype)
        losses[dtype] = numbers["val/loss"]
    assert losses[None] == losses["float32"] != losses["bfloat16"]
    assert losses["auto"] in (losses["float32"], losses["bfloat16"])
    (line,) = (x for x in capsys.readouterr().err.splitlines() if "dtype" in x)
    assert line.startswith("--dtype=auto: ViT-1x16/8 computes in ")
    assert "4 images took float32" in line


@pytest.fixture
def checkpoint(timm_folder, tmp_path):
    names = ("class0", "class1", "class2")
    loaded = weights.load_with_info(timm_folder)._replace(class_names=names)
    weights.save(loaded, tmp_path / "run", "checkpoint")
    return checkpoint_dir.find(tmp_path / "run")


@pytest.mark.parametrize(("rule", "recall"), [("f1", None), ("0.6", 0.6)])
def test_thresholds_are_chosen_written_and_used(checkpoint, folder, tmp_path, rule, recall):
    thresholds.write(configured(folder), checkpoint, rule, Screen(quiet=True), ema=False)
    files = sorted(folder.glob("val/*/*"))
    labels = np.array([int(file.parent.name[-1]) for file in files])
    predicted = [classes for _, classes in Predictor(str(checkpoint))(files, top_k=3)]
    p = np.array(
        [[c["probability"] for c in sorted(x, key=lambda c: c["class"])] for x in predicted]
    )
    loaded = weights.load_with_info(checkpoint)
    expected = [choose(p[:, i], labels == i, recall).threshold for i in range(3)]
    assert loaded.thresholds == pytest.approx(expected, abs=1e-5)  # predictions have six digits
    for of_image in predicted:
        for c in of_image:
            if abs(c["probability"] - expected[c["class"]]) > ROUNDING:
                assert c["taken"] == (c["probability"] > expected[c["class"]])
    assert program.about(loaded)["thresholds"] == loaded.thresholds
    weights.save(loaded, tmp_path / "copy", "checkpoint")
    assert weights.load_with_info(tmp_path / "copy").thresholds == loaded.thresholds
    assert weights.load_with_info(checkpoint, head="drop").thresholds is None


def test_thresholds_are_not_of_others(timm_folder, folder, checkpoint):
    quiet = Screen(quiet=True)
    with refused("--thresholds"):
        thresholds.write(configured(folder), epath.Path(timm_folder), "f1", quiet, ema=False)
    for rule in ("f2", "1.5"):
        with refused("--thresholds"):
            thresholds.check_rule(rule)
    assert "taken" not in next(Predictor(str(checkpoint))([*folder.glob("val/*/*")], top_k=1))[1][0]


def test_wrong_images_are_rows(timm_folder, folder):
    scored = {}
    evaluate(configured(folder), epath.Path(timm_folder), Screen(quiet=True), scored=scored)
    by_model = {name: {"m": each} for name, each in scored.items()}
    rows = list(csv.DictReader(comparison.wrong_csv(by_model).splitlines()))
    wrong = scored["val"].scores
    assert len(rows) == (~wrong.correct).sum() > 0
    sure = [float(row["confidence"]) for row in rows]
    assert sure == sorted(sure, reverse=True)
    for row in rows:
        assert row["label"] in row["image"]
        assert row["prediction"] != row["label"]
