import pytest

from vit_jax.core.errors import UserError
from vit_jax.data.sources.splits import Slice, check_disjoint, parts, resolve

SIZES = {"train": 50_000, "test": 10_000, "tiny": 7}


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("train", ("train", 0, 50_000)),
        ("train[:98%]", ("train", 0, 49_000)),
        ("train[98%:]", ("train", 49_000, 50_000)),
        ("train[100:]", ("train", 100, 50_000)),
        ("train[100:300]", ("train", 100, 300)),
        ("train[-10%:]", ("train", 45_000, 50_000)),
        ("train[:-100]", ("train", 0, 49_900)),
        ("tiny[:50%]", ("tiny", 0, 4)),
        ("tiny[50%:]", ("tiny", 4, 7)),
    ],
)
def test_slices(split: str, expected: tuple[str, int, int]) -> None:
    assert resolve(split, SIZES, where="input") == Slice(*expected)


def test_slices_mean_what_tfds_means() -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    for num_examples in (50, 99, 1437, 50_001):
        info = tfds.core.SplitInfo(
            name="train",
            shard_lengths=[num_examples],
            num_bytes=0,
            filename_template=tfds.core.ShardedFileTemplate(
                data_dir="/nowhere", dataset_name="x", split="train", filetype_suffix="tfrecord"
            ),
        )
        splits = tfds.core.SplitDict([info])
        for text in ("train[:98%]", "train[98%:]", "train[25%:75%]", "train[-33%:]", "train[2:5]"):
            (expected,) = splits[text].file_instructions
            piece = resolve(text, {"train": num_examples}, where="input")
            assert piece.num_examples == splits[text].num_examples
            assert piece.start == expected.skip


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("trian", "Did you mean 'train'"),
        ("train[5:5]", "at least one"),
        ("train[:50001]", "end at 50000"),
        ("train[-50001:]", "at least one"),
        ("train[1/2:]", "not a split"),
        ("train[5]", "not a split"),
        ("", "not a split"),
    ],
)
def test_wrong_splits(split: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        resolve(split, SIZES, where="evals.test")
    assert str(error.value).startswith(f"evals.test.split={split!r}")


def test_several_slices() -> None:
    assert parts("train[:800]+test[5:] + tiny") == ["train[:800]", "test[5:]", "tiny"]
    apart = [Slice("train", 45_000, 45_200), Slice("train", 0, 800), Slice("test", 0, 800), None]
    check_disjoint(apart, "train[...]", where="input")
    with pytest.raises(UserError, match=r"evals\.x\.split=.*'train', from 799 to 800"):
        check_disjoint([*apart, Slice("train", 799, 900)], "a+b", where="evals.x")
