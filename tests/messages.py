"""Messages that the user reads; their wording stands in messages.json, once for all tests.

    with refused("optim.lr"):  # an error that is raised
        configs.resolve({}, ["optim.lr=fast"])

    told(done.stderr, "optim.lr")  # what a command printed, from "error: " on; or any other text

A test says which field, flag or value the message names; how it is worded is read where it changes:
`pytest --regenerate_goldens` writes the messages of the tests that run.
"""

import collections
import contextlib
import functools
import json
import os
import re
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import filelock
import pytest

from vit_jax.core.errors import UserError

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).with_suffix(".json")  # {file: {test: [message, ...]}}
# What differs from run to run.
_VARYING = (
    (re.compile(rf"{re.escape(str(ROOT))}(?=/)"), "ROOT"),
    (re.compile(r"(/[\w.-]+)*/pytest-of-[\w-]+/pytest-\d+(/popen-gw\d+)?"), "TMP"),
    (re.compile(r"/tmp/tmp\w{8}"), "TMP"),
    (re.compile(r"(?<=://)[0-9a-f]{32}"), "BUCKET"),
    (re.compile(r"(?<=TMP/)([^/\s]*?)\d+(?=[/\s:;,.'\"=)\]]|$)"), r"\1"),
    (re.compile(r"\(process \d+ on [^)]+\)"), "(process N on HOST)"),
    (re.compile(rf"\({re.escape(socket.gethostname())}, pid \d+\)"), "(HOST, pid N)"),
    (re.compile(rf"{re.escape(socket.gethostname())} \(pid \d+\)"), "HOST (pid N)"),
    (re.compile(r"(?<=listen on port )\d+|(?<=\('', )\d+(?=\))"), "PORT"),
    (re.compile(r"(?<=disk has )[\d.,]+ \w+(?= left)"), "N"),
    (re.compile(r"0x[0-9a-f]{6,}"), "0x..."),
    (re.compile(r"(?<=\.)[0-9a-f]{16}(?=\.(new|part)\b)"), "ID"),  # of temporary files
    (re.compile(r'"[0-9a-f]{64}"'), '"HASH"'),  # of trained weights: processors round differently
    (re.compile(r"(?<=chunk at )\d+|(?<=at byte )\d+"), "N"),  # of those read in parallel
    (re.compile(r"(?<=127\.0\.0\.1:)\d+|(?<=localhost:)\d+"), "PORT"),
)

_met: dict[str, list[str]] = collections.defaultdict(list)  # messages of this process, by test


@contextlib.contextmanager
def refused(
    *names: object, error: type[BaseException] = UserError
) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """The block raises `error`, whose message has all `names`, and the golden wording."""
    with pytest.raises(error) as raised:
        yield raised
    _compare(str(raised.value), names)


def told(text: str, *names: object) -> None:
    """Asserts that a printed text has all `names`, and the golden wording.

    What a command printed before its "error: " is left out: its log differs from run to run.
    """
    _compare(text[max(text.find("error: "), 0) :], names)


def _compare(message: str, names: tuple[object, ...]) -> None:
    lacking = [name for name in map(str, names) if name not in message]
    assert not lacking, f"{lacking} is not in the message: {message}"
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0]
    _met[test].append(without_what_varies(message))
    if not regenerating:
        place = len(_met[test]) - 1
        was = golden().get(test, [])[place : place + 1]
        assert _met[test][place:] == was, f"if this is meant: pytest --regenerate_goldens {test}"


def without_what_varies(message: str) -> str:
    """The message, with words for the folders, processes, addresses and ports of this run."""
    for pattern, word in _VARYING:
        message = pattern.sub(word, message)
    return message


regenerating = False  # then nothing is compared, and `write` has what was met


def write() -> None:
    """Puts the messages that this process has met into the golden file, beside those of others."""
    with filelock.FileLock(Path(tempfile.gettempdir()) / "vit_jax_messages.lock"):
        tree = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
        for test, messages in _met.items():
            file, _, name = test.partition("::")
            tree.setdefault(file, {})[name] = messages
        text = json.dumps(tree, indent=1, sort_keys=True, ensure_ascii=False)
        GOLDEN.write_text(text + "\n")


@functools.cache
def golden() -> dict[str, list[str]]:
    """The expected messages, by test."""
    tree = json.loads(GOLDEN.read_text())
    return {f"{file}::{name}": told for file, tests in tree.items() for name, told in tests.items()}
