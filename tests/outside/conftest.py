"""Fixtures for tests that run other people's code, out of checkouts that lie beside each other.

    pytest -m outside --references DIR

A test that asks for `reference` is marked `outside` by that, and so is left out of the usual run.
One that asks for `theirs` is two tests: a usual one against goldens, and one marked `outside`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.outside.checkouts import PROGRAMS, Checkout, checkout

GOLDEN = Path(__file__).parent / "golden"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks what asks for a checkout; deselection comes later."""
    if "reference" in getattr(item, "fixturenames", ()):
        item.add_marker("outside")


@pytest.fixture(scope="session")
def reference(request: pytest.FixtureRequest) -> Callable[[str], Checkout]:
    """`reference("big_vision")`: that checkout, whose folder is its `path`; skips without it."""
    return lambda name: checkout(name, request.config.getoption("references"))


@pytest.fixture(scope="session")
def found() -> dict[Path, dict[str, np.ndarray]]:
    """What programs gave in this session, by golden."""
    return {}


@pytest.fixture(params=["golden", pytest.param("checkout", marks=pytest.mark.outside)])
def theirs(
    request: pytest.FixtureRequest, tmp_path: Path, found: dict[Path, dict[str, np.ndarray]]
) -> Callable[..., dict[str, np.ndarray]]:
    """`theirs("big_vision", "crops", lambda: inputs)`: what a program makes of arrays, by name.

    The program is programs/crops.py, run on the code of that checkout, once in a session. The usual
    tests take what it gave when the goldens were written, by `pytest -m outside --references DIR
    --regenerate_goldens`; `case` tells several goldens of a program apart.
    """

    def outputs(name: str, program: str, inputs: Callable[[], dict[str, Any]], case: str = ""):
        golden = GOLDEN / f"{program}{case and '-'}{case}.npz"
        if request.param == "golden":
            with np.load(golden) as file:
                return dict(file)
        if golden not in found:
            run = request.getfixturevalue("reference")(name).run
            found[golden] = run(PROGRAMS / f"{program}.py", inputs(), tmp_path)
            if request.config.getoption("regenerate_goldens"):
                np.savez_compressed(golden, **found[golden])
        return found[golden]

    return outputs
