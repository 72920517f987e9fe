"""Computes features of images: vit-jax embed FOLDER --checkpoint WEIGHTS --output features.parquet

A row is an image. Memory does not depend on their number: the table is written in parts, each with
the images of one stretch of the folder's list, which become its row groups. A killed command leaves
the finished ones in a folder beside the table, and the same command goes on behind them. What the
features depend on is in the metadata of the table and of every part; others are not mixed into it.
"""

import contextlib
import functools
import itertools
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
from absl import flags
from etils import epath
from pyarrow import parquet

from vit_jax import __version__, weights
from vit_jax.core import command, compilation_cache
from vit_jax.core.errors import NonFiniteError, UserError, reading, renaming, writing
from vit_jax.core.files import atomic_file
from vit_jax.core.screen import Screen
from vit_jax.core.signals import exit_immediately_on_signal
from vit_jax.data.source import Request
from vit_jax.data.sources.image_folder import ImageFolder
from vit_jax.data.sources.splits import ALL
from vit_jax.models import inference
from vit_jax.models.images import check_local
from vit_jax.parallel.mesh import use_cores_as_devices
from vit_jax.predict import name_of
from vit_jax.store.workdir import check_output
from vit_jax.store.workdir_lock import try_lock

ABOUT = b"vit_jax"  # the key of the metadata: JSON
PART = b"part"  # the key of a part's number
DAMAGE = (pa.ArrowException, OSError, json.JSONDecodeError, UnicodeDecodeError)  # of a table
MOST_IMAGES_A_PART, PART_BYTES = 1024, 64 * 2**20  # whichever is less


def _class_token(model: Any, images: jax.Array) -> jax.Array:
    if not _layout(model).class_token:
        raise UserError("is not in this model: give mean.", field="--features", value="class_token")
    return model.tokens(images)[:, 0]


def _patches(model: Any, images: jax.Array) -> jax.Array:
    return model.tokens(images)[:, -_layout(model).num_patches :]


def _mean(model: Any, images: jax.Array) -> jax.Array:
    return jnp.mean(_patches(model, images), axis=1, dtype=jnp.float32)


def _layout(model: Any) -> Any:
    return model.spec.token_layout(model.preprocess.image_size)


# (model, [B, H, W, 3]) -> [B, D]; or [B, N, D] of the N patches, row by row.
FEATURES: Mapping[str, Callable[[Any, jax.Array], jax.Array]] = {
    "pre_logits": lambda model, images: model.features(images),
    "class_token": _class_token,
    "mean": _mean,
    "patches": _patches,
}
DTYPES = {"float32": pa.float32(), "float16": pa.float16()}


