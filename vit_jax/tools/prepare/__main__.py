"""Makes a data set for training from a raw collection of images.

    vit-jax prepare imagenet21k --source fall11_whole.tar --output DIR
    vit-jax prepare imagenet2012 --source folder_of_both_tars --output DIR
    vit-jax prepare image_folder --source photos --output DIR
    vit-jax prepare webdataset --source "{000..127}.tar" --num_classes 9 --output DIR
    vit-jax prepare records --source lists --classes names.txt --output DIR

Every image is checked, and its bytes are kept as they are. The data set is written to
OUTPUT/<name>/<version> in the layout of TFDS: ArrayRecord files with random access, for training
and for TFDS. After an interruption the same command goes on. A data set for gs:// is made on a disk
of this machine and uploaded.
"""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import flags
from etils import epath

from vit_jax.core import cloud, command, machine
from vit_jax.core.errors import Preempted, UserError, nearest
from vit_jax.core.files import cache_dir
from vit_jax.core.screen import Screen, format_bytes
from vit_jax.data.sources.tfds_writer import NOTE
from vit_jax.store import workdir_lock
from vit_jax.tools.prepare import image_folder, imagenet, records, report_files, tars, tasks
from vit_jax.tools.prepare.collection import Collection, CollectionRequest, PrepareOptions, is_text
from vit_jax.tools.prepare.pipeline import WORK_DIR, prepare
from vit_jax.tools.prepare.prepared_set import PreparedSet

COLLECTIONS: dict[str, Callable[[CollectionRequest], Collection]] = {
    "imagenet21k": imagenet.imagenet21k,
    "imagenet2012": imagenet.imagenet2012,
    "imagenet2012_real": imagenet.imagenet2012_real,
    "imagenet_v2": imagenet.imagenet_v2,
    "image_folder": image_folder.collection,
    "webdataset": tars.webdataset,
    "records": records.collection,
}
# The fields that are flags, besides `source`.
FIELDS = (*dataclasses.fields(CollectionRequest)[1:], *dataclasses.fields(PrepareOptions))
FLAGS = flags.FLAGS


def main(arguments: list[str]) -> None:
    """The command."""
    kind = _collection_name(arguments)
    output, remote = _output(kind)
    values = _flag_values(PrepareOptions)
    values["policy"] = tuple(sorted(FLAGS.policy))
    values["drop_duplicates_of"] = tuple(FLAGS.drop_duplicates_of)
    options = PrepareOptions(**values)
    screen = Screen()
    try:
        values = _flag_values(CollectionRequest) | {
            "source": str(_local_path("source", FLAGS.source))
        }
        collection = COLLECTIONS[kind](CollectionRequest(**values))
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}.") from error
    if FLAGS.name is not None:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", FLAGS.name):
            raise UserError(
                f"--name={FLAGS.name}: give lower-case letters, digits and _, with a letter first."
            )
        collection = dataclasses.replace(collection, name=FLAGS.name)
    if remote:
        _check_bucket(remote, output / collection.name / FLAGS.version)
    for note in collection.notes:
        screen.say(note)
    screen.say(f"{len(collection.parts):,} parts, {len(collection.class_names):,} classes")
    if FLAGS.runner == "beam":
        folder = output / collection.name / options.version / WORK_DIR / "beam"
        run = tasks.beam_runner(folder, FLAGS.beam_flags)
    else:
        run = tasks.process_runner(FLAGS.workers or machine.cores())
    try:
        data_set = prepare(collection, output, options, run, screen)
    except KeyboardInterrupt as error:
        raise Preempted("Stopped. What is done is kept: the same command goes on.") from error
    _summarise(data_set, screen)
    if remote:
        screen.say(f"uploaded     {_upload(data_set, remote, screen)}")


def _output(kind: str) -> tuple[Path, str]:
    """The folder that the data set is made in, and where it is uploaded to: "" if nowhere."""
    if FLAGS.output.startswith("gs://"):
        # ArrayRecord's writer, as pip installs it, writes to this machine's files only. So the data
        # set is made in a folder here, another one for each output, and uploaded.
        scratch = Path(FLAGS.scratch).expanduser() if FLAGS.scratch else cache_dir() / "prepared"
        name = hashlib.sha256(FLAGS.output.rstrip("/").encode()).hexdigest()[:16]
        return scratch / name, FLAGS.output
    if FLAGS.scratch is not None:
        raise UserError("--scratch is for --output=gs://...: leave it out.")
    output = _local_path("output", FLAGS.output)
    if kind == "image_folder":
        folder = output / (FLAGS.name or kind) / FLAGS.version
        source = _local_path("source", FLAGS.source)
        if folder.resolve().is_relative_to(source.resolve()):
            raise UserError(
                f"--output={output}: {folder}, the new data set, would be in --source={source}, "
                "where every folder is a class or a split: give a folder beside it."
            )
    return output, ""


