"""Fixtures for tests that run other people's code, out of checkouts that lie beside each other.

    pytest -m outside --references DIR

A test that asks for `reference` is marked `outside` by that, and so is left out of the usual run.
"""

from collections.abc import Callable

import pytest

from tests.outside.checkouts import Checkout, checkout


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks what asks for a checkout; deselection comes later."""
    if "reference" in getattr(item, "fixturenames", ()):
        item.add_marker("outside")


@pytest.fixture(scope="session")
def reference(request: pytest.FixtureRequest) -> Callable[[str], Checkout]:
    """`reference("big_vision")`: that checkout, whose folder is its `path`; skips without it."""
    return lambda name: checkout(name, request.config.getoption("references"))