def embed(
    folder: str,
    checkpoint: str,
    output: Path,
    *,
    features: str = "pre_logits",
    dtype: str = "float32",
    split: str = ALL,
    ema: bool = False,
    batch_size: int | None = None,
    on_bad_image: str = "fail",
    screen: Screen,
) -> None:
    """Writes a table of the features of a folder's images, or what is lacking of it.

    Raises:
      UserError: no images, no such weights; or a table, or parts, of others are there already.
      NonFiniteError: features are not finite.
    """
    check_output(output, endings=(".parquet",))
    inference.check_batch_size(batch_size)
    bad = inference.BadImages(on_bad_image, screen)
    info = weights.checkpoint_info(checkpoint)
    check_local(folder)
    with renaming("images.split", "--split"):
        source = ImageFolder(Request(split, folder, labelled=False, where="images"))
    for note in source.notes:
        screen.say(note)
    use_cores_as_devices(4 * info.parameters(ema=ema))
    model = weights.load(checkpoint, ema=ema, scan=True)
    pixels = jax.ShapeDtypeStruct(
        (1, *model.preprocess.image_size, model.spec.channels), jnp.float32
    )
    shape = jax.eval_shape(functools.partial(FEATURES[features], model), pixels).shape[1:]
    fitting = PART_BYTES // (4 * math.prod(shape))
    # A power of 2: parts then end where batches do.
    stretch = min(MOST_IMAGES_A_PART, 1 << max(0, fitting.bit_length() - 1))
    about = {
        "weights": info.fingerprint(),
        "ema": ema,
        "model": str(model.spec),
        "preprocess": str(model.preprocess),
        "features": features,
        "dtype": dtype,
        "images": source.fingerprint,
        "split": split,
        "images a part": stretch,
        "version": __version__,
    }
    columns = _Columns(source, shape, dtype, checkpoint)
    table = _Table(output, columns.schema.with_metadata({ABOUT: json.dumps(about)}))
    if table.is_complete():
        screen.say(f"{output} is complete already")
        return
    with table.lock():
        done, total = min(stretch * table.open_parts(), source.num_examples), source.num_examples
        if done:
            bad.number = done - table.num_rows
            screen.say(
                f"goes on behind {done:,} of {total:,} images, whose rows are in {table.folder}"
            )
        function = inference.ImageFunction(
            FEATURES[features],
            {"as trained": model},
            checkpoint,
            batch_size=batch_size,
            devices=jax.local_devices(),
        )

        def rows() -> Iterator[tuple[int, np.ndarray]]:
            """(place, its features) of the images that are left."""
            images = ((place, Path(source.describe(place))) for place in range(done, total))
            for place, values in function(images, function.batch_size(total), bad):
                screen.bar("images", place + 1 - done, total - done)
                yield place, values

        with exit_immediately_on_signal(
            f"before the end; what is finished is in {table.folder}: start it again."
        ):
            for number, part in itertools.groupby(rows(), key=lambda row: row[0] // stretch):
                table.write_part(number, columns.of(list(part)))
            bad.conclude(total)
            table.join()
    screen.say(f"saved {table.num_rows:,} rows to {output}")


class _Columns:
    """The columns of a table: files, classes where all images are in folders of them, features."""

    def __init__(
        self, source: ImageFolder, shape: tuple[int, ...], dtype: str, checkpoint: str
    ) -> None:
        self._source, self._dtype, self._checkpoint = source, dtype, checkpoint
        features = DTYPES[dtype]
        for side in reversed(shape):
            features = pa.list_(features, side)
        # Without classes the folder itself is one, without a name.
        self._has_classes = "" not in source.class_names
        self._labels = source.stored_labels().labels
        classes = [("class", pa.int32()), ("name", pa.string())] if self._has_classes else []
        self.schema = pa.schema([("file", pa.string()), *classes, ("features", features)])

    def of(self, part: Sequence[tuple[int, np.ndarray]]) -> list[pa.Array]:
        """(place in the source, features) of each row -> the columns. NonFiniteError."""
        places = np.array([place for place, _ in part])
        files = [Path(self._source.describe(place)) for place in places]
        with np.errstate(over="ignore"):  # what is above float16 becomes infinite
            values = np.stack([x for _, x in part]).astype(self._dtype)
        for file, finite in zip(files, np.isfinite(values), strict=True):
            if not finite.all():
                raise NonFiniteError(
                    f"{file}: {self._checkpoint} gives features that are not finite in "
                    f"{self._dtype}: --dtype=float32 holds larger ones."
                )
        names = [name_of(file.relative_to(self._source.location)) for file in files]
        features = pa.array(values.reshape(-1))
        for side in reversed(values.shape[1:]):
            features = pa.FixedSizeListArray.from_arrays(features, side)
        if not self._has_classes:
            return [pa.array(names), features]
        labels = self._labels[places]
        class_names = [self._source.class_names[label] for label in labels]
        return [pa.array(names), pa.array(labels), pa.array(class_names), features]


class _Table:
    """A table that is written in parts, which are in a folder beside it until all are there."""

    def __init__(self, file: Path, schema: pa.Schema) -> None:
        self._file, self._schema = file, schema
        self.folder = file.with_name(f".{file.name}.parts")
        self.num_parts = self.num_rows = 0  # of the finished parts

    def is_complete(self) -> bool:
        """Returns whether the file is there. UserError if it is another table."""
        if not self._file.exists():
            return False
        with reading("--output", self._file, cure="Give another name."):
            schema = parquet.read_schema(self._file)
        self._check(self._file, schema)
        shutil.rmtree(self.folder, ignore_errors=True)
        return True

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps other commands out. UserError if one is writing the table, or has just done so."""
        with writing("--output", self._file):
            self.folder.mkdir(parents=True, exist_ok=True)
        file = try_lock(epath.Path(self.folder), "lock", field="--output")
        try:
            if file is None or self._file.exists():
                raise UserError(f"Another command is writing {self._file}: wait for it.")
            yield
        finally:
            if file is not None:
                os.close(file)

    def open_parts(self) -> int:
        """The number of the first part that is to be written. UserError for another table's."""
        while self._part(self.num_parts).exists():
            try:
                rows = self._read(self.num_parts)
            except DAMAGE:  # of a machine that lost its power: it is written again
                break
            self.num_rows += len(rows)
            self.num_parts += 1
        return self.num_parts

    def _part(self, number: int) -> Path:
        return self.folder / f"{number:08}.parquet"

    def _check(self, path: Path, found: pa.Schema) -> None:
        there, here = (
            json.loads((schema.metadata or {}).get(ABOUT, b"{}"))
            for schema in (found, self._schema)
        )
        if differing := [name for name in here if there.get(name) != here[name]]:
            raise UserError(f"{path} has other {', '.join(differing)}: give another --output.")

    def write_part(self, number: int, columns: Sequence[pa.Array]) -> None:
        """Writes a part, and those before it, which have no rows; each whole or not at all."""
        rows = pa.Table.from_arrays(list(columns), schema=self._schema)
        for part in range(self.num_parts, number + 1):
            content = rows if part == number else self._schema.empty_table()
            content = content.replace_schema_metadata({**self._schema.metadata, PART: str(part)})
            how = {"use_dictionary": False, "write_page_checksum": True}
            with writing("--output", self._file), atomic_file(self._part(part)) as temporary:
                parquet.write_table(content, temporary, **how)
        self.num_parts, self.num_rows = number + 1, self.num_rows + len(rows)

    def join(self) -> None:
        """Makes the parts row groups of the file, and deletes them."""
        with (
            writing("--output", self._file),
            atomic_file(self._file) as temporary,
            parquet.ParquetWriter(temporary, self._schema, use_dictionary=False) as writer,
        ):
            for number in range(self.num_parts):
                with reading(self._part(number), cure="Start the same command again."):
                    rows = self._read(number)
                if len(rows):
                    writer.write_table(rows, row_group_size=len(rows))
        shutil.rmtree(self.folder, ignore_errors=True)

    def _read(self, number: int) -> pa.Table:
        """The rows of a part. UserError for another table's, one of DAMAGE for any other fault."""
        with parquet.ParquetFile(self._part(number), page_checksum_verification=True) as opened:
            rows = opened.read()
        self._check(self.folder, rows.schema)
        # Beside damage that pyarrow does not see.
        if rows.schema.metadata.get(PART) != b"%d" % number or rows.schema != self._schema:
            raise OSError("it is another part, or damaged")
        return rows


FLAGS = flags.FLAGS


def main(arguments: list[str]) -> None:
    """The command."""
    if len(arguments) != 1:
        raise UserError("Which images? Give one folder behind the flags.")
    compilation_cache.use()
    with contextlib.closing(Screen(sys.stderr)) as screen:
        names = ("features", "dtype", "split", "ema", "batch_size", "on_bad_image")
        output = Path(FLAGS.output).expanduser()
        embed(arguments[0], FLAGS.checkpoint, output, screen=screen, **command.values(*names))


if __name__ == "__main__":
    command.define_checkpoint()
    flags.DEFINE_string("output", None, "The .parquet to write.")
    flags.DEFINE_enum(
        "features",
        "pre_logits",
        list(FEATURES),
        "What the head sees, the class token, the mean of the patches, or all of these.",
    )
    flags.DEFINE_enum("dtype", "float32", list(DTYPES), "Of the numbers in the file.")
    flags.DEFINE_string("split", ALL, "Of a folder with folders of splits: train, val[:10%].")
    flags.DEFINE_bool("ema", False, "The EMA of the weights, where the run kept one.")
    flags.DEFINE_integer("batch_size", None, inference.BATCH_SIZE_HELP)
    flags.DEFINE_enum("on_bad_image", "fail", inference.ON_BAD_IMAGE, inference.BadImages.HELP)
    flags.mark_flags_as_required(["checkpoint", "output"])
    command.run(main, positional=True)
