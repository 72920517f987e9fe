import io

import pytest

from vit_jax.core import command, errors, screen
from vit_jax.core.screen import Screen, format_bytes, format_count, format_duration


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_names_of_files_cannot_drive_the_terminal(capsys):
    """As names of ls and git: a title, a colour or an earlier line could be written by them."""
    name = "\x1b]0;title\x07\x9b2J\rcat.png"
    Screen().say(f"skipped {name}\nand more")
    command.report(errors.UserError(f"{name}: no image"))
    shown = capsys.readouterr()
    assert shown.out == "skipped \\x1b]0;title\\x07\\x9b2J\\rcat.png\nand more\n"
    assert shown.err == "error: \\x1b]0;title\\x07\\x9b2J\\rcat.png: no image\n"


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (80, "step 1 | loss 2 | 3:07 left"),
        (20, "step 1 | loss 2"),
        (16, "step 1 | loss 2"),
        (15, "step 1"),
        (5, "step"),
    ],
)
def test_a_narrow_terminal_shows_the_most_important_parts(monkeypatch, columns, shown):
    """The last column stays empty: a terminal would wrap the line."""
    monkeypatch.setenv("COLUMNS", str(columns))
    out = Terminal()
    Screen(out).update("step 1", "loss 2", "3:07 left")
    assert out.getvalue() == "\r\x1b[K" + shown


def test_a_terminal_rewrites_one_line_and_what_others_write_in_the_end_begins_one():
    out = Terminal()
    screen = Screen(out)
    screen.update("step 1")
    screen.update("step 2")
    screen.say("done")
    screen.update("step 3")
    screen.close()
    screen.close()
    rewritten = "\r\x1b[K"
    assert out.getvalue() == "".join(
        f"{rewritten}{text}" for text in ("step 1", "step 2", "done\n", "step 3\n")
    )


def test_a_file_gets_plain_lines_with_all_parts():
    out = io.StringIO()
    screen = Screen(out)
    screen.update("step 1", "loss 2")
    screen.say("done")
    assert out.getvalue() == "step 1 | loss 2\ndone\n"


def test_a_bar_comes_only_when_it_takes_long(monkeypatch):
    out, now = Terminal(), [0.0]
    monkeypatch.setattr("vit_jax.core.screen.time.monotonic", lambda: now[0])
    screen = Screen(out)
    screen.bar("test", 1, 100)
    now[0] = 1.0
    screen.bar("test", 2, 100)
    assert not out.getvalue()
    now[0] = 10.0
    screen.bar("test", 50, 100)
    assert "test [##########..........] 50/100, 0:10 left" in out.getvalue()
    screen.bar("test", 100, 100)
    assert out.getvalue().endswith("0:10 left\r\x1b[K")
    screen.bar("reading", 1, 2)  # and left
    now[0] = 20.0
    screen.bar("writing", 0, 5)


class NotebookStream(Terminal):
    """ipykernel's stream, known by its module."""


NotebookStream.__module__ = "ipykernel.iostream"


def test_a_bar_ends_in_a_notebook_without_codes_of_a_terminal(monkeypatch):
    out, now = NotebookStream(), [0.0]
    monkeypatch.setattr("vit_jax.core.screen.time.monotonic", lambda: now[0])
    screen = Screen(out)
    screen.bar("test", 1, 100)
    now[0] = 10.0
    screen.bar("test", 50, 100)
    written = out.getvalue().rpartition("\r")[2]
    screen.bar("test", 100, 100)
    assert written and out.getvalue().endswith(f"\r{' ' * len(written)}\r")
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (2 * 2**10, "2 KiB"),
        (1e9, "954 MiB"),
        (1_020 * 2**20, "1,020 MiB"),
        (1.54 * 2**30, "1.54 GiB"),
        (-3 * 2**30, "-3 GiB"),
        (4096 * 2**40, "4,100 TiB"),
    ],
)
def test_bytes(nbytes, text):
    assert format_bytes(nbytes) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (512, "512"),
        (999.7, "1 k"),
        (202_570, "203 k"),
        (999_499, "999 k"),
        (999_960, "1 M"),
        (86_567_656, "86.6 M"),
        (999.96e6, "1 G"),
        (1e12, "1 T"),
        (1.5e15, "1.5 P"),
        (1.5e18, "1,500 P"),
    ],
)
def test_counts(number, text):
    assert format_count(number) == text


@pytest.mark.parametrize(
    ("secs", "text"),
    [(5, "0:05"), (75.4, "1:15"), (7500, "2:05:00"), (200_000, "2d 7:33:20"), (float("nan"), "-")],
)
def test_durations(secs, text):
    assert format_duration(secs) == text


@pytest.mark.parametrize(
    ("share", "expected"),
    [(1, "100.00%"), (0.99996, ">99.99%"), (0.99994, "99.99%"), (0.9976, "99.76%"),
     (19_999 / 20_000, ">99.99%"),
     (0, "0.00%"), (4e-5, "<0.01%"), (0.98056, "98.06%"), (-0.5, "-50.00%")],
)  # fmt: skip
def test_a_percentage_is_all_or_nothing_only_where_it_is(share, expected):
    assert screen.format_percent(share) == expected
    assert (
        screen.format_percent(199 / 200, 0) == ">99%" and screen.format_percent(1 / 200, 0) == "<1%"
    )
    assert screen.format_percent(0.9976, 0) == ">99%" and screen.format_percent(0.994, 0) == "99%"


def test_significant_digits():
    numbers = [5.291e-7, 1234.5, 0.5, 0, 1e10, -2e-12, 2.23e-4, 150]
    expected = ["5.29e-7", "1.23e3", "0.500", "0.00", "1.00e10", "-2.00e-12", "2.23e-4", "150"]
    assert [screen.format_significant(number) for number in numbers] == expected
