"""How far parts are that are still read: one alone can take minutes, in another process."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from vit_jax.prepare.entry import Member, Part

SUFFIX = ".progress"
EVERY_SECS = 2.0


class Running(NamedTuple):
    """Of all parts that are read now: images, and parts' shares, each from 0 to 1."""

    images: int
    parts: float


def noted(members: Iterable[Member], part: Part, path: Path) -> Iterator[Member]:
    """The members; now and then `path` says how far they are, and at the end it is gone."""
    told = time.monotonic()
    try:
        for images, member in enumerate(members, 1):
            yield member
            if time.monotonic() - told >= EVERY_SECS:
                told = time.monotonic()
                with contextlib.suppress(OSError):  # of a full disk others tell
                    path.write_text(f"{images} {_share(part, member, images)}")
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _share(part: Part, member: Member, images: int) -> float:
    """How much of the part is read; 0 if only its end will tell."""
    if part.files:
        return min(images / len(part.files), 1.0)
    if member.place is None or member.place.path != part.path:
        return 0.0
    size = part.nbytes or Path(part.path).stat().st_size - part.offset
    return min(max((member.place.offset + member.place.nbytes - part.offset) / size, 0.0), 1.0)


def running(folder: Path) -> Running:
    """What the parts whose catalogues will be in `folder` have noted."""
    images, parts = 0, 0.0
    for path in folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError, ValueError):  # just removed, or half written
            number, share = path.read_text().split()
            images, parts = images + int(number), parts + float(share)
    return Running(images, parts)


@contextlib.contextmanager
def watched(folder: Path, tell: Callable[[Running], None]) -> Iterator[None]:
    """Calls `tell` every few seconds, from another thread; what killed ones noted is deleted."""
    for path in folder.glob(f"*{SUFFIX}"):
        path.unlink(missing_ok=True)
    over = threading.Event()

    def watch() -> None:
        while not over.wait(EVERY_SECS):
            tell(running(folder))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
