"""A command's terminal output: plain lines, one line that updates, numbers for people."""

import re
import shutil
import sys
import time
from collections.abc import Container, Sequence
from typing import TextIO

from vit_jax.core.class_names import printable_lines

SEPARATOR = " | "


class Screen:
    """Writes to a terminal or a file; on a terminal the last line can be rewritten in place."""

    BAR_AFTER_SECS = 2.0  # quicker tasks need no bar
    PLAIN_EVERY_SECS = 30.0  # without a terminal a bar is an occasional line

    def __init__(self, out: TextIO | None = None, quiet: bool = False):
        self._out = out or sys.stdout
        self._quiet = quiet
        self._in_notebook = type(self._out).__module__.startswith("ipykernel.")
        self._live = self._out.isatty() or self._in_notebook
        self._open = 0  # characters of the line before the cursor, if it may be rewritten
        self._bar_started: float | None = None
        self._bar_shown = 0.0

    def say(self, text: str = "") -> None:
        """Prints a line that stays."""
        self._write((self._erase() if self._open else "") + printable_lines(text) + "\n")
        self._open = 0

    def note(self, text: str) -> None:
        """Prints a line that stays, in every process: for facts that only this one knows."""
        if self._quiet:
            print(printable_lines(text), file=sys.stderr, flush=True)
        else:
            self.say(text)

    def update(self, *parts: str) -> None:
        """Prints a line that the next one replaces; without a terminal it stays.

        A terminal shows as many parts, from the first, as fit its width.
        """
        if not self._live:
            self.say(SEPARATOR.join(parts))
        else:
            # A wrapped line could not be rewritten.
            width = shutil.get_terminal_size().columns - 1
            lines = (SEPARATOR.join(parts[:n]) for n in range(len(parts), 0, -1))
            text = next((line for line in lines if len(line) <= width), parts[0][:width])
            self._write(self._erase() + text)
            self._open = len(text)

    def _erase(self) -> str:
        """Empties the line. Notebooks know a carriage return, but none of a terminal's codes."""
        return f"\r{' ' * self._open}\r" if self._in_notebook else "\r\x1b[K"

    def close(self) -> None:
        """Ends an unfinished line, so that other output begins on a new line."""
        if self._open:
            self._write("\n")
            self._open = 0

    def bar(self, what: str, done: int, total: int) -> None:
        """Shows the progress of a task that may take long; call it often."""
        now = time.monotonic()
        if self._bar_started is None:
            self._bar_started = self._bar_shown = now
        every = 0.2 if self._live else self.PLAIN_EVERY_SECS
        long_enough = now - self._bar_started > self.BAR_AFTER_SECS
        if 0 < done < total and long_enough and now - self._bar_shown > every:
            self._bar_shown = now
            left = (now - self._bar_started) / done * (total - done)
            filled = 20 * done // total
            shown = f"{'#' * filled}{'.' * (20 - filled)}"
            self.update(f"{what} [{shown}] {done:,}/{total:,}, {format_duration(left)} left")
        if done >= total:
            self._bar_started = None
            if self._open:  # later output of others would be appended to it
                self._write(self._erase())
                self._open = 0

    def _write(self, text: str) -> None:
        if self._quiet:
            return
        try:
            self._out.write(text)
            self._out.flush()
        except OSError:  # the reader of a pipe has gone: no reason to end a long run
            self._quiet = True


def aligned(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, left: Container[int]
) -> list[str]:
    """Lines of a table. The columns whose numbers are in `left` are left-aligned, others right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in [head, *rows]
    ]


def format_bytes(nbytes: float) -> str:
    """1_500_000_000 -> "1.4 GiB"; three digits, in binary units."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(nbytes) >= size:
            return f"{float(f'{nbytes / size:.3g}'):,g} {unit}"
    return f"{nbytes:.0f} B"


def format_count(number: float) -> str:
    """86567656 -> "86.6 M"; for parameters and FLOPs."""
    rounded = float(f"{number:.3g}")  # 999,960 is 1 M, not 1,000 k
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rounded >= size:
            return f"{rounded / size:,.6g} {unit}"
    return f"{rounded:.0f}"


def format_percent(share: float, decimals: int = 2) -> str:
    """0.98056 -> "98.06%"; less than all is never "100%", nor is more than nothing "0%"."""
    least, text = 10**-decimals, f"{share:.{decimals}%}"
    if share > 0 and float(text[:-1]) == 0:
        return f"<{least:.{decimals}f}%"
    if share < 1 and float(text[:-1]) == 100:
        return f">{100 - least:.{decimals}f}%"
    return text


def format_significant(number: float) -> str:
    """1.1e-7 -> "1.10e-7", where Python writes 1.1e-07; three digits."""
    text = f"{number:#.3g}" if abs(number) >= 1e-3 or number == 0 else f"{number:.2e}"
    return re.sub(r"e([+-]?)0*", lambda e: f"e{e[1].strip('+')}", text).removesuffix(".")


def format_duration(secs: float) -> str:
    """75 -> "1:15", 7500 -> "2:05:00", 200000 -> "2d 7:33:20"."""
    if not secs < 1e9:  # also NaN
        return "-"
    days, rest = divmod(round(secs), 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    clock = f"{hours}:{minutes:02}:{seconds:02}" if days or hours else f"{minutes}:{seconds:02}"
    return f"{days}d {clock}" if days else clock
