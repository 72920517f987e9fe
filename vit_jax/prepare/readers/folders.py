"""Files in folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vit_jax.core.errors import UserError
from vit_jax.prepare.entry import Member, Part, Place
from vit_jax.prepare.readers.tars import MAX_MEMBER_BYTES


def members(part: Part) -> Iterator[Member]:
    """The part's files below its folder."""
    for name in part.files:
        path = Path(part.path, name)
        try:
            nbytes = path.stat().st_size
            fault = "too_large" if nbytes > MAX_MEMBER_BYTES else ""
            data = None if fault else path.read_bytes()
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}.") from error
        yield Member(name, data, Place(str(path), 0, nbytes), fault=fault)
