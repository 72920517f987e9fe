"""Classifies images: vit-jax predict --checkpoint runs/digits IMAGE|FOLDER...

Needs only the checkpoint, which states its model and the preparation of images.
"""

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from absl import flags
from pyarrow import csv, parquet

from vit_jax import weights
from vit_jax.core import command
from vit_jax.core.errors import NonFiniteError, UserError
from vit_jax.core.files import atomic_file
from vit_jax.core.screen import Screen, format_percent
from vit_jax.core.tables import as_text
from vit_jax.models import inference
from vit_jax.models.head import probabilities
from vit_jax.models.images import AnyImage, find, listed
from vit_jax.models.layers.linear import quantise
from vit_jax.store import workdir
from vit_jax.weights import Loaded

TABLES = {".csv": csv.CSVWriter, ".parquet": parquet.ParquetWriter}
COLUMNS = pa.schema(
    [
        ("file", pa.string()),
        ("rank", pa.int32()),  # 1: the most likely class
        ("class", pa.int32()),
        ("name", pa.string()),
        ("probability", pa.float64()),
    ]
)
_IMAGES_A_BLOCK = 1024  # of a table: it is never in memory as a whole


class Predictor:
    """A trained model that says what images show; its weights are read once.

    Args:
      checkpoint: as --checkpoint.
      ema: the EMA of the weights is used instead of the weights themselves.
      batch_size: how many images are computed at once; None: what suits the device.
      int8: kernels of dense layers in 8 bits (models/layers/linear.py).
      dtype: of the computation, as --dtype; None: as trained.
    """

    def __init__(
        self,
        checkpoint: str,
        *,
        ema: bool = False,
        batch_size: int | None = None,
        int8: bool = False,
        dtype: str | None = None,
    ) -> None:
        inference.check_dtype(dtype)
        inference.check_batch_size(batch_size)
        self._checkpoint = checkpoint
        loaded = load_classifier(checkpoint, ema=ema)
        self._names = loaded.class_names
        by_dtype = inference.in_dtypes(loaded.model, dtype)
        self._function = inference.ImageFunction(
            lambda model, images: probabilities(model, model(images)),
            {name: quantise(model) if int8 else model for name, model in by_dtype.items()},
            checkpoint,
            batch_size=batch_size,
        )

    def __call__(
        self,
        images: AnyImage | Sequence[AnyImage],
        *,
        top_k: int,
        on_bad_image: str = "fail",
        screen: Screen | None = None,
    ) -> Iterator[tuple[Path | int, list[dict]]]:
        """Yields (file, or place in `images`; its `top_k` classes, most likely first).

        A class is {"class", "name", "probability"}: the softmax over classes, also for models
        trained with a sigmoid loss; the sigmoid of weights that say they have several labels.
        With on_bad_image="skip" images that cannot be read are left out and named on `screen`.
        """
        if top_k < 1:
            raise UserError(f"--top_k={top_k}: give at least 1.")
        bad = inference.BadImages(on_bad_image, screen)
        there = listed(images)
        size = self._function.batch_size(len(there))
        for name, p in self._function(there, size, bad):
            check_finite(p, name, self._checkpoint)
            yield name, most_likely(p, self._names, top_k)
        bad.conclude(len(there))


def load_classifier(checkpoint: str, *, ema: bool = False) -> Loaded:
    """The model of --checkpoint, with names of its classes where they are known.

    A notice on stderr says where names come from. UserError for a model without a head.
    """
    loaded, notice = weights.with_class_names(
        weights.load_with_info(checkpoint, ema=ema, scan=True)
    )
    if notice:
        print(notice, file=sys.stderr)
    if not loaded.model.num_classes:
        raise UserError(
            f"{checkpoint} is a backbone without a head: it cannot name classes. Fine-tune it: "
            f"python -m vit_jax.train --config finetune --config.init.weights={checkpoint}"
        )
    weights.check_head(loaded, checkpoint)
    return loaded


def check_finite(p: np.ndarray, image: Path | int | str, checkpoint: str) -> None:
    """Raises NonFiniteError unless all probabilities of an image are finite."""
    if not np.isfinite(p).all():
        raise NonFiniteError(
            f"{image}: the probabilities of {checkpoint} are not finite. Its numbers are damaged, "
            "or the training diverged: use an earlier checkpoint."
        )


def most_likely(p: np.ndarray, names: Sequence[str] | None, top_k: int) -> list[dict]:
    """Probabilities [C] -> {"class", "name", "probability"} of the `top_k` largest, in order."""
    return [
        {
            "class": int(number),
            "name": names[number] if names else str(number),
            "probability": round(float(p[number]), 6),
        }
        for number in np.argsort(-p, kind="stable")[:top_k]
    ]


