import numpy as np
import pytest

from tests.messages import refused
from vit_jax.data.sources.table import Synthetic
from vit_jax.run.parts import eval_data, examples, inputs
from vit_jax.run.parts.durations import make_durations


def indices(config, steps):
    source = examples.source(config.input)
    with inputs.train_batches(config.input, source, seed=config.seed, start_step=0) as batches:
        return np.concatenate([next(batches)["index"] for _ in range(steps)])


def test_a_run_goes_over_its_subset(tiny_run):
    """An epoch has 16 of the 64 declared examples: one batch."""
    for override in ("input.subset_fraction=0.25", "input.subset_examples=16"):
        config = tiny_run(override)
        assert examples.declared_examples(config.input) == 16
        assert examples.source(config.input).num_examples == 16
        epochs = indices(config, 2).reshape(2, 16)
        np.testing.assert_array_equal(np.sort(epochs), [np.arange(16)] * 2)


def test_a_subset_by_class(tiny_run):
    config = tiny_run("input.subset_per_class=3")  # out of four classes
    source = examples.source(config.input)
    assert source.num_examples == 12
    assert examples.declared_examples(config.input) is None
    with inputs.train_batches(config.input, source, seed=config.seed, start_step=0) as batches:
        labels = next(batches)["labels"][:12, 0]
    np.testing.assert_array_equal(np.bincount(labels), [3] * 4)


def test_the_declared_number_is_that_of_the_split(tiny_run):
    changed = ("input.source=digits", "input.num_classes=10", "input.subset_examples=100")
    assert examples.source(tiny_run("input.num_examples=1437", *changed).input).num_examples == 100
    with refused("input.num_examples=100"):
        examples.source(tiny_run("input.num_examples=100", *changed).input)


MIXTURE = (
    "input.num_examples=none",
    "input.mixture.large.num_examples=60",
    "input.mixture.large.weight=3",
    "input.mixture.small.num_examples=8",
)


def test_a_mixture_takes_its_shares(tiny_run):
    """Batches of 16 have 12 of the first component, with examples [0, 60), and 4 others."""
    config = tiny_run(*MIXTURE)
    assert (
        examples.declared_examples(config.input) == examples.source(config.input).num_examples == 68
    )
    batches = indices(config, 10).reshape(10, 16)
    np.testing.assert_array_equal((batches < 60).sum(axis=1), [12] * 10)
    small = batches[batches >= 60].reshape(-1, 8)
    np.testing.assert_array_equal(np.sort(small), [np.arange(60, 68)] * 5)
    assert (
        examples.title(config.input, examples.source(config.input)) == "large 75.0% + small 25.0%"
    )


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["input.num_examples=67"], "input.num_examples=67"),
        (["input.mixture.small.weight=0"], "input.mixture.small.weight=0"),
        (["input.mixture.small.source=digits"], "input.mixture.small.num_examples=8"),
        (
            ["input.mixture.small.source=digits", "input.mixture.small.num_examples=none"],
            "input.num_classes=4",
        ),
        (
            ["input.mixture.small.split=x", "input.mixture.small.source=digits"],
            "input.mixture.small.split='x'",
        ),
    ],
)
def test_impossible_mixtures_are_refused(tiny_run, overrides, name):
    with refused(name):
        examples.source(tiny_run(*MIXTURE, *overrides).input)


