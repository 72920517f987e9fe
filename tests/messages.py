"""Errors that the user reads: what a test asks of them, and their wording, once for each rule.

    with refused("optim.lr"):  # an error that is raised
        configs.resolve({}, ["optim.lr=fast"])

    failed(done, "optim.lr")  # a command's process
    told(done.stdout, "optim.lr")  # any other text

A test says which field, flag or value the message names. Wording is compared for one test of each
rule, a place in the package that raises: messages.json has it, and is read where it changes.
`pytest --regenerate_goldens` writes it for the tests that run.
"""

import contextlib
import functools
import json
import linecache
import os
import re
import socket
import tempfile
import traceback
from pathlib import Path

import filelock
import pytest

from vit_jax.core import errors
from vit_jax.core.errors import UserError, UserFacingError

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "vit_jax"
GOLDEN = Path(__file__).with_suffix(".json")  # {rule: [test, message]}
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
    (re.compile(r"(?<=listen on port )\d+|(?<=--port=)\d{4,}|(?<=\('', )\d+(?=\))"), "PORT"),
    (re.compile(r"(?<=disk has )[\d.,]+ \w+(?= left)"), "N"),
    (re.compile(r"0x[0-9a-f]{6,}"), "0x..."),
    (re.compile(r"(?<=\.)[0-9a-f]{16}(?=\.(new|part)\b)"), "ID"),  # of temporary files
    (re.compile(r'"[0-9a-f]{64}"'), '"HASH"'),  # of trained weights: processors round differently
    (re.compile(r"(?<=chunk at )\d+|(?<=at byte )\d+"), "N"),  # of those read in parallel
    (re.compile(r"(?<=127\.0\.0\.1:)\d+|(?<=localhost:)\d+"), "PORT"),
)

_met = {}  # messages of this process, by rule and test


@contextlib.contextmanager
def refused(*names, error=UserError):
    """The block raises `error`, whose message has all `names`, and the golden wording."""
    with pytest.raises(error) as raised:
        yield raised
    told(str(raised.value), *names)
    if isinstance(raised.value, UserFacingError):
        _compare(raised.value)


def told(text, *names):
    """Asserts that a printed text has all `names`."""
    lacking = [name for name in map(str, names) if name not in text]
    assert not lacking, f"{lacking} is not in the message: {text}"


def failed(done, *names):
    """Asserts that a process ended with status 1, and with a message that has all `names`."""
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    told(done.stderr, *names)


def _compare(error):
    rule, message = rule_of(error), without_what_varies(str(error))
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0]
    if rule is None or test in _met.setdefault(rule, {}):  # of a test's several the first
        return
    _met[rule][test] = message
    its_test, expected = golden().get(rule, (None, None))
    if its_test == test and not regenerating:
        assert message == expected, f"if this is meant: pytest --regenerate_goldens {test}"


def rule_of(error):
    """The place that raised it: file, function, and which of the function's raising lines."""
    frames = [
        (frame.f_code, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename.startswith(f"{PACKAGE}/")
        and frame.f_code.co_filename != errors.__file__
    ]
    if not frames:
        return None
    code, line = frames[-1]
    before = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 : line]
    number = sum("raise " in each or "with reading(" in each for each in before)
    return f"{Path(code.co_filename).relative_to(ROOT)} {code.co_qualname} {number}"


def without_what_varies(message):
    """The message, with words for the folders, processes, addresses and ports of this run."""
    for pattern, word in _VARYING:
        message = pattern.sub(word, message)
    return message


regenerating = False  # then nothing is compared, and `write` has what was met


def write():
    """Puts the messages that this process has met into the golden file.

    A rule keeps its test if that has run elsewhere, or not at all.
    """
    with filelock.FileLock(Path(tempfile.gettempdir()) / "vit_jax_messages.lock"):
        rules = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
        for rule, messages in _met.items():
            test = rules.get(rule, [None])[0]
            if test is None or test in messages:
                test = test or min(messages)
                rules[rule] = [test, messages[test]]
        shown = functools.partial(json.dumps, ensure_ascii=False)
        lines = [f" {shown(rule)}: {shown(rules[rule])}" for rule in sorted(rules)]
        GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")  # a line for each rule


@functools.cache
def golden():
    """[test, message] by rule."""
    return json.loads(GOLDEN.read_text())
