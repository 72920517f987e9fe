"""Classifies images: vit-jax predict --checkpoint runs/digits IMAGE|FOLDER...

Needs only the checkpoint, which states its model and the preparation of images.
"""

import contextlib
import itertools
import json
import operator
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
from absl import flags
from flax import nnx
from PIL import Image
from pyarrow import csv, parquet

from vit_jax import weights
from vit_jax.core import command
from vit_jax.core.class_names import printable
from vit_jax.core.errors import NonFiniteError, UserError, writing
from vit_jax.core.files import atomic_file
from vit_jax.core.screen import Screen, format_percent
from vit_jax.core.tables import as_text
from vit_jax.draw import masks
from vit_jax.models import dense, inference
from vit_jax.models.head import num_image_classes, probabilities
from vit_jax.models.images import AnyImage, find, listed, normalise, open_rgb
from vit_jax.models.layers.linear import quantise
from vit_jax.store.workdir import check_output
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
TAKEN = pa.field("taken", pa.bool_())  # of weights with thresholds
STRIDE = 2 / 3  # from one window of a large image to the next, as a share of a window
BILINEAR = Image.Resampling.BILINEAR
_IMAGES_A_BLOCK = 1024  # of a table: it is never in memory as a whole


class Predictor:
    """A trained model that says what images show; its weights are read once."""

    def __init__(
        self,
        checkpoint: str,
        *,
        ema: bool = False,
        batch_size: int | None = None,
        int8: bool = False,
        dtype: str | None = None,
        labels: str | None = None,
    ) -> None:
        inference.check_dtype(dtype)
        inference.check_batch_size(batch_size)
        self._checkpoint = checkpoint
        loaded = load_classifier(checkpoint, ema=ema, labels=labels)
        self._names, self._thresholds = loaded.class_names, loaded.thresholds
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
        trained with a sigmoid loss; the sigmoid of weights that say they have several labels. Of
        weights with thresholds it has "taken", whether its probability is at least its own.
        With on_bad_image="skip" images that cannot be read are left out and named on `screen`.
        """
        if top_k < 1:
            raise UserError("is not 1 or more.", field="--top_k", value=top_k)
        bad = inference.BadImages(on_bad_image, screen)
        there = listed(images)
        size = self._function.batch_size(len(there))
        for name, p in self._function(there, size, bad):
            check_finite(p, name, self._checkpoint)
            yield name, most_likely(p, self._names, top_k, self._thresholds)
        bad.conclude(len(there))


def load_classifier(
    checkpoint: str, *, ema: bool = False, labels: str | None = None, of_places: bool = False
) -> Loaded:
    """The model of --checkpoint, with names of its classes where they are known.

    With `labels` its head is that of the classes in this file (weights/zero_shot.py). A notice on
    stderr says where names come from. UserError for a model without a head, and for one whose head
    is for each place of an image, unless `of_places`.
    """
    loaded = weights.load_with_info(checkpoint, ema=ema, scan=True)
    loaded, notice = weights.with_class_names(weights.with_labels(loaded, labels))
    if notice:
        print(notice, file=sys.stderr)
    if not loaded.model.num_classes:
        cure = "vit-jax convert --labels gives one to a CLIP or SigLIP."
        raise UserError(f"{checkpoint} has no head: fine-tune it by --config finetune. {cure}")
    if not (of_places or num_image_classes(loaded.model)):
        raise UserError(
            f"{checkpoint} has a class for each place of an image, and none for it all."
        )
    weights.check_head(loaded, checkpoint)
    return loaded


def check_finite(p: np.ndarray, image: Path | int | str, checkpoint: str) -> None:
    """Raises NonFiniteError unless all probabilities of an image are finite."""
    if not np.isfinite(p).all():
        raise NonFiniteError(f"{image}: the probabilities of {checkpoint} are not finite.")


def most_likely(
    p: np.ndarray,
    names: Sequence[str] | None,
    top_k: int,
    thresholds: Sequence[float] | None = None,
) -> list[dict]:
    """Probabilities [C] -> {"class", "name", "probability"} of the `top_k` largest, in order."""
    return [
        {
            "class": int(number),
            "name": names[number] if names else str(number),
            "probability": round(float(p[number]), 6),
            **({"taken": bool(p[number] >= thresholds[number])} if thresholds else {}),
        }
        for number in np.argsort(-p, kind="stable")[:top_k]
    ]


def write_table(
    predictions: Iterable[tuple[Path | int, list[dict]]],
    output: Path,
    total: int,
    screen: Screen,
    columns: pa.Schema = COLUMNS,
) -> int:
    """Writes predictions of up to `total` images, a row for each class; all of the file or nothing.

    Returns the number of rows. Its folder is made. UserError if it cannot be written.
    """

    def cell(value: Any) -> Any:
        return as_text(value) if output.suffix == ".csv" else value

    def batches() -> Iterator[pa.RecordBatch]:
        rows: list[dict] = []
        for done, (image, classes) in enumerate(predictions, start=1):
            name = name_of(image)
            of_image = [{"file": name, "rank": 1 + i, **c} for i, c in enumerate(classes)]
            rows += [{key: cell(value) for key, value in row.items()} for row in of_image]
            if done % _IMAGES_A_BLOCK == 0:
                yield pa.RecordBatch.from_pylist(rows, columns)
                rows = []
            screen.bar("images", done, total)
        if rows:
            yield pa.RecordBatch.from_pylist(rows, columns)

    with contextlib.ExitStack() as opened:
        with writing("--output", output):
            output.parent.mkdir(parents=True, exist_ok=True)
            temporary = opened.enter_context(atomic_file(output))
            file = opened.enter_context(TABLES[output.suffix](str(temporary), columns))
        written = 0
        for batch in batches():  # whose own errors are not about the table
            written += batch.num_rows
            with writing("--output", output):
                file.write_batch(batch)
        with writing("--output", output):
            opened.close()
    return written


def name_of(image: Path | int) -> str:
    """The file as text; bytes that are not UTF-8 are escaped, since a table holds no others."""
    return str(image).encode(errors="backslashreplace").decode()


FLAGS = flags.FLAGS


def main(arguments: list[str]) -> None:
    """The command."""
    if not arguments:
        raise UserError("Which images? Give files or folders behind the flags.")
    with contextlib.closing(Screen(sys.stderr)) as screen:
        _predict(arguments, screen)


class Segmenter:
    """A trained model that says which class each pixel of an image is of.

    An image is resized so that the model's size just fits into it, and seen through windows of that
    size (models/dense.py); so all of it is seen, whatever its aspect.

    UserError for a model whose pixels have no classes, but depths, or of other images than RGB.
    """

    def __init__(self, checkpoint: str, *, ema: bool = False) -> None:
        loaded = load_classifier(checkpoint, ema=ema, of_places=True)
        about, classes = loaded.model.preprocess, loaded.model.num_classes
        if classes == 1 or (about.channels, about.dtype) != (3, "uint8"):
            rule = "cannot predict masks, which are of classes in RGB images."
            raise UserError(rule, field=checkpoint)
        self.names, self.preprocess = loaded.class_names or tuple(map(str, range(classes))), about
        graph, self._params = nnx.split(loaded.model, nnx.Param)
        self._logits = jax.jit(lambda p, x: dense.sliding(nnx.merge(graph, p), x, STRIDE))

    def __call__(self, image: Image.Image) -> np.ndarray:
        """An upright RGB image -> the class of each of its pixels, uint16 [H, W]."""
        ratio = max(map(operator.truediv, self.preprocess.image_size, image.size[::-1]))
        width, height = (max(1, round(ratio * side)) for side in image.size)
        pixels = np.asarray(image.resize((width, height), BILINEAR))
        scaled = normalise(pixels, self.preprocess)
        logits = dense.resized(self._logits(self._params, scaled[None]), image.size[::-1])
        return np.asarray(jnp.argmax(logits[0], -1), np.uint16)


def write_masks(
    checkpoint: str, files: Sequence[Path], output: Path, screen: Screen, ema: bool, on_bad: str
) -> None:
    """Writes a mask and an overlay of each image into the folder `output`; prints its classes."""
    with writing("--output", output):
        output.mkdir(parents=True, exist_ok=True)
    segmenter, bad = Segmenter(checkpoint, ema=ema), inference.BadImages(on_bad, screen)
    taken: set[str] = set()
    for done, file in enumerate(files, start=1):
        try:
            image = open_rgb(file, segmenter.preprocess)
        except UserError as error:
            bad.add(error)
            continue
        mask = segmenter(image)
        more = (f"{file.stem}_{i}" for i in itertools.count(2))
        name = next(name for name in itertools.chain([file.stem], more) if name not in taken)
        taken.add(name)
        overlay = Image.fromarray(masks.overlay(np.asarray(image), mask))
        with writing("--output", output):
            overlay.save(output / f"{name}_overlay.png")
            (output / f"{name}.png").write_bytes(masks.png(mask))
        shares = np.bincount(mask.reshape(-1), minlength=len(segmenter.names)) / mask.size
        print(_line(file, most_likely(shares, segmenter.names, int((shares > 0).sum()))))
        screen.bar("images", done, len(files))
    bad.conclude(len(files))
    screen.say(f"saved {len(taken):,} masks to {output}")


def _predict(arguments: list[str], screen: Screen) -> None:
    if getattr(weights.open_model(FLAGS.checkpoint, ema=FLAGS.ema).about.spec, "dense", None):
        rule = "does not go with a model of dense prediction."
        flags_of_classes = ("json", "int8", "dtype", "batch_size", "top_k", "labels")
        command.refuse_flags(*flags_of_classes, when=True, rule=rule)
        images = find(arguments, sys.stderr)
        folder = Path(FLAGS.output or "masks").expanduser()
        write_masks(FLAGS.checkpoint, images, folder, screen, FLAGS.ema, FLAGS.on_bad_image)
        return
    output = FLAGS.output and Path(check_output(FLAGS.output, endings=tuple(TABLES)))
    command.refuse_flags("json", when=output, rule="cannot be with --output.")
    files = find(arguments, sys.stderr)
    options = command.values("ema", "batch_size", "int8", "dtype", "labels")
    predictor = Predictor(FLAGS.checkpoint, **options)
    predictions = predictor(files, screen=screen, **command.values("top_k", "on_bad_image"))
    if output:
        has_thresholds = weights.open_model(FLAGS.checkpoint, ema=FLAGS.ema).thresholds
        columns = COLUMNS.append(TAKEN) if has_thresholds else COLUMNS
        rows = write_table(predictions, output, len(files), screen, columns)
        screen.say(f"saved {rows:,} rows to {output}")
        return
    for file, classes in predictions:
        if FLAGS.json:
            print(json.dumps({"file": str(file), "classes": classes}))
        else:
            print(_line(file, classes))


def _line(file: Path | int, classes: list[dict]) -> str:
    percent = [format_percent(c["probability"], 1) + "*" * c.get("taken", False) for c in classes]
    shown = (f"{c['name']} {share}" for c, share in zip(classes, percent, strict=True))
    return "  ".join([printable(str(file)), *shown])


if __name__ == "__main__":
    command.define_checkpoint()
    flags.DEFINE_integer("top_k", 5, "How many classes to show for an image.", lower_bound=1)
    flags.DEFINE_integer("batch_size", None, inference.BATCH_SIZE_HELP)
    flags.DEFINE_string("dtype", None, inference.DTYPE_HELP)
    flags.DEFINE_enum("on_bad_image", "fail", inference.ON_BAD_IMAGE, inference.BadImages.HELP)
    flags.DEFINE_bool("ema", False, "The EMA of the weights, where the run kept one.")
    flags.DEFINE_bool("int8", False, "Kernels of dense layers in 8 bits: a quarter of the memory.")
    command.define_labels()
    flags.DEFINE_bool("json", False, "One JSON object a line instead of text.")
    flags.DEFINE_string(
        "output",
        None,
        "A .csv or .parquet to write instead of text: a row a class. Of a "
        "model of dense prediction, the folder of masks (masks).",
    )
    flags.mark_flag_as_required("checkpoint")
    command.run(main, positional=True)
