"""Makes a data set for training from a raw collection of images.

    python -m vit_jax.prepare imagenet21k --source fall11_whole.tar --output DIR
    python -m vit_jax.prepare imagenet2012 --source folder_of_both_tars --output DIR
    python -m vit_jax.prepare image_folder --source photos --output DIR
    python -m vit_jax.prepare webdataset --source "{000..127}.tar" --num_classes 9 --output DIR
    python -m vit_jax.prepare records --source lists --classes names.txt --output DIR

Every image is checked, and its bytes are kept as they are. The set lies in OUTPUT/<name>/<version>
as TFDS writes it: ArrayRecord files that are read at random, by training and by TFDS. The same
command goes on with what was interrupted.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable
from pathlib import Path

from absl import flags

from vit_jax.core.errors import Preempted, UserError, nearest
from vit_jax.core.formatting import format_bytes
from vit_jax.core.process import command
from vit_jax.core.screen import Screen
from vit_jax.prepare import beam, workers
from vit_jax.prepare.arrangement import reasons
from vit_jax.prepare.collection import Collection, Request
from vit_jax.prepare.copies.near import MOST_BITS
from vit_jax.prepare.entry import is_text
from vit_jax.prepare.preparation import WORK, Options, prepare
from vit_jax.prepare.prepared import Prepared
from vit_jax.prepare.readers import (
    image_folder,
    imagenet21k,
    imagenet2012,
    imagenet_v2,
    records,
    webdataset,
)
from vit_jax.prepare.report import reports

COLLECTIONS: dict[str, Callable[[Request], Collection]] = {
    "imagenet21k": imagenet21k.collection,
    "imagenet2012": imagenet2012.collection,
    "imagenet2012_real": imagenet2012.real,
    "imagenet_v2": imagenet_v2.collection,
    "image_folder": image_folder.collection,
    "webdataset": webdataset.collection,
    "records": records.collection,
}
# Flags that not all collections read.
READ_BY = {
    "label_order": ("imagenet21k",),
    "classes": ("records", "webdataset"),
    "num_classes": ("records", "webdataset"),
    "label_field": ("records", "webdataset"),
    "multi_label": ("records", "webdataset"),
    "images_root": ("records",),
}
# Flags, and values of flags that may be repeated, which would otherwise mean the default.
NOT_EMPTY = (
    "name", "classes", "label_field", "images_root", "version", "splits", "policy",
    "drop_duplicates_of",
)  # fmt: skip
FLAGS = flags.FLAGS


def main(arguments: list[str]) -> None:
    """The command."""
    kind = _kind(arguments)
    output = _local("output", FLAGS.output)
    if kind == "image_folder":
        folder = output / (FLAGS.name or kind) / FLAGS.version
        _refuse_inside(output, folder, _local("source", FLAGS.source))
    screen = Screen()
    try:
        collection = _named(COLLECTIONS[kind](_request()))
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}.") from error
    for note in collection.notes:
        screen.say(note)
    screen.say(f"{len(collection.parts):,} parts, {len(collection.class_names):,} classes")
    options = Options(
        version=FLAGS.version,
        splits=FLAGS.splits,
        stratify=FLAGS.stratify,
        policy=tuple(sorted(FLAGS.policy)),
        duplicates=FLAGS.duplicates,
        near_duplicates=FLAGS.near_duplicates,
        mirrored_duplicates=FLAGS.mirrored_duplicates,
        near_bits=FLAGS.near_bits,
        drop_duplicates_of=tuple(FLAGS.drop_duplicates_of),
        max_image_pixels=FLAGS.max_image_pixels,
        shard_mib=FLAGS.shard_mib,
    )
    if FLAGS.runner == "beam":
        folder = output / collection.name / options.version / WORK / "beam"
        run = beam.on_beam(folder, FLAGS.beam_flags)
    else:
        run = workers.in_processes(FLAGS.workers or os.cpu_count() or 1)
    try:
        found = prepare(collection, output, options, run, screen)
    except KeyboardInterrupt as error:
        raise Preempted("Stopped. What is done is kept: the same command goes on.") from error
    _tell(found, screen)


def _kind(arguments: list[str]) -> str:
    if len(arguments) != 1:
        raise UserError(f"Name one collection: {', '.join(COLLECTIONS)}.")
    if arguments[0] not in COLLECTIONS:
        raise UserError(f"No collection {arguments[0]!r}. {nearest(arguments[0], COLLECTIONS)}")
    for name, kinds in READ_BY.items():
        if FLAGS[name].present and arguments[0] not in kinds:
            raise UserError(f"--{name} is for {' and '.join(kinds)}: leave it out.")
    for name in NOT_EMPTY:
        value = FLAGS[name].value
        if FLAGS[name].present and not all(value if isinstance(value, list) else [value]):
            raise UserError(f"--{name} is empty: give a value, or leave it out.")
    return arguments[0]


def _request() -> Request:
    return Request(
        source=str(_local("source", FLAGS.source)),
        label_order=FLAGS.label_order,
        classes=FLAGS.classes,
        num_classes=FLAGS.num_classes,
        label_field=FLAGS.label_field,
        multi_label=FLAGS.multi_label,
        images_root=FLAGS.images_root,
    )


def _refuse_inside(output: Path, folder: Path, source: Path) -> None:
    """UserError if the set would be one of the collection's folders."""
    for path, what in ((output, f"--output={output}"), (folder, f"{folder}, which is to be made,")):
        if path.resolve().is_relative_to(source.resolve()):
            raise UserError(
                f"{what} lies in --source={source}, where every folder is a class or a split: "
                "give one beside it."
            )


