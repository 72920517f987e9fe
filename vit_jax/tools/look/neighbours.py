"""Finds similar images and duplicates by their features.

    vit-jax neighbours features.parquet --checkpoint WEIGHTS IMAGE...
    vit-jax neighbours features.parquet --duplicates --output copies.html --images FOLDER

The table is that of vit-jax embed, and is in memory while it is searched.
"""

import contextlib
import functools
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from absl import flags
from etils import epath
from pyarrow import parquet

from vit_jax import weights
from vit_jax.core import command, compilation_cache, errors
from vit_jax.core.class_names import printable
from vit_jax.core.errors import UserError
from vit_jax.core.screen import Screen
from vit_jax.core.tables import csv_text
from vit_jax.draw import html_page
from vit_jax.embed import ABOUT, DTYPES, FEATURES
from vit_jax.models import inference
from vit_jax.models.images import find
from vit_jax.predict import name_of
from vit_jax.probes import neighbours
from vit_jax.store.workdir import check_output, write_output

THRESHOLD = 0.95  # docs/embed.md has the measurement
_ESCAPED = re.compile(r"\\u(dc[89a-f][0-9a-f])")
MOST_SHOWN, SIDE_PX = 200, 160  # images of a page with their neighbours, and a picture


class FeatureTable:
    """A .parquet of vit-jax embed in memory: the settings of embed, and features [N, D]."""

    def __init__(self, file: str) -> None:
        self.file = file
        cure = "Write a table by vit-jax embed, not with --features=patches."
        with errors.reading(file, cure=cure), parquet.ParquetFile(file) as table:
            schema = table.schema_arrow
            columns = {name: schema.field(name).type for name in schema.names}
            size = getattr(columns.get("features"), "list_size", None)
            about = json.loads((schema.metadata or {}).get(ABOUT, b"{}"))
            known = isinstance(about, dict) and about.get("dtype") in DTYPES
            if size is None or not known or not {"file", "features"} <= columns.keys():
                raise ValueError("no vector for each image")
            self.about: dict[str, Any] = about
            self.features = np.empty((table.metadata.num_rows, size), about["dtype"])
            names: list[pa.Array] = []
            done = 0
            for part in table.iter_batches(1024, columns=["file", "features"]):
                rows = self.features[done : done + len(part)]
                numbers = part["features"].flatten().to_numpy(zero_copy_only=False)
                rows[...] = numbers.reshape(rows.shape)
                if not np.isfinite(rows).all():
                    bad = part["file"][int(np.argmin(np.isfinite(rows).all(axis=1)))]
                    raise ValueError(f"features of {bad} are not finite")
                names.append(part["file"])
                done += len(part)
            self._names = pa.chunked_array(names, pa.string())
            # Pages show these files: a table of others must not choose them from elsewhere.
            elsewhere = pc.match_substring_regex(self._names, r"^/|(^|/)\.\.(/|$)")
            if not done or self._names.null_count or pc.any(elsewhere).as_py():
                raise ValueError("no rows, or names outside of the folder of images")

    def name(self, row: int) -> str:
        """The name of an image, relative to its folder."""
        return self._names[row].as_py()

    def features_of(self, images: Sequence[Path], checkpoint: str) -> np.ndarray:
        """[Q, D], computed as those of the table."""
        about = self.about
        if weights.checkpoint_info(checkpoint).fingerprint() != about["weights"]:
            rule = f"has other weights than those of {self.file}."
            raise UserError(rule, field="--checkpoint", value=checkpoint)
        function = inference.ImageFunction(
            FEATURES[about["features"]],
            {"as trained": weights.load(checkpoint, ema=about["ema"], scan=True)},
            checkpoint,
        )
        size = function.batch_size(len(images))
        named = ((image, image) for image in images)
        return np.stack([values for _, values in function(named, size, inference.BadImages(None))])


class Similar(NamedTuple):
    """An image, and images of the table that are similar to it."""

    image: str  # name
    matches: list[tuple[str, float]]  # (name, cosine), the most similar first
    file: Path | None = None  # the image, unless it is one of the table


def nearest(
    table: FeatureTable,
    images: Sequence[Path],
    checkpoint: str,
    top_k: int,
    progress: Callable[[int, int], None],
) -> list[Similar]:
    """The `top_k` images of the table that are nearest to each of `images`."""
    queries = table.features_of(images, checkpoint)
    nearest_rows = neighbours.most_similar(queries, table.features, top_k, progress=progress)
    similar = []
    for image, rows, cosines in zip(images, *nearest_rows, strict=True):
        matches = zip(map(table.name, rows.tolist()), cosines.tolist(), strict=True)
        similar.append(Similar(name_of(image), list(matches), image))
    return similar


def duplicates(
    table: FeatureTable, threshold: float, progress: Callable[[int, int], None]
) -> list[Similar]:
    """Copies in the table, each with the earlier image that it is a copy of."""
    copies = neighbours.copies(table.features, threshold, progress=progress)
    return [
        Similar(table.name(row), [(table.name(original), cosine)])
        for row, original, cosine in zip(*(x.tolist() for x in copies), strict=True)
    ]


