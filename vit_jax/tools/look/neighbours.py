"""Finds images by their features.

    vit-jax neighbours features.parquet --checkpoint WEIGHTS IMAGE...
    vit-jax neighbours features.parquet --duplicates --output copies.html --images FOLDER

The table is that of vit-jax embed, and is in memory while it is searched.
"""

import contextlib
import json
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
from vit_jax.core import command, compilation_cache
from vit_jax.core.errors import UserError
from vit_jax.core.screen import Screen
from vit_jax.core.tables import csv_text
from vit_jax.draw import html_page
from vit_jax.embed import ABOUT, FEATURES
from vit_jax.models import inference
from vit_jax.models.images import find
from vit_jax.predict import name_of
from vit_jax.probes import neighbours
from vit_jax.store.workdir import check_output, write_output

THRESHOLD = 0.95  # docs/embed.md has the measurement
ENDINGS = (".csv", ".html")
_ESCAPED = re.compile(r"\\u(dc[89a-f][0-9a-f])")
MOST_SHOWN, SIDE_PX = 200, 160  # images of a page with their neighbours, and a picture


class FeatureTable:
    """A table that vit-jax embed wrote, of N images.

    Args:
      file: the .parquet.

    Attributes:
      about: what the features depend on, by name.
      features: [N, D], in the dtype of the table.

    Raises UserError: no table of embed's, damaged, without rows, of patches, or not finite.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        try:
            with parquet.ParquetFile(file) as table:
                self._read(table)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{file} cannot be read as Parquet: {error}") from error
        except UserError:
            raise
        except (ValueError, KeyError, TypeError) as error:  # of a table that has embed's names
            raise self._unknown_table() from error

    def _unknown_table(self) -> UserError:
        return UserError(f"{self.file} was not written by vit-jax embed: write one by that.")

    def _read(self, table: parquet.ParquetFile) -> None:
        schema = table.schema_arrow
        about = (schema.metadata or {}).get(ABOUT)
        columns = {name: schema.field(name).type for name in schema.names}
        size = getattr(columns.get("features"), "list_size", None)
        if about is None or size is None or "file" not in columns:
            raise self._unknown_table()
        self.about: dict[str, Any] = json.loads(about)
        if self.about["features"] == "patches":
            raise UserError(
                f"{self.file} has the features of patches: an image is compared by one vector. "
                "Write another table by vit-jax embed --features=mean."
            )
        number = table.metadata.num_rows
        if not number:
            raise UserError(f"{self.file} has no rows.")
        self.features = np.empty((number, size), self.about["dtype"])
        names: list[pa.Array] = []
        done = 0
        for part in table.iter_batches(1024, columns=["file", "features"]):
            rows = self.features[done : done + len(part)]
            rows[...] = (
                part["features"].flatten().to_numpy(zero_copy_only=False).reshape(rows.shape)
            )
            if not np.isfinite(rows).all():
                bad = part["file"][int(np.argmin(np.isfinite(rows).all(axis=1)))]
                raise UserError(f"{self.file}: the features of {bad} are not finite.")
            names.append(part["file"])
            done += len(part)
        self._names = pa.chunked_array(names)
        # Pages show these files: a table of others must not choose them from elsewhere.
        elsewhere = pc.match_substring_regex(self._names, r"^/|(^|/)\.\.(/|$)")
        if self._names.null_count or pc.any(elsewhere).as_py():
            raise self._unknown_table()

    def name(self, row: int) -> str:
        """The name of an image, relative to its folder."""
        return self._names[row].as_py()

    def features_of(self, images: Sequence[Path], checkpoint: str) -> np.ndarray:
        """[Q, D], computed as those of the table. UserError for other weights, or a bad image."""
        about = self.about
        if weights.checkpoint_info(checkpoint).fingerprint() != about["weights"]:
            raise UserError(
                f"--checkpoint={checkpoint}: the features of {self.file} are by other weights. "
                "Give those, or write another table by vit-jax embed."
            )
        function = inference.ImageFunction(
            FEATURES[about["features"]],
            {"as trained": weights.load(checkpoint, ema=about["ema"], scan=True)},
            checkpoint,
        )
        size = function.batch_size(len(images))
        named = ((image, image) for image in images)
        return np.stack([values for _, values in function(named, size, inference.BadImages(None))])


class Similar(NamedTuple):
    """An image, and those of the table that are similar to it.

    Attributes:
      image: its name.
      found: (name, cosine), the most similar first.
      file: the image; None of one of the table, whose name says which it is.
    """

    image: str
    found: list[tuple[str, float]]
    file: Path | None = None


def nearest(
    table: FeatureTable,
    images: Sequence[Path],
    checkpoint: str,
    top_k: int,
    progress: Callable[[int, int], None],
) -> list[Similar]:
    """The `top_k` images of the table that are nearest to each of `images`."""
    queries = table.features_of(images, checkpoint)
    found = neighbours.most_similar(queries, table.features, top_k, progress=progress)
    similar = []
    for image, rows, cosines in zip(images, *found, strict=True):
        names = map(table.name, rows.tolist())
        pairs = list(zip(names, cosines.tolist(), strict=True))
        similar.append(Similar(name_of(image), pairs, image))
    return similar


def duplicates(
    table: FeatureTable, threshold: float, progress: Callable[[int, int], None]
) -> list[Similar]:
    """The images of the table that are copies of an earlier one, each with that one."""
    found = neighbours.copies(table.features, threshold, progress=progress)
    return [
        Similar(table.name(row), [(table.name(original), cosine)])
        for row, original, cosine in zip(*(x.tolist() for x in found), strict=True)
    ]


def page(similar: Sequence[Similar], about: str, folder: Path, title: str) -> str:
    """The text of a page that shows images and those similar to them.

    Args:
      similar: up to MOST_SHOWN of them are shown, from the first on.
      about: how they were found, in a line.
      folder: the images of the table.
      title: of the page.
    """

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
            + [picture(file_of(folder, name), name, f"{c:.4f}") for name, c in each.found]
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
    """The command."""
    _check_flags(arguments)
    compilation_cache.use()
    with contextlib.closing(Screen(sys.stderr)) as screen:
        table, *paths = arguments
        if FLAGS.duplicates:
            bar = lambda done, total: screen.bar("pairs", done, total)
            features = FeatureTable(table)
            similar = duplicates(features, FLAGS.threshold, bar)
            about = (
                f"{len(similar):,} of {len(features.features):,} images are copies of another one: "
                f"a cosine of {FLAGS.threshold:g} or more"
            )
            screen.say(about)
        else:
            images = find(paths, sys.stderr)
            bar = lambda done, total: screen.bar("rows", done, total)
            similar = nearest(FeatureTable(table), images, FLAGS.checkpoint, FLAGS.top_k, bar)
            about = "below each its cosine"
    if FLAGS.output is not None:
        _write(Path(FLAGS.output).expanduser(), similar, about, table)
        return
    for each in similar:
        if FLAGS.json:
            found = [{"file": name, "cosine": round(c, 6)} for name, c in each.found]
            print(json.dumps({"file": each.image, "nearest": found}))
        else:
            print("  ".join([each.image, *(f"{cosine:.4f} {name}" for name, cosine in each.found)]))


def _check_flags(arguments: Sequence[str]) -> None:
    if not arguments:
        raise UserError("Which table? Give the .parquet of vit-jax embed behind the flags.")
    if FLAGS.duplicates == bool(arguments[1:]):
        raise UserError(
            "Give images or folders behind the table, to find those nearest to them; or "
            "--duplicates, to find copies among the images of the table."
        )
    for name in ("checkpoint", "top_k") if FLAGS.duplicates else ("threshold",):
        if FLAGS[name].present:
            search = "a search by images" if FLAGS.duplicates else "--duplicates"
            raise UserError(f"--{name} belongs to {search}: leave it out.")
    if not FLAGS.duplicates and FLAGS.checkpoint is None:
        raise UserError("--checkpoint is missing: the weights that the table was made with.")
    if not 0 < FLAGS.threshold < 1:
        raise UserError(f"--threshold={FLAGS.threshold:g}: give one above 0 and below 1.")
    if FLAGS.output is None:
        return
    ending = Path(FLAGS.output).suffix
    if ending not in ENDINGS:
        raise UserError(f"--output={FLAGS.output}: give a name that ends in .csv or .html.")
    if FLAGS.json:
        raise UserError("--json belongs to the screen, --output to a file: give one of them.")
    if ending == ".html" and not (FLAGS.images and Path(FLAGS.images).expanduser().is_dir()):
        raise UserError(
            f"--images={FLAGS.images}: a page shows the images, and the table has their names "
            "alone. Give the folder that vit-jax embed had."
        )
    check_output(epath.Path(FLAGS.output).expanduser())  # before a search of hours


def _write(output: Path, similar: Sequence[Similar], about: str, table: str) -> None:
    if output.suffix == ".html":
        folder = Path(FLAGS.images).expanduser()
        # What may be no copy comes first: it tells whether the threshold is right.
        shown = sorted(similar, key=lambda each: each.found[0][1]) if FLAGS.duplicates else similar
        text = page(shown, about, folder, Path(table).name)
    else:
        rows = [
            (each.image, 1 + i, name, round(cosine, 6))
            for each in similar
            for i, (name, cosine) in enumerate(each.found)
        ]
        text = csv_text([("file", "rank", "nearest", "cosine"), *rows])
    write_output(output, text)


if __name__ == "__main__":
    flags.DEFINE_string("checkpoint", None, "The weights of the table, for IMAGE...")
    flags.DEFINE_integer("top_k", 5, "How many neighbours of an image to show.", lower_bound=1)
    flags.DEFINE_bool("duplicates", False, "Copies among the images of the table.")
    flags.DEFINE_float("threshold", THRESHOLD, "The least cosine of copies.")
    flags.DEFINE_bool("json", False, "One JSON object a line instead of text.")
    flags.DEFINE_string("output", None, "To write instead: a .csv; or a .html, with --images.")
    flags.DEFINE_string("images", None, "The folder of the table's images, for a page.")
    command.run(main, positional=True)
