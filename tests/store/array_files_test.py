import asyncio
import logging
import sys
from types import SimpleNamespace

import pytest
from absl import logging as absl_logging

from vit_jax.store import array_files


@pytest.fixture
def heard(monkeypatch):
    """Exceptions that reach the previous hook."""
    messages = []
    monkeypatch.setattr(sys, "unraisablehook", lambda u: messages.append(str(u.exc_value)))
    monkeypatch.setattr(array_files, "_print_unraisable", array_files._print_unraisable)
    array_files.mute_orbax()
    return messages


def report(error):
    sys.unraisablehook(SimpleNamespace(exc_value=error, exc_traceback=error.__traceback__))


def test_leftovers_of_failed_reads_are_not_shown(heard):
    report(RuntimeError("Event loop is closed"))
    assert heard == []


def test_other_unraisable_exceptions_are_shown(heard):
    array_files.mute_orbax()  # a second time changes nothing
    report(RuntimeError("a bug"))
    assert heard == ["a bug"]


def test_at_verbosity_info_everything_is_shown(heard, monkeypatch):
    monkeypatch.setattr(absl_logging, "get_verbosity", lambda: absl_logging.INFO)
    report(RuntimeError("Event loop is closed"))
    assert heard == ["Event loop is closed"]


@pytest.mark.parametrize(
    ("verbosity", "shown"), [(absl_logging.WARNING, 0), (absl_logging.INFO, 1)]
)
def test_errors_that_asyncio_found_unfetched_are_muted(
    heard, monkeypatch, caplog, verbosity, shown
):
    """Exceptions of writes in flight when the first of them failed."""
    monkeypatch.setattr(absl_logging, "get_verbosity", lambda: verbosity)
    loop = asyncio.new_event_loop()
    future = loop.create_future()
    future.set_exception(OSError("No space left on device"))
    del future  # it complains when it is collected
    loop.close()
    assert len(caplog.records) == shown
    logging.getLogger("asyncio").warning("bug")
    assert caplog.messages[-1] == "bug"
