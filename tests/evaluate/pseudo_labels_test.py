"""vit-jax evaluate --pseudo_labels, and training on what it writes."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
from etils import epath
from flax import nnx
from PIL import Image

from tests.messages import refused
from vit_jax import models, weights
from vit_jax.core.screen import Screen
from vit_jax.data.label_index import collect
from vit_jax.data.sources import pseudo_labels as files
from vit_jax.data.sources import table as sources
from vit_jax.evaluate import pseudo_labels
from vit_jax.evaluate.pseudo_labels import Selection, choose
from vit_jax.models import images
from vit_jax.run.parts import examples, inputs, updates
from vit_jax.train import train

ROUNDING = 1e-5
NAMES = ("ape", "bee", "cat", "dog")


def model(num_classes=4):
    made = models.create(
        "ViT-Ti/8", depth=1, width=16, mlp_dim=16, num_heads=2, num_classes=num_classes,
        image_size=16, rngs=nnx.Rngs(0),
    )  # fmt: skip
    if num_classes:
        made.head.kernel[...] = 0.7 * jax.random.normal(jax.random.key(1), made.head.kernel.shape)
    return made


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    path = tmp_path_factory.mktemp("teacher") / "teacher"
    weights.save(weights.Loaded(model(), "ViT-Ti/8", NAMES, 0), path, "timm")
    return path


def blotches(seed):
    small = np.random.default_rng(seed).integers(0, 256, (2, 2, 3), np.uint8)
    return Image.fromarray(small.repeat(8, 0).repeat(8, 1))


@pytest.fixture
def folder(tmp_path):
    """Images of four classes in train, and 30 of no class."""
    for i, name in enumerate((*NAMES, *NAMES)):
        (tmp_path / "data/train" / name).mkdir(parents=True, exist_ok=True)
        blotches(i).save(tmp_path / "data/train" / name / f"{i}.png")
    (tmp_path / "data/unlabelled").mkdir()
    for i in range(30):
        blotches(100 + i).save(tmp_path / "data/unlabelled" / f"{i}.png")
    return tmp_path / "data"


def configured(tiny_run, folder, *overrides, split="unlabelled"):
    return tiny_run(
        "input.source=image_folder", f"input.data_dir={folder}", "input.num_examples=none",
        f"evals.unlabelled.split={split}", "evals.unlabelled.preprocess=weights",
        "evals.unlabelled.batch_size=16", "mesh.data=1", *overrides,
    )  # fmt: skip


def source_of(folder, split="unlabelled", labelled=False):
    return sources.create(
        "image_folder", sources.Request(data_dir=str(folder), split=split, labelled=labelled)
    )


def by_hand(teacher, source):
    """Probabilities of all classes for the images of a source, float [N, C]."""
    loaded = weights.load(teacher)
    of = [images.load(source.describe(i), loaded.preprocess) for i in range(source.num_examples)]
    return np.asarray(jax.nn.softmax(loaded(np.stack(of))))


def test_the_file_has_what_the_model_says(teacher, folder, tiny_run, tmp_path, capsys):
    config = configured(tiny_run, folder)
    path = str(tmp_path / "new" / "a.npz")
    selection = Selection(confidence=0.5, per_class=12, top_k=2)
    numbers = pseudo_labels.write(config, epath.Path(teacher), path, selection, Screen())
    source = source_of(folder)
    expected = by_hand(teacher, source)
    found = files.read(path, where="input")
    confidence, top = expected.max(axis=1), expected.argmax(axis=1)
    kept = np.flatnonzero(confidence >= 0.5)
    assert 5 < len(kept) < 30 and set(found.examples) <= set(kept)
    np.testing.assert_array_equal(found.classes[:, 0], top[found.examples])
    np.testing.assert_array_equal(found.classes, (-expected).argsort(axis=1)[found.examples, :2])
    np.testing.assert_allclose(
        found.probabilities, -np.sort(-expected)[found.examples, :2], atol=ROUNDING
    )
    for c in np.unique(top[kept]):
        assert found.copies[found.classes[:, 0] == c].sum() == 12
    about = found.about
    assert about.fingerprint == source.fingerprint and about.class_names == NAMES
    assert about.written_by["weights"]["path"] == str(teacher)
    assert about.written_by["confidence"] == 0.5 and about.written_by["top_k"] == 2
    output = capsys.readouterr().out
    without = 4 - len(np.unique(top[kept]))
    assert f"{len(found.examples)} of 30 images are kept, sure by 0.5 or more" in output
    assert ("have no image" in output) == (without > 0)
    assert numbers["classes_without_images"] == without
    dropped = 1 - found.probabilities.sum(axis=1).mean()
    assert numbers["dropped_probability"] == pytest.approx(dropped, abs=ROUNDING)
    assert "accuracy" not in numbers and "in the class" not in output


def test_sigmoids_are_no_shares_of_a_whole(folder, tiny_run, tmp_path, capsys):
    made = model()
    made.spec = dataclasses.replace(made.spec, probabilities="sigmoid")
    weights.save(weights.Loaded(made, "ViT-Ti/8", NAMES, 0), tmp_path / "several", "checkpoint")
    step = weights.checkpoint_info(tmp_path / "several").folder
    path = str(tmp_path / "a.npz")
    config = configured(tiny_run, folder)
    numbers = pseudo_labels.write(config, step, path, Selection(confidence=0), Screen())
    assert "dropped_probability" not in numbers
    assert files.read(path, where="input").probabilities.sum(axis=1).max() > 1
    output = capsys.readouterr().out
    assert "dropped" not in output and "divides their sigmoids by the sum" in output


def test_labels_that_images_have_are_compared_and_not_used(teacher, folder, tiny_run, tmp_path):
    """The same images in folders of other classes give the same pseudo-labels."""
    shutil.copytree(folder / "unlabelled", tmp_path / "other" / "train" / "ape")
    for i, name in enumerate(NAMES[1:]):
        (tmp_path / "other" / "train" / name).mkdir()
        blotches(200 + i).save(tmp_path / "other" / "train" / name / "1.png")
    config = configured(tiny_run, tmp_path / "other", split="train")
    path, selection = str(tmp_path / "a.npz"), Selection(confidence=0)
    numbers = pseudo_labels.write(config, epath.Path(teacher), path, selection, Screen(quiet=True))
    found = files.read(path, where="input")
    labelled = source_of(tmp_path / "other", "train", labelled=True)
    expected = by_hand(teacher, labelled)
    np.testing.assert_array_equal(found.classes[:, 0], expected.argmax(axis=1))
    labels = labelled.stored_labels().labels
    assert numbers["accuracy"] == pytest.approx(np.mean(found.classes[:, 0] == labels))
    assert found.num_examples == len(labels) == 33
    # Of images with several labels any is right; without one they do not count.
    first = found.classes[:3, 0]
    several = [[first[0], 3 - first[0]], [(first[1] + 1) % 4], [first[2]], *[[]] * 30]
    with_examples = found._replace(examples=np.arange(33))
    assert pseudo_labels._accuracy(with_examples, collect(several)) == {"accuracy": 2 / 3}
    assert pseudo_labels._accuracy(with_examples, collect([[]] * 33)) == {}


def test_bad_images_get_no_labels(teacher, folder, tiny_run, tmp_path):
    (folder / "unlabelled" / "bad.png").write_bytes(b"no image")
    config = configured(tiny_run, folder, "input.on_bad_image=skip")
    path, selection = str(tmp_path / "a.npz"), Selection(confidence=0)
    numbers = pseudo_labels.write(config, epath.Path(teacher), path, selection, Screen(quiet=True))
    found = files.read(path, where="input")
    assert (numbers["images"], numbers["bad_images"], found.num_examples) == (31, 1, 30)
    source = source_of(folder)
    assert not any(source.describe(int(i)).endswith("bad.png") for i in found.examples)


def test_training_asks_for_the_teachers_probabilities(teacher, folder, tiny_run, tmp_path):
    """Beside labelled images, in their shares; the loss is the cross-entropy to them, by hand."""
    path = str(tmp_path / "a.npz")
    selection = Selection(confidence=0.3, per_class=5, top_k=3)
    config = configured(tiny_run, folder)
    pseudo_labels.write(config, epath.Path(teacher), path, selection, Screen(quiet=True))
    mixture = "input.mixture.unlabelled"
    run = tiny_run(
        "input.source=image_folder", f"input.data_dir={folder}", "input.num_examples=none",
        "input.mixture.labelled.weight=1", f"{mixture}.weight=3", f"{mixture}.split=unlabelled",
        f"{mixture}.pseudo_labels={path}", "input.batch_size=8",
    )  # fmt: skip
    source = examples.source(run.input)
    found = files.read(path, where="input")
    assert source.num_examples == 8 + found.num_examples
    assert (
        examples.declared_examples(run.input) is None
    )  # of the other component nothing is declared
    with inputs.train_batches(run.input, source, seed=run.seed, start_step=0) as batches:
        batch = next(batches)
    is_pseudo = batch["index"] >= 8
    assert is_pseudo.sum() == 6
    np.testing.assert_allclose(batch["label_weights"].sum(axis=1), 1, atol=ROUNDING)
    objective = updates.objective(run, num_classes=4)
    _, targets, _ = objective.inputs(batch)
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(8, 4)).astype(np.float32)
    losses = objective.losses(logits, targets)
    rows = np.repeat(np.arange(len(found.examples)), found.copies)[batch["index"][is_pseudo] - 8]
    soft = np.zeros((6, 4))
    np.put_along_axis(soft, found.classes[rows], found.probabilities[rows], axis=1)
    soft /= soft.sum(axis=1, keepdims=True)
    log_q = np.asarray(jax.nn.log_softmax(logits))[is_pseudo]
    np.testing.assert_allclose(losses[is_pseudo], -(soft * log_q).sum(axis=1), atol=ROUNDING)


@pytest.mark.slow
def test_training_resumes_with_the_file_at_another_place(teacher, folder, tiny_run, tmp_path):
    path, moved = tmp_path / "a.npz", tmp_path / "moved.npz"
    config = configured(tiny_run, folder)
    write = lambda selection: pseudo_labels.write(
        config, epath.Path(teacher), str(path), selection, Screen(quiet=True)
    )
    write(Selection(confidence=0.3, per_class=5))

    def run(labels):
        return tiny_run(
            "input.source=image_folder", f"input.data_dir={folder}", "input.split=unlabelled",
            "input.num_examples=none", f"input.pseudo_labels={labels}", "input.batch_size=8",
            "checkpoint.every_steps=4",
        )  # fmt: skip

    assert (
        examples.declared_examples(run(path).input) == files.read(str(path), where="").num_examples
    )
    first = jax.device_get(train(run(path), tmp_path / "run").params)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "6")
    path.rename(moved)
    with refused("input.pseudo_labels="):
        train(run(path), tmp_path / "run")
    again = jax.device_get(train(run(moved), tmp_path / "run").params)
    jax.tree.map(np.testing.assert_array_equal, first, again)
    write(Selection(confidence=0.3, per_class=6))
    with refused("fingerprint"):
        train(run(path), tmp_path / "run")


def test_what_is_wrong_is_told(folder, teacher, tiny_run, tmp_path):
    path = str(tmp_path / "a.npz")
    write = lambda config, selection: pseudo_labels.write(
        config, epath.Path(teacher), path, selection, Screen(quiet=True)
    )
    config = configured(tiny_run, folder)
    with refused("--confidence"):
        write(config, Selection(confidence=1))
    with refused("--data", "--split"):
        write(tiny_run("evals.test.split=test"), Selection())
    assert not (tmp_path / "a.npz").exists()
    headless = tmp_path / "headless"
    weights.save(weights.Loaded(model(0), "ViT-Ti/8", None, 0), headless, "timm")
    with refused():
        pseudo_labels.write(config, epath.Path(headless), path, Selection(), Screen(quiet=True))
    damaged = model()
    damaged.head.kernel[...] = np.nan
    weights.save(weights.Loaded(damaged, "ViT-Ti/8", NAMES, 0), tmp_path / "nan", "timm")
    with refused():
        pseudo_labels.write(
            config, epath.Path(tmp_path / "nan"), path, Selection(), Screen(quiet=True)
        )


def test_a_file_of_others_is_not_overwritten(tmp_path):
    file = epath.Path(tmp_path / "a.npz")
    pseudo_labels.check_file(file)
    np.savez(file, weights=np.arange(3))
    for each in (file, epath.Path("gs://bucket/a.npz")):
        with refused("--pseudo_labels"):
            pseudo_labels.check_file(each)


def test_the_command_needs_no_config(teacher, folder, tmp_path, run_python):
    path = tmp_path / "a.npz"
    done = run_python(
        "-m", "vit_jax", "evaluate", f"--checkpoint={teacher}", f"--data={folder}",
        "--split=unlabelled", f"--pseudo_labels={path}", "--confidence=0", "--top_k=1", "--json",
        devices=2, XDG_CACHE_HOME=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kept_images"] == 30
    hard = files.read(str(path), where="input")
    assert hard.classes.shape == (30, 1)
    pseudo_labels.check_file(epath.Path(path))  # it is ours: it may be written again


def test_each_class_that_has_images_gets_its_number_as_by_hand():
    rng = np.random.default_rng(0)
    classes = rng.choice(5, 1000, p=[0.6, 0.3, 0.08, 0.02, 0])
    sure = rng.integers(0, 50, 1000).astype(np.float32) / 50  # many are equal
    copies = choose(classes, sure, Selection(0.4, 400))
    for c in range(5):
        of_class = [i for i in range(1000) if classes[i] == c and sure[i] >= np.float32(0.4)]
        of_class.sort(key=lambda i: (-sure[i], i))
        expected = np.zeros(1000, int)
        for turn in range(400 if of_class else 0):
            expected[of_class[turn % len(of_class)]] += 1
        np.testing.assert_array_equal(np.where(classes == c, copies, 0), expected)
