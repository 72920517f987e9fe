"""Every field of a config with unreasonable values: refused with a message, or a run.

Fields are read from the dataclasses, so new ones are covered.
"""

import math
import re
import warnings

import pytest
from etils import epath

from tests.conftest import TINY_RUN
from vit_jax import config as configs
from vit_jax.core.errors import UserError
from vit_jax.run.build import Run

VALUES = (
    0, -1, 1e12, math.nan, math.inf, "", " ", "wrong", None, True, [], (1, "a"), {"x": {"y": 1}},
    10**400, "\u2603 ((((\udc80",
)  # fmt: skip
# A run in which every kind of section has an item.
RUN = TINY_RUN | {"evals": {"val": {"split": "val", "preprocess": "decode|resize(8)"}}}
MIXTURE = {"num_examples": None, "mixture": {"part": {"num_examples": 64}}}
ITEMS = {"evals": "val", "input.mixture": "part"}


def fields():
    """All fields and sections, including those of one evaluation and one component."""
    names_of_all = set()
    for field in configs.fields():
        item = next((i for section, i in ITEMS.items() if field.startswith(section)), "")
        names = field.replace("<name>", item).split(".")
        names_of_all |= {".".join(names[: n + 1]) for n in range(len(names))}
    return sorted(names_of_all)


def values_of_file(field, value):
    """The run's values, with this field's replaced."""
    tree = RUN | ({"input": RUN["input"] | MIXTURE} if "mixture" in field else {})
    *sections, name = field.split(".")
    tree = here = dict(tree)
    for section in sections:
        here[section] = dict(here.get(section, {}))
        here = here[section]
    here[name] = value
    return tree


def resolved(field, value, *, as_text):
    """The run with this value, from the file or the command line; None if refused."""
    values = values_of_file(field, None if as_text else value)
    if as_text and "." in field:
        *sections, name = field.split(".")
        here = values
        for section in sections:
            here = here[section]
        del here[name]
    elif as_text:
        del values[field]
    try:
        return configs.resolve(values, [f"{field}={value}"] if as_text else [])
    except UserError as error:
        assert str(error).endswith((".", "?", ")")) or "\n" in str(error), error
        assert len(str(error)) < 4000, error
        return None


def accepted():
    """(field, value) -> run, for all values that the config accepts; each run once."""
    configs_by_value, seen = {}, set()
    for field in fields():
        for value in VALUES:
            for as_text in (False, True):
                config = resolved(field, value, as_text=as_text)
                if config is not None and repr(config) not in seen:
                    seen.add(repr(config))
                    configs_by_value[field, repr(value)[:20], as_text] = config
    return configs_by_value


@pytest.fixture(scope="module")
def runs():
    return accepted()


def look(config, tmp_path):
    """Whether the run could begin; only UserError is caught."""
    workdir = epath.Path(tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            Run.build(config, workdir)
        except UserError as error:
            assert re.search(r"\w", str(error))
            return False
        finally:
            assert not (tmp_path / "run").exists()
    return True


@pytest.mark.slow
def test_there_are_fields_and_values_enough(runs):
    assert len(fields()) > 120
    assert len(VALUES) == 15
    assert {"seed", "evals", "evals.val", "evals.val.split", "input.mixture.part.weight"} <= set(
        fields()
    )
    assert len({field for field, *_ in runs}) > 60


@pytest.mark.slow
def test_every_run_begins_or_is_refused(runs, tmp_path):
    failed, began = [], 0
    for key, config in runs.items():
        try:
            began += look(config, tmp_path)
        except Exception as error:
            failed.append((*key, f"{type(error).__name__}: {error}"[:200]))
    assert not failed
    assert 0 < began < len(runs)
