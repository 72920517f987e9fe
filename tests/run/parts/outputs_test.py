"""What is told of a work directory before a run goes on there."""

import contextlib
from types import SimpleNamespace

import jax.numpy as jnp
import pytest
from etils import epath

from vit_jax.run.parts import outputs
from vit_jax.store import workdir as workdirs


@pytest.mark.parametrize(
    ("there", "here", "said"),
    [
        (["cat", "dog"], ("cat", "dog"), []),
        (["cat", "dog"], ("aaa", "dog"), ["'aaa' is not among the others, which have 'cat'"]),
        (["cat", "dog"], ("dog", "cat"), ["class 0 is 'dog', and 'cat' among the others"]),
        (None, ("cat", "dog"), []),
    ],
)
def test_classes_that_have_moved_are_named(tmp_path, tiny_run, there, here, said):
    """With --allow_config_change the head goes on with rows of other classes."""
    config, workdir = tiny_run(), epath.Path(tmp_path)
    with contextlib.closing(outputs.store(config.checkpoint, workdir)) as store:
        store.save(1, {"step": jnp.zeros(1)}, {"class_names": there}, {})
    source = SimpleNamespace(fingerprint="another", class_names=here)
    changes = outputs.workdir_record(
        config, workdir, source, None, allow_config_change=True
    ).changes
    expected = [f"classes: {each}; the head keeps its rows, whatever they meant" for each in said]
    assert [change for change in changes if change.startswith("classes: ")] == expected


@pytest.mark.parametrize(
    ("batch_size", "said"),
    [
        (32, ["352 (epoch 5.87)", "the 176 between are skipped"]),
        (8, ["88 (epoch 1.47)", "the 88 between are repeated"]),
    ],
)
def test_another_batch_size_says_which_examples_it_skips_or_repeats(
    tmp_path, tiny_run, batch_size, said
):
    source = SimpleNamespace(fingerprint="", num_examples=60, class_names=None)
    record = lambda size: outputs.workdir_record(
        tiny_run(f"input.batch_size={size}"), epath.Path(tmp_path), source, None, True
    )
    workdirs.write_record(record(16), {})
    assert not record(batch_size).changes[1:]  # nothing is trained yet
    (tmp_path / "checkpoints" / "11").mkdir(parents=True)
    place = record(batch_size).changes[-1]
    assert all(part in place for part in ["step 11 was at example 176 (epoch 2.93)", *said])