def page(similar: Sequence[Similar], about: str, folder: Path, title: str) -> str:
    """The text of a page of the first MOST_SHOWN images of a folder and those similar to them."""

    def picture(file: Path, name: str, note: str) -> dict[str, Any]:
        try:
            url = html_page.thumbnail_url(file.read_bytes(), SIDE_PX, upright=True)
        except OSError:
            url = None
        return {"url": url, "name": name, "note": note}

    return html_page.render(
        "tools/look/neighbours.html",
        title=title,
        subtitle=about,
        number=len(similar),
        shown=[
            [picture(each.file or file_of(folder, each.image), each.image, "")]
            + [picture(file_of(folder, name), name, f"{c:.4f}") for name, c in each.matches]
            for each in similar[:MOST_SHOWN]
        ],
    )


def file_of(folder: Path, name: str) -> Path:
    """The file of a name of the table, where bytes that are not UTF-8 are escaped (`name_of`)."""
    if (folder / name).exists():
        return folder / name
    return folder / _ESCAPED.sub(lambda match: chr(int(match[1], 16)), name)


FLAGS = flags.FLAGS


def main(arguments: list[str]) -> None:
    output = _output(arguments)
    compilation_cache.use()
    with contextlib.closing(Screen(sys.stderr)) as screen:
        table, *paths = arguments
        if FLAGS.duplicates:
            features = FeatureTable(table)
            bar = functools.partial(screen.bar, "pairs")
            similar = duplicates(features, FLAGS.threshold, bar)
            about = (
                f"{len(similar):,} of {len(features.features):,} images are copies of another one: "
                f"a cosine of {FLAGS.threshold:g} or more"
            )
            screen.say(about)
        else:
            images = find(paths, sys.stderr)
            bar = functools.partial(screen.bar, "rows")
            similar = nearest(FeatureTable(table), images, FLAGS.checkpoint, FLAGS.top_k, bar)
            about = "below each its cosine"
    if output is not None:
        _write(output, similar, about, table)
        return
    for each in similar:
        if FLAGS.json:
            matches = [{"file": name, "cosine": round(c, 6)} for name, c in each.matches]
            print(json.dumps({"file": each.image, "nearest": matches}))
        else:
            shown = (f"{cosine:.4f} {name}" for name, cosine in each.matches)
            print(printable("  ".join([each.image, *shown])))


def _output(arguments: Sequence[str]) -> epath.Path | None:
    duplicates, output = FLAGS.duplicates, FLAGS.output
    if not arguments or duplicates == bool(arguments[1:]):
        raise UserError("Give the .parquet of vit-jax embed, then images or --duplicates.")
    rule = f"cannot be with --duplicates={duplicates}."
    command.refuse_flags("checkpoint", "top_k", when=duplicates, rule=rule)
    command.refuse_flags("threshold", when=not duplicates, rule=rule)
    command.refuse_flags("json", when=output, rule="cannot be with --output.")
    if output is None:
        return None
    file = check_output(output, endings=(".csv", ".html"))
    if file.suffix == ".html":
        with errors.reading("--images", FLAGS.images):
            os.listdir(FLAGS.images or "")
    return file


def _write(output: epath.Path, similar: Sequence[Similar], about: str, table: str) -> None:
    if output.suffix == ".html":
        # What may be no copy comes first: it tells whether the threshold is right.
        if FLAGS.duplicates:
            similar = sorted(similar, key=lambda each: each.matches[0][1])
        text = page(similar, about, Path(FLAGS.images), Path(table).name)
    else:
        rows = [
            (each.image, 1 + i, name, round(cosine, 6))
            for each in similar
            for i, (name, cosine) in enumerate(each.matches)
        ]
        text = csv_text([("file", "rank", "nearest", "cosine"), *rows])
    write_output(output, text)


if __name__ == "__main__":
    flags.DEFINE_string("checkpoint", None, "The table's weights, to search by images.")
    flags.DEFINE_integer("top_k", 5, "Number of neighbours of an image to show.", lower_bound=1)
    flags.DEFINE_bool("duplicates", False, "Find copies among the images of the table.")
    flags.DEFINE_float("threshold", THRESHOLD, "The least cosine of copies.", 0.01, 0.9999)
    flags.DEFINE_bool("json", False, "Print one JSON object a line instead of text.")
    flags.DEFINE_string("output", None, "File to write instead: a .csv; or a .html, with --images.")
    flags.DEFINE_string("images", None, "The folder of the table's images, for a page.")
    flags.register_multi_flags_validator(
        ["checkpoint", "duplicates"],
        lambda values: values["checkpoint"] or values["duplicates"],
        "--checkpoint is missing: with it, images are searched for; else give --duplicates.",
    )
    command.run(main, positional=True)