def predict(
    checkpoint: str,
    paths: list[str],
    *,
    top_k: int,
    ema: bool = False,
    batch_size: int | None = None,
    int8: bool = False,
    dtype: str | None = None,
    on_bad_image: str = "fail",
    screen: Screen | None = None,
) -> Iterator[tuple[Path | int, list[dict]]]:
    """Yields (file, its `top_k` classes), as Predictor does; what is not there is told before."""
    files = find(paths)
    predictor = Predictor(checkpoint, ema=ema, batch_size=batch_size, int8=int8, dtype=dtype)
    yield from predictor(files, top_k=top_k, on_bad_image=on_bad_image, screen=screen)


def write_table(
    predictions: Iterable[tuple[Path | int, list[dict]]], output: Path, total: int, screen: Screen
) -> None:
    """Writes predictions of up to `total` images, a row for each class; all of the file or nothing.

    Its folder is made. UserError for a file of another kind, or one that cannot be written.
    """
    writer = table_writer(output)
    names = COLUMNS.names[2:]
    cell = as_text if output.suffix == ".csv" else lambda value: value
    writing = lambda: workdir.explain_unwritable(output)  # not around what predicts meanwhile
    with contextlib.ExitStack() as opened:
        with writing():
            output.parent.mkdir(parents=True, exist_ok=True)
            temporary = opened.enter_context(atomic_file(output))
            file = opened.enter_context(writer(str(temporary), COLUMNS))
        rows: list[dict] = []
        for done, (image, classes) in enumerate(predictions, start=1):
            about = [{name: cell(c[name]) for name in names} for c in classes]
            file_name = cell(name_of(image))
            rows += [{"file": file_name, "rank": 1 + i, **c} for i, c in enumerate(about)]
            if done % _IMAGES_A_BLOCK == 0:
                with writing():
                    file.write_batch(pa.RecordBatch.from_pylist(rows, COLUMNS))
                rows = []
            screen.bar("images", done, total)
        with writing():
            if rows:
                file.write_batch(pa.RecordBatch.from_pylist(rows, COLUMNS))
            opened.close()


def name_of(image: Path | int) -> str:
    """The file as text; bytes that are not UTF-8 are escaped, since a table holds no others."""
    return str(image).encode(errors="backslashreplace").decode()


def table_writer(output: Path) -> type[csv.CSVWriter] | type[parquet.ParquetWriter]:
    """What writes a table to this file, by its ending. UserError for another ending or name."""
    if name_of(output) != str(output):
        raise UserError(f"--output={name_of(output)}: its name is not UTF-8. Give another.")
    if output.suffix not in TABLES:
        raise UserError(
            f"--output={output}: a table of predictions is a file that ends in "
            f"{' or '.join(TABLES)}."
        )
    return TABLES[output.suffix]


FLAGS = flags.FLAGS


def main(arguments: list[str]) -> None:
    """The command."""
    if not arguments:
        raise UserError("Which images? Give files or folders behind the flags.")
    with contextlib.closing(Screen(sys.stderr)) as screen:
        _predict(arguments, screen)


def _predict(arguments: list[str], screen: Screen) -> None:
    if FLAGS.output is not None:  # what is wrong with it is said before anything is computed
        if FLAGS.json:
            raise UserError("--json belongs to the screen, --output to a table: give one of them.")
        table_writer(Path(FLAGS.output).expanduser())
    files = [str(file) for file in find(arguments, sys.stderr)]
    predictions = predict(
        FLAGS.checkpoint,
        files,
        top_k=FLAGS.top_k,
        ema=FLAGS.ema,
        batch_size=FLAGS.batch_size,
        int8=FLAGS.int8,
        dtype=FLAGS.dtype,
        on_bad_image=FLAGS.on_bad_image,
        screen=screen,
    )
    if FLAGS.output is not None:
        write_table(predictions, Path(FLAGS.output).expanduser(), len(files), screen)
        return
    for file, classes in predictions:
        if FLAGS.json:
            print(json.dumps({"file": str(file), "classes": classes}))
        else:
            print(_line(file, classes))


def _line(file: Path | int, classes: list[dict]) -> str:
    shown = (f"{c['name']} {format_percent(c['probability'], 1)}" for c in classes)
    return "  ".join([str(file), *shown])


if __name__ == "__main__":
    command.define_checkpoint()
    flags.DEFINE_integer("top_k", 5, "How many classes to show for an image.", lower_bound=1)
    flags.DEFINE_integer("batch_size", None, inference.BATCH_SIZE_HELP)
    flags.DEFINE_string("dtype", None, inference.DTYPE_HELP)
    flags.DEFINE_enum("on_bad_image", "fail", inference.ON_BAD_IMAGE, inference.BadImages.HELP)
    flags.DEFINE_bool("ema", False, "The EMA of the weights, where the run kept one.")
    flags.DEFINE_bool("int8", False, "Kernels of dense layers in 8 bits: a quarter of the memory.")
    flags.DEFINE_bool("json", False, "One JSON object a line instead of text.")
    flags.DEFINE_string("output", None, "A .csv or .parquet to write instead: a row a class.")
    flags.mark_flag_as_required("checkpoint")
    command.run(main, positional=True)
