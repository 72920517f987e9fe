"""Progress within parts: a single one may take minutes, in another process."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from vit_jax.core.screen import Screen, format_count
from vit_jax.tools.prepare.catalogue import ImageRow, RowAndBytes
from vit_jax.tools.prepare.collection import Part

SUFFIX = ".progress"
EVERY_SECS = 2.0


class Unfinished(NamedTuple):
    """Sums over the parts that are being read: images, and fractions of parts."""

    images: int
    parts: float


def reported(images: Iterable[RowAndBytes], part: Part, path: Path) -> Iterator[RowAndBytes]:
    """The same images; the file `path` holds the progress until they end."""
    written = time.monotonic()
    try:
        for number, (row, data) in enumerate(images, 1):
            yield row, data
            if time.monotonic() - written >= EVERY_SECS:
                written = time.monotonic()
                with contextlib.suppress(OSError):  # other writes report a full disk
                    path.write_text(f"{number} {_fraction(part, row, number)}")
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _fraction(part: Part, row: ImageRow, images: int) -> float:
    """The fraction of the part that is read; 0 if it cannot be known before the end."""
    if part.files:
        return min(images / len(part.files), 1.0)
    if row.path != part.path:
        return 0.0
    size = part.nbytes or Path(part.path).stat().st_size - part.offset
    return min(max((row.offset + row.nbytes - part.offset) / size, 0.0), 1.0)


def unfinished(folder: Path) -> Unfinished:
    """The progress of all parts whose catalogues are written to `folder`."""
    images, parts = 0, 0.0
    for path in folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError, ValueError):  # just removed, or half written
            number, fraction = path.read_text().split()
            images, parts = images + int(number), parts + float(fraction)
    return Unfinished(images, parts)


@contextlib.contextmanager
def watched(folder: Path, show: Callable[[Unfinished], None]) -> Iterator[None]:
    """Calls `show` every few seconds in another thread; deletes the notes of killed processes."""
    for path in folder.glob(f"*{SUFFIX}"):
        path.unlink(missing_ok=True)
    over = threading.Event()

    def watch() -> None:
        while not over.wait(EVERY_SECS):
            show(unfinished(folder))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class PartsBar:
    """A bar of the parts that are read, with fractions of unfinished ones; of few, in percent."""

    FEW = 100

    def __init__(self, screen: Screen, title: str, parts: int, done: int) -> None:
        self._screen, self._title, self._parts = screen, title, parts
        self._done, self._images = done, 0
        self._lock = threading.Lock()
        screen.bar(title, 0, max(parts, 1))  # the time counts from now on

    def add(self, images: int) -> None:
        """Counts a part that is done, with so many images."""
        with self._lock:
            self._done += 1
            self._images += images
        self.show(Unfinished(0, 0.0))

    def show(self, unfinished: Unfinished) -> None:
        """Draws the bar."""
        with self._lock:
            total = self._parts if self._parts >= self.FEW else 100
            done = int((self._done + unfinished.parts) / max(self._parts, 1) * total)
            title = f"{self._title}, {format_count(self._images + unfinished.images)} images"
            # At 0 the time left is unknown; the caller shows the end, once.
            if 0 < done < total:
                self._screen.bar(title + (", %" if total != self._parts else ""), done, total)
