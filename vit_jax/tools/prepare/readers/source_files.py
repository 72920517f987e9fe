"""The files that --source names."""

import collections
import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vit_jax.core.errors import UserError
from vit_jax.core.image_files import is_hidden

MOST = 1_000_000
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip")
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_SPLIT = re.compile(r"([a-z][a-z0-9_]*)=(.+)")


class SourceFile(NamedTuple):
    """A file of the source."""

    name: str  # its path below the folder that all files are in
    path: Path
    split: str | None  # of its images; None: assigned by their order


def source_files(source: str, suffixes: Sequence[str]) -> list[SourceFile]:
    """The files of a source, sorted by split and path; `suffixes`: of those taken from a folder.

    `source` has files, folders, or patterns such as "shard-{000..127}.tar" and "*.tar", separated
    by commas; "train=..." puts a pattern's files into a split. UserError if a pattern matches no
    file, or too many.
    """
    named = []
    for item in source.split(","):
        if not item:
            raise UserError(f"--source={source} has nothing before or after a comma.")
        match = _SPLIT.fullmatch(item)
        split, pattern = match.groups() if match else (None, item)
        named += [(split or "", path) for path in _files(pattern, suffixes)]
    paths = [path for _, path in named]
    twice = [path for path, count in collections.Counter(paths).items() if count > 1]
    if twice:
        raise UserError(f"--source={source} names {twice[0]} twice.")
    root = os.path.commonpath([path.parent for path in paths])
    return [
        SourceFile(str(path.relative_to(root)), path, split or None)
        for split, path in sorted(named)
    ]


def _files(pattern: str, suffixes: Sequence[str]) -> list[Path]:
    path = Path(pattern)
    if path.is_dir():
        wanted = tuple(suffixes)
        there = [p for p in path.iterdir() if p.is_file() and not is_hidden(p.name)]
        paths = [p for p in there if p.name.lower().endswith(wanted)]
        # Others would be lost in silence: shard-0001.tar.zst among tars.
        packed = [p for p in there if p not in paths and p.stem.lower().endswith(wanted)]
        if packed := sorted(p for p in packed if p.suffix.lower() in _COMPRESSED):
            raise UserError(
                f"--source: {packed[0]} is compressed and not read ({len(packed):,} of {path}): "
                "decompress it, or name the files to read with a pattern."
            )
    elif path.exists():
        paths = [path]
    else:
        named = _ranges(pattern)
        paths = [
            Path(p) for one in named for p in (glob.glob(one) if glob.has_magic(one) else [one])
        ]
        if missing := [p for p in paths if not p.is_file()]:
            raise UserError(
                f"--source: no file {missing[0]} ({len(missing)} of {len(paths)} lack)."
            )
    if not paths:
        raise UserError(f"--source: {pattern} names no files ({', '.join(suffixes)}).")
    return [path.absolute() for path in paths]


def _ranges(pattern: str) -> list[str]:
    """ "a{08..11}" -> a08, a09, a10, a11."""
    match = _RANGE.search(pattern)
    if not match:
        return [pattern]
    first, last = int(match[1]), int(match[2])
    if not 0 <= last - first < MOST:
        raise UserError(f"--source: {match[0]} names no files, or more than {MOST:,}.")
    numbers = [f"{number:0{len(match[1])}}" for number in range(first, last + 1)]
    rest = _ranges(pattern[match.end() :])
    if len(rest) * len(numbers) > MOST:
        raise UserError(f"--source: {pattern} names more than {MOST:,} files.")
    return [pattern[: match.start()] + number + end for number in numbers for end in rest]
