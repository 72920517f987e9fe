"""Prepares a data set for training from a raw collection of images.

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
from vit_jax.core.files import cache_dir, is_remote
from vit_jax.core.screen import Screen, format_bytes
from vit_jax.data.sources.tfds_writer import NOTE
from vit_jax.tools.prepare import (
    image_folder,
    imagenet,
    pipeline,
    records,
    report_files,
    tars,
    tasks,
)
from vit_jax.tools.prepare.collection import Collection, CollectionRequest, PrepareOptions, is_text
from vit_jax.tools.prepare.entries import SPLIT_NAME
from vit_jax.tools.prepare.pipeline import WORK_DIR
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
    kind = _collection_name(arguments)
    output, remote = _output(kind)
    values = _flag_values(PrepareOptions)
    values["policy"] = tuple(sorted(FLAGS.policy))
    values["drop_duplicates_of"] = tuple(FLAGS.drop_duplicates_of)
    options = PrepareOptions(**values)
    screen = Screen()
    source = str(_local_path("source", FLAGS.source))
    request = CollectionRequest(**_flag_values(CollectionRequest) | {"source": source})
    collection = COLLECTIONS[kind](request)
    if FLAGS.name is not None:
        collection = dataclasses.replace(collection, name=FLAGS.name)
    if remote:
        _check_bucket(remote, output / collection.name / FLAGS.version)
    for note in collection.notes:
        screen.say(note)
    screen.say(f"{len(collection.parts):,} pieces, {len(collection.class_names):,} classes")
    share = pipeline.JOIN if FLAGS.join else pipeline.WHOLE
    if FLAGS.part is not None:
        share = pipeline.Share.parse(FLAGS.part)
        _refuse("join", "runner", rule="cannot be with --part.")
    if FLAGS.runner == "beam":
        folder = output / collection.name / options.version / WORK_DIR / "beam"
        run = tasks.beam_runner(folder, FLAGS.beam_flags)
    else:
        run = tasks.process_runner(FLAGS.workers or machine.cores())
    try:
        data_set = pipeline.prepare(collection, output, options, run, screen, share)
    except KeyboardInterrupt as error:
        raise Preempted("Stopped. What is done is kept: the same command goes on.") from error
    if data_set is None:
        return
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
    _refuse("scratch", rule="is for --output=gs://...: leave it out.")
    output = _local_path("output", FLAGS.output)
    if kind == "image_folder":
        folder = output / (FLAGS.name or kind) / FLAGS.version
        source = _local_path("source", FLAGS.source)
        if folder.resolve().is_relative_to(source.resolve()):
            rule = f"would put {folder} into --source={source}, as a class: give another."
            raise UserError(rule, field="--output", value=output)
    return output, ""


def _check_bucket(output: str, made: Path) -> None:
    """UserError if another data set than `made` is at the output; makes its folder there."""
    there = epath.Path(output) / made.parent.name / made.name
    if (there / NOTE).exists() and not (made / NOTE).is_file():
        rule = "holds a data set that was made elsewhere."
        raise UserError(rule, field=str(there), cure="Give another --version, or move it away.")
    there.mkdir(parents=True, exist_ok=True)


def _upload(data_set: PreparedSet, output: str, screen: Screen) -> epath.Path:
    """Copies what is missing, last the file that says that the data set is ready."""
    version = data_set.folder
    target = epath.Path(output) / version.parent.name / version.name
    tell = functools.partial(screen.bar, "uploading")
    cloud.upload(version, target, last=NOTE, leave_out=(WORK_DIR,), tell=tell)
    return target


def _collection_name(arguments: list[str]) -> str:
    kind = " ".join(arguments)
    if kind not in COLLECTIONS:
        raise UserError(f"No collection {kind!r}. {nearest(kind, COLLECTIONS)}")
    for field in FIELDS:
        kinds = field.metadata["only_for"] or COLLECTIONS
        rule = f"is for {' and '.join(kinds)}: leave it out."
        _refuse(field.name, when=kind not in kinds, rule=rule)
    return kind


def _refuse(*names: str, when: bool = True, rule: str) -> None:
    command.refuse_flags(*names, when=when, rule=rule, values=FLAGS)


def _flag_values(kind: type) -> dict[str, Any]:
    return {field.name: FLAGS[field.name].value for field in dataclasses.fields(kind)}


def _local_path(flag: str, path: str) -> Path:
    if not is_text(path) or "\0" in path or is_remote(path):
        rule = "is not a path in UTF-8 of this machine."
        cure = "Copy it to a disk, mount the bucket (gcsfuse), or give a link to it."
        raise UserError(rule, field=f"--{flag}", value=path, cure=cure)
    return Path(path).expanduser()


def _summarise(data_set: PreparedSet, screen: Screen) -> None:
    for split, size in data_set.splits.items():
        number, files = sum(size.shard_lengths), len(size.shard_lengths)
        sizes = f"{number:,} examples in {files:,} files, {format_bytes(size.nbytes)}"
        screen.say(f"{split:12} {sizes}")
    report = report_files.read(data_set.folder)
    if left_out := report["left_out"]:
        counts = ", ".join(f"{number:,} {reason}" for reason, number in left_out.items())
        screen.say(f"left out     {sum(left_out.values()):,} images: {counts}")
    for sentence in report_files.findings(report):
        screen.say(f"look at      {sentence}")
    screen.say(f"report       {data_set.folder / report_files.PAGE}")
    screen.say(f"content      {data_set.digest}")
    screen.say(f"ready        {data_set.folder}")
    fields = f"--config.input.source=tfds --config.input.data_dir={data_set.folder}"
    screen.say(f"next         vit-jax train --config finetune {fields} ...")


def define(values: flags.FlagValues = FLAGS) -> None:
    define_by_type: dict[str, Callable[..., Any]] = {
        "str": flags.DEFINE_string,
        "int": flags.DEFINE_integer,
        "float": flags.DEFINE_float,
        "bool": flags.DEFINE_boolean,
        "tuple[str, ...]": flags.DEFINE_multi_string,
    }
    text = functools.partial(flags.DEFINE_string, flag_values=values)
    choice = functools.partial(flags.DEFINE_enum, flag_values=values)
    text("source", None, "The collection: a file or a folder.")
    text("output", None, "The data set becomes OUTPUT/<name>/<version>; a folder, or gs://...")
    text("scratch", None, "For gs://: a folder to make it in; it stays. Default: a cache.")
    text("name", None, "Name of the data set; default: that of the collection.")
    flags.register_validator(
        "name",
        lambda name: name is None or re.fullmatch(SPLIT_NAME, name),
        "is not a name of a-z, 0-9 and _ that begins with a letter.",
        values,
    )
    for field in FIELDS:
        about = field.metadata
        help = about["help"] + f" ({', '.join(about['only_for'])})" * bool(about["only_for"])
        if about["choices"]:
            choice(field.name, field.default, about["choices"], help)
        else:
            define_one = define_by_type[str(field.type).removesuffix(" | None")]
            define_one(field.name, field.default, help, *about["bounds"], flag_values=values)
    most, here = tasks.MOST_WORKERS, dict[str, Any](flag_values=values)
    flags.DEFINE_integer("workers", None, "Processes; default: one per core.", 1, most, **here)
    choice("runner", "local", ("local", "beam"), "Processes here, or Apache Beam.")
    text("part", None, "As 3/20: does the work of the third of 20 machines (docs/imagenet21k.md).")
    flags.DEFINE_boolean("join", False, "Finishes what all --part made.", **here)
    about_beam = "Flags for Beam, as --runner=DataflowRunner,--project=ID."
    flags.DEFINE_list("beam_flags", [], about_beam, **here)
    flags.mark_flags_as_required(["source", "output"], values)


if __name__ == "__main__":
    define()
    command.run(main, positional=True)