def test_columns_of_a_table_beside_a_folder(tiny_run, tmp_path):
    """In a mixture, and where a run is only evaluated on the table."""
    for name in ("cat/a.png", "dog/b.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "odd.csv").write_text("what,picture_of\ncat,cat/a.png\ndog,dog/b.png\n")
    sections = ("evals.test", "input.mixture.table")
    for evaluated, other in (sections, sections[::-1]):
        config = tiny_run(
            "input.source=image_folder", f"input.data_dir={tmp_path}", "input.split=all",
            "input.num_examples=none", "input.num_classes=none", "input.mixture.folder.weight=1",
            "input.label=what", "input.image_column=picture_of", "evals.test.split=all",
            f"{evaluated}.source=image_table", f"{evaluated}.data_dir={tmp_path}/odd.csv",
            f"{other}.source=image_folder",
        )  # fmt: skip
        examples.check_fields(config)
        assert examples.source(config.input).class_names == ("cat", "dog")
        test = eval_data.eval_source("evals.test", config.evals["test"], config.input, 0)
        assert test.class_names == ("cat", "dog")


def test_repeats(tiny_run):
    """An epoch of 64 examples in four batches of 16 has 22: 20 three times and two twice."""
    config = tiny_run("input.repeats=3")
    assert examples.declared_examples(config.input) == 64
    assert make_durations(config, num_examples=64).steps_per_epoch == 4
    counts = np.bincount(indices(config, 4), minlength=64)
    np.testing.assert_array_equal(np.bincount(counts), [42, 0, 2, 20])
    for batch in indices(config, 4).reshape(4, 16):
        assert len(set(batch)) < 9
    subset = tiny_run("input.repeats=2", "input.subset_examples=16")
    assert set(np.bincount(indices(subset, 1), minlength=16)) == {0, 2}


def test_classes_of_equal_weight(tiny_run):
    """Digits 0 to 9 in every ten examples, from a split with unequal classes."""
    config = tiny_run(
        "input.source=digits", "input.num_examples=none", "input.num_classes=10",
        "input.balance=class", "input.batch_size=20",
    )  # fmt: skip
    with inputs.train_batches(
        config.input, examples.source(config.input), seed=config.seed, start_step=5
    ) as batches:
        labels = next(batches)["labels"].reshape(2, 10)
    np.testing.assert_array_equal(np.sort(labels), [np.arange(10)] * 2)


def test_examples_are_kept_in_memory(tiny_run, monkeypatch):
    reads = []
    read = Synthetic.read
    monkeypatch.setattr(Synthetic, "read", lambda self, i: (reads.extend(i), read(self, i))[1])
    config = tiny_run("input.cache=ram")
    kept = indices(config, 30)
    assert len(reads) <= 3 * 64  # samples, to know the size, and each example once
    np.testing.assert_array_equal(kept, indices(tiny_run(), 30))
    assert len(reads) >= 30 * 16
    with refused("input.cache_bytes"):
        examples.source(tiny_run("input.cache=ram", "input.cache_bytes=1000").input)


def test_only_record_files_are_copied(tiny_run, tmp_path):
    with refused("input.cache"):
        examples.source(tiny_run(f"input.cache={tmp_path}").input)


MOST_BYTES_RATIO = 1.02  # of all bytes sent to the devices to those of the images


@pytest.mark.parametrize("weighted", [False, True])
def test_labels_of_many_classes_add_little_to_what_is_sent(tiny_run, monkeypatch, weighted):
    """Up to 64 of 21,843 classes beside 224 x 224 pixels; multi-hot, the ratio would be 1.58."""
    monkeypatch.setattr(Synthetic, "max_labels", 64)
    monkeypatch.setattr(Synthetic, "weighted", weighted)
    config = tiny_run(
        "input.num_classes=21843", "input.num_examples=2", "input.batch_size=2",
        "input.preprocess=decode|resize(224)",
    )  # fmt: skip
    source = examples.source(config.input)
    layout = inputs.batch_layout(config.input, source, inputs.mesh(config.mesh))
    with inputs.train_feed(config.input, source, layout, seed=config.seed, start_step=0) as feed:
        batch = next(feed)
    assert batch["labels"].shape == (2, 64)
    assert [x.shape for name, x in batch.items() if name == "label_weights"] == [(2, 64)] * weighted
    sent = sum(array.nbytes for array in batch.values())
    assert sent / batch["image"].nbytes < MOST_BYTES_RATIO
