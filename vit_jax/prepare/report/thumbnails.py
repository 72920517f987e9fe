"""Thumbnails of images of a collection, embedded in a page."""

import base64
import io
import itertools
import warnings
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from PIL import Image, ImageFile

SIDE = 144  # pixels of the longer side
MOST_TRIED = 200  # images, to get enough that can be shown
QUALITY = 78


def of_row(table: pa.Table, row: int, max_pixels: int) -> str | None:
    """A data: URL; None if the image cannot be read or decoded, not even in part."""
    columns = ["path", "offset", "nbytes", "height", "width"]
    one = {name: table[name][row].as_py() for name in columns}
    if not one["path"] or not 0 < one["height"] * one["width"] <= max_pixels:
        return None
    try:
        with open(one["path"], "rb") as file:
            file.seek(one["offset"])
            data = file.read(one["nbytes"])
        return _url(data)
    except Exception:  # damaged images are shown where possible; decoders raise anything
        return None


def _url(data: bytes) -> str:
    before = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(data))
            image.draft("RGB", (SIDE, SIDE))
            small = image.convert("RGB")
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before
    small.thumbnail((SIDE, SIDE))
    out = io.BytesIO()
    small.save(out, "JPEG", quality=QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(out.getvalue()).decode()}"


def mixed(table: pa.Table, reasons: dict[int, str]) -> Iterator[int]:
    """The rows, the reasons in turn; within a reason in the order of the data set."""
    order = table["order"].to_numpy()
    groups: dict[str, list[int]] = {}
    for row, why in reasons.items():
        groups.setdefault(why, []).append(row)
    ordered = [
        np.asarray(rows)[np.argsort(order[rows], kind="stable")]
        for _, rows in sorted(groups.items())
    ]
    for turn in itertools.zip_longest(*ordered):
        yield from (int(row) for row in turn if row is not None)


def some(
    table: pa.Table, rows: Iterable[int], number: int, max_pixels: int
) -> Iterator[tuple[int, str]]:
    """(row, URL) of the first `number` images that can be shown, among the first MOST_TRIED."""
    for row in itertools.islice(rows, MOST_TRIED):
        if number == 0:
            return
        if url := of_row(table, row, max_pixels):
            number -= 1
            yield row, url