def _local(flag: str, path: str) -> Path:
    if not path:
        raise UserError(f"--{flag} is empty: name a folder.")
    if not is_text(path):
        raise UserError(f"--{flag}={path}: the path is not UTF-8: rename it, or give a link to it.")
    if "\0" in path:
        raise UserError(f"--{flag} has a zero in it: no path has one.")
    if "://" in path:
        raise UserError(
            f"--{flag}={path}: only folders of this machine's file system are read and written. "
            "Mount the bucket (gcsfuse), or prepare on a disk and copy the set."
        )
    return Path(path).expanduser()


def _named(collection: Collection) -> Collection:
    if FLAGS.name is None:
        return collection
    if not re.fullmatch(r"[a-z][a-z0-9_]*", FLAGS.name):
        raise UserError(f"--name={FLAGS.name}: lower-case letters, digits and _, a letter first.")
    return dataclasses.replace(collection, name=FLAGS.name)


def _tell(found: Prepared, screen: Screen) -> None:
    for split, size in found.splits.items():
        screen.say(
            f"{split:12} {sum(size.shard_lengths):,} examples in {len(size.shard_lengths):,} files,"
            f" {format_bytes(size.nbytes)}"
        )
    if found.arrangement.left_out:
        screen.say(
            f"left out     {len(found.arrangement.left_out):,} images: "
            + ", ".join(f"{number:,} {why}" for why, number in reasons(found.arrangement.left_out))
        )
    for sentence in reports.looks(reports.read(found.folder)):
        screen.say(f"look at      {sentence}")
    screen.say(f"report       {found.folder / reports.PAGE}")
    screen.say(f"content      {found.digest}")
    screen.say(f"ready        {found.folder}")


def define(values: flags.FlagValues = FLAGS) -> None:
    """Defines the command's flags."""
    default = Options()
    flags.DEFINE_string("source", None, "The collection: a file or a folder.", flag_values=values)
    flags.DEFINE_string(
        "output", None, "The set becomes OUTPUT/<name>/<version>.", flag_values=values
    )
    flags.DEFINE_string("name", None, "Of the set; default: the collection's.", flag_values=values)
    flags.DEFINE_string(
        "classes", None, "Of records, webdataset: their names, one in a line.", flag_values=values
    )
    flags.DEFINE_integer(
        "num_classes", None, "Instead of --classes: labels are numbers.", 1, flag_values=values
    )
    flags.DEFINE_string(
        "label_field", None, "Of records, and of webdataset's .json.", flag_values=values
    )
    flags.DEFINE_boolean(
        "multi_label", None, "Lists of labels; default: only records have them.", flag_values=values
    )
    flags.DEFINE_string(
        "images_root", None, "Of records: paths are relative to it.", flag_values=values
    )
    flags.DEFINE_string("version", default.version, "Of the set.", flag_values=values)
    flags.DEFINE_string(
        "splits", default.splits, "As test=25600,train=rest; default: its own.", flag_values=values
    )
    flags.DEFINE_boolean(
        "stratify", default.stratify, "Each class in proportion in --splits.", flag_values=values
    )
    flags.DEFINE_enum(
        "label_order",
        "released",
        imagenet21k.ORDERS,
        "Of ImageNet-21k's classes.",
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "policy", [], "What to do with a fault, as gray:set_aside.", flag_values=values
    )
    flags.DEFINE_enum(
        "duplicates",
        default.duplicates,
        ("keep", "drop", "merge"),
        "The same bytes.",
        flag_values=values,
    )
    flags.DEFINE_enum(
        "near_duplicates",
        default.near_duplicates,
        ("report", "drop"),
        "The same to look at.",
        flag_values=values,
    )
    flags.DEFINE_enum(
        "mirrored_duplicates",
        default.mirrored_duplicates,
        ("report", "drop"),
        "The same to look at when mirrored.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "near_bits",
        default.near_bits,
        "Of 64 in which perceptual hashes of near duplicates differ at most.",
        0,
        MOST_BITS,
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "drop_duplicates_of",
        [],
        "An evaluation set whose images are left out: DATA_SET:SPLIT, a folder of images, or a "
        "Parquet file of hashes. May be repeated.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "max_image_pixels", default.max_image_pixels, "Of one image.", 1, flag_values=values
    )
    flags.DEFINE_float(
        "shard_mib", default.shard_mib, "Size of a file, about.", 0, flag_values=values
    )
    flags.DEFINE_integer(
        "workers",
        None,
        "Processes; default: one for each core.",
        1,
        workers.MOST,
        flag_values=values,
    )
    flags.DEFINE_enum(
        "runner", "local", ("local", "beam"), "Processes here, or Apache Beam.", flag_values=values
    )
    flags.DEFINE_list(
        "beam_flags", [], "For Beam, as --runner=DataflowRunner,--project=ID.", flag_values=values
    )
    flags.mark_flags_as_required(["source", "output"], values)


if __name__ == "__main__":
    define()
    command.run(main)