def _check_bucket(output: str, made: Path) -> None:
    """UserError if another data set than `made` is at the output; makes its folder there."""
    there = epath.Path(output) / made.parent.name / made.name
    if (there / NOTE).exists() and not (made / NOTE).is_file():
        raise UserError(
            f"{there} holds a data set that was made elsewhere: give another --version or --name, "
            "or delete it."
        )
    there.mkdir(parents=True, exist_ok=True)


def _upload(data_set: PreparedSet, output: str, screen: Screen) -> epath.Path:
    """Copies what is missing; returns the folder. UserError if another command writes there.

    The file that says that the data set is ready is uploaded last.
    """
    version = data_set.folder
    target = epath.Path(output) / version.parent.name / version.name
    with workdir_lock.hold_lease(str(target), ".lock"):
        cloud.upload(
            version,
            target,
            last=NOTE,
            leave_out=(WORK_DIR,),
            tell=lambda done, total: screen.bar("uploading", done, total),
        )
    return target


def _collection_name(arguments: list[str]) -> str:
    if len(arguments) != 1:
        raise UserError(f"Name one collection: {', '.join(COLLECTIONS)}.")
    if arguments[0] not in COLLECTIONS:
        raise UserError(f"No collection {arguments[0]!r}. {nearest(arguments[0], COLLECTIONS)}")
    for field in FIELDS:
        kinds = field.metadata["only_for"]
        if kinds and FLAGS[field.name].present and arguments[0] not in kinds:
            raise UserError(f"--{field.name} is for {' and '.join(kinds)}: leave it out.")
    # Otherwise "" would be taken for the default.
    for name in ("source", "output", "scratch", "name", *(field.name for field in FIELDS)):
        value = FLAGS[name].value
        if FLAGS[name].present and "" in (value if isinstance(value, list) else [value]):
            raise UserError(f"--{name} is empty: give a value.")
    return arguments[0]


def _flag_values(kind: type) -> dict[str, Any]:
    return {field.name: FLAGS[field.name].value for field in dataclasses.fields(kind)}


def _local_path(flag: str, path: str) -> Path:
    if not is_text(path):
        raise UserError(
            f"--{flag}={path!r}: the path is not UTF-8: rename it, or give a link to it."
        )
    if "\0" in path:
        raise UserError(f"--{flag} has a zero character in it, which no path can have.")
    if cloud.is_remote(path):
        raise UserError(
            f"--{flag}={path}: only folders of this machine's file system are read; written are "
            "these and gs://... Copy it to a disk, or mount the bucket (gcsfuse)."
        )
    return Path(path).expanduser()


def _summarise(data_set: PreparedSet, screen: Screen) -> None:
    for split, size in data_set.splits.items():
        screen.say(
            f"{split:12} {sum(size.shard_lengths):,} examples in {len(size.shard_lengths):,} files,"
            f" {format_bytes(size.nbytes)}"
        )
    report = report_files.read(data_set.folder)
    if left_out := report["left_out"]:
        counts = ", ".join(f"{number:,} {reason}" for reason, number in left_out.items())
        screen.say(f"left out     {sum(left_out.values()):,} images: {counts}")
    for sentence in report_files.findings(report):
        screen.say(f"look at      {sentence}")
    screen.say(f"report       {data_set.folder / report_files.PAGE}")
    screen.say(f"content      {data_set.digest}")
    screen.say(f"ready        {data_set.folder}")


def define(values: flags.FlagValues = FLAGS) -> None:
    """Defines the command's flags."""
    text, integer, choice, several = (
        functools.partial(define_one, flag_values=values)
        for define_one in (
            flags.DEFINE_string, flags.DEFINE_integer, flags.DEFINE_enum, flags.DEFINE_list
        )
    )  # fmt: skip
    by_type: dict[str, Callable[..., Any]] = {
        "str": flags.DEFINE_string,
        "int": flags.DEFINE_integer,
        "float": flags.DEFINE_float,
        "bool": flags.DEFINE_boolean,
        "tuple[str, ...]": flags.DEFINE_multi_string,
    }
    text("source", None, "The collection: a file or a folder.")
    text("output", None, "The data set becomes OUTPUT/<name>/<version>; a folder, or gs://...")
    text("scratch", None, "For gs://: a folder to make it in; it stays. Default: a cache.")
    text("name", None, "Name of the data set; default: that of the collection.")
    for field in FIELDS:
        about = field.metadata
        help = about["help"] + f" ({', '.join(about['only_for'])})" * bool(about["only_for"])
        if about["choices"]:
            choice(field.name, field.default, about["choices"], help)
        else:
            define_one = by_type[str(field.type).removesuffix(" | None")]
            define_one(field.name, field.default, help, flag_values=values)
    integer("workers", None, "Processes; default: one per core.", 1, tasks.MOST_WORKERS)
    choice("runner", "local", ("local", "beam"), "Processes here, or Apache Beam.")
    several("beam_flags", [], "Flags for Beam, as --runner=DataflowRunner,--project=ID.")
    flags.mark_flags_as_required(["source", "output"], values)


if __name__ == "__main__":
    define()
    command.run(main, positional=True)
