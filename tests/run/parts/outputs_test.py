"""What is told of a work directory before a run goes on there."""

import contextlib
from types import SimpleNamespace

import jax.numpy as jnp
import pytest
from etils import epath

from vit_jax.run.parts import outputs


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
    with contextlib.closing(outputs.store(config, workdir)) as store:
        store.save(1, {"step": jnp.zeros(1)}, {"class_names": there}, {})
    source = SimpleNamespace(fingerprint="another", class_names=here)
    changes = outputs.workdir_record(
        config, workdir, source, None, allow_config_change=True
    ).changes
    expected = [f"classes: {each}; the head keeps its rows, whatever they meant" for each in said]
    assert [change for change in changes if change.startswith("classes: ")] == expected
