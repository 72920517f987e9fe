"""Fixtures for tests that run other projects' code, from checkouts side by side in one folder.

    pytest -m outside --references DIR

A test that requests `reference` is thereby marked `outside` and left out of the usual run. One that
requests `theirs` becomes two: a usual one against goldens, and one marked `outside`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.outside.checkouts import PROGRAMS, Checkout, checkout

GOLDEN = Path(__file__).parent / "golden"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks tests that request a checkout; deselection comes later."""
    if "reference" in getattr(item, "fixturenames", ()):
        item.add_marker("outside")


@pytest.fixture(scope="session")
def reference(request: pytest.FixtureRequest) -> Callable[[str], Checkout]:
    """`reference("big_vision")`: that checkout, at its `path`; skips if missing."""
    return lambda name: checkout(name, request.config.getoption("references"))


@pytest.fixture(scope="session")
def cached() -> dict[Path, dict[str, np.ndarray]]:
    """Outputs of programs in this session, by golden."""
    return {}


@pytest.fixture(params=["golden", pytest.param("checkout", marks=pytest.mark.outside)])
def theirs(
    request: pytest.FixtureRequest, tmp_path: Path, cached: dict[Path, dict[str, np.ndarray]]
) -> Callable[..., dict[str, np.ndarray]]:
    """`theirs("big_vision", "crops", lambda: inputs)`: output arrays of a program, by name.

    The program is programs/crops.py, run on that checkout's code once per session. The usual tests
    take the output recorded by `pytest -m outside --references DIR --regenerate_goldens`; `case`
    distinguishes several goldens of a program.
    """

    def outputs(name: str, program: str, inputs: Callable[[], dict[str, Any]], case: str = ""):
        golden = GOLDEN / f"{program}{case and '-'}{case}.npz"
        if request.param == "golden":
            with np.load(golden) as file:
                return dict(file)
        if golden not in cached:
            run = request.getfixturevalue("reference")(name).run
            cached[golden] = run(PROGRAMS / f"{program}.py", inputs(), tmp_path)
            if request.config.getoption("regenerate_goldens"):
                np.savez_compressed(golden, **cached[golden])
        return cached[golden]

    return outputs
