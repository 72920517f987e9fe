"""Evaluations of data that no config describes: folders, and sets that are known by name.

--data FOLDER            named after its split
--data NAME=FOLDER       a name of SETS, or any other
"""

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

from etils import epath

from vit_jax import config as configs
from vit_jax import weights
from vit_jax.core import synsets
from vit_jax.core.errors import UnknownSplit, UserError
from vit_jax.data.source import Source, share_examples
from vit_jax.data.sources import image_folder, splits
from vit_jax.evals import CLASSIFICATION, FROZEN
from vit_jax.run.parts import examples
from vit_jax.run.parts.preprocessing import OF_WEIGHTS
from vit_jax.store.metrics import RESERVED
from vit_jax.store.workdir import read_document

SPLITS = ("test", "validation", splits.ALL, "val")  # the first that is there

KINDS = (CLASSIFICATION, FROZEN)  # of evaluations of --data
REAL = "imagenet_real"
V2, OBJECTNET = "imagenet_v2", "objectnet"  # of evals.*.classes too
# The fields of their evaluations.
SETS: Mapping[str, Mapping[str, Any]] = {
    "imagenet": {},
    REAL: {},
    V2: {"classes": V2},
    "imagenet_a": {},
    "imagenet_r": {},
    "imagenet_sketch": {},
    # Around its images is a frame of 2 red pixels.
    OBJECTNET: {"classes": OBJECTNET, "preprocess": f"crop_border(2)|{OF_WEIGHTS}"},
}


class Data(NamedTuple):
    """A folder to evaluate on, and the name that it is given; None: that of its split."""

    folder: str
    name: str | None


def parse(text: str) -> Data:
    """ "imagenet_v2=/data/v2" or "/data/v2"."""
    match = re.fullmatch(r"([A-Za-z_]\w*)=(.+)", text)
    return Data(match[2], match[1]) if match else Data(text, None)


def training_fingerprints(checkpoints: Iterable[epath.Path]) -> Set[str]:
    """Fingerprints of what these were trained on, as far as their work directories say."""
    fingerprints = set()
    for checkpoint in checkpoints:
        if not weights.is_external(checkpoint):
            with contextlib.suppress(UserError):
                fingerprints.add(read_document(checkpoint.parent.parent)["fingerprint"]["input"])
    return fingerprints


def was_trained_on(checkpoint: epath.Path, source: Source) -> bool:
    """Tells whether a checkpoint learnt from examples of a source, as its work directory says."""
    with contextlib.suppress(UserError):  # its data may be elsewhere
        config = configs.resolve(read_document(checkpoint.parent.parent)["config"])
        learnt = examples.source(config.input)
        if (learnt.name, learnt.location) == (source.name, source.location):
            return share_examples(learnt, source)
    return source.fingerprint in training_fingerprints([checkpoint])


def on_data(
    data: Sequence[str],
    *,
    trained_on: Set[str] = frozenset(),
    split: str | None,
    kinds: Sequence[str],
    batch_size: int,
    labels: str | None,
    classes: str | None,
    sigmoid: bool = False,
    overrides: Sequence[str] = (),
) -> dict[str, Any]:
    """A config that evaluates weights on these data as they say.

    Args:
      trained_on: what `training_fingerprints` gives: of such data without splits `val` is scored.
      split: of all of them; None: one of SPLITS.
      labels, classes: fields of the evaluations, for data that are not known by name; `labels` are
        those of imagenet_real too.
      sigmoid: whether the weights' probabilities are sigmoids, for which there is no calibration.
      overrides: of the config that is returned, which is without them; those of `input` and of
        evaluations' labels say how data are opened.
    """
    if not kinds or set(kinds) - set(KINDS) or len(set(kinds)) < len(kinds):
        raise UserError(f"--kinds={','.join(kinds)}: give {' or '.join(KINDS)}, or both.")
    evals: dict[str, Any] = {}
    of_input = [override for override in overrides if override.startswith("input.")]
    input = configs.resolve(_config(data[0], batch_size, {}), of_input).input
    for folder, name in map(parse, data):
        location = _location(folder)
        names = [name] if name else map(_own_name, [split] if split else SPLITS)
        label = _label([_name(one, kind, kinds) for one in names for kind in kinds], overrides)
        where = f"evals.{name}" if name else "--data"
        open_split = functools.partial(
            examples.open_split, input, where, source=location["source"], label=label,
            data_dir=location["data_dir"], num_examples=None, num_classes=None, image_size=(1, 1),
        )  # fmt: skip
        chosen, source = _open(open_split, split)
        fields = {**location, "split": chosen, "preprocess": OF_WEIGHTS}
        fields |= _fields(folder, name, source, labels, classes)
        # One label an image is what probabilities can be compared with.
        single = source.max_labels == 1 and not {"labels", OBJECTNET} & {*fields, *fields.values()}
        is_all = chosen == splits.ALL and split is None
        overlaps = (
            is_all and bool(trained_on) and open_split(split="train").fingerprint in trained_on
        )
        for each in kinds:
            # `all` contains `train`, from which features are learnt.
            apart = is_all and (overlaps or each == FROZEN)
            scored = "val" if apart else chosen
            called = _name(name or _own_name(scored), each, kinds)
            if called in evals:
                raise UserError(f"--data {folder}: two are called {called}. Write NAME={folder}.")
            evals[called] = {"kind": each, **fields, "split": scored}
            if each == CLASSIFICATION:
                evals[called]["calibration"] = single and not sigmoid
    config = _config(data[0], batch_size, evals)
    examples.check_fields(configs.resolve(config, of_input))
    return config


def _own_name(split: str) -> str:
    """The name of a split's evaluation: as evaluations have them, and none of the log's own."""
    own = re.sub(r"\W", "_", split.partition("[")[0])
    return f"of_{own}" if own in RESERVED or not own.isidentifier() else own


def _name(name: str, kind: str, kinds: Sequence[str]) -> str:
    return f"{name}_{kind}" if len(kinds) > 1 else name


def _label(names: Sequence[str], overrides: Sequence[str]) -> str | None:
    """The field `label` of the first of the evaluations of these names that has one."""
    for name in names:
        field = f"evals.{name}.label="
        chosen = [override for override in overrides if override.startswith(field)]
        config = configs.resolve({"total": {"steps": 1}, "evals": {name: {}}}, chosen)
        if config.evals[name].label is not None:
            return config.evals[name].label
    return None


def unlabelled(data: str, split: str, *, name: str, batch_size: int) -> dict[str, Any]:
    """A config whose evaluation `name` is of the images of a split, prepared as weights say."""
    evaluation = {**_location(parse(data).folder), "split": split, "preprocess": OF_WEIGHTS}
    return _config(data, batch_size, {name: evaluation})


def _location(folder: str) -> dict[str, str]:
    """The fields that name a folder's data."""
    from vit_jax.data.sources.table_file import is_table  # Arrow takes a while to import

    kind = "tfds" if image_folder.is_tfds_folder(folder) else "image_folder"
    kind = "image_table" if is_table(folder) else kind
    return {"source": kind, "data_dir": folder}


def _config(data: str, batch_size: int, evals: Mapping[str, Any]) -> dict[str, Any]:
    input = {**_location(parse(data).folder), "batch_size": batch_size}
    return {"input": input, "evals": evals, "total": {"steps": 1}}


def _fields(
    folder: str, name: str | None, source: Source, labels: str | None, classes: str | None
) -> dict[str, Any]:
    """The fields that an evaluation of these data needs beside the data."""
    if name is None or name not in SETS:
        given = {"labels": labels, "classes": classes}
        found = {field: value for field, value in given.items() if value is not None}
        known = found.get("classes") or ("" if found else recognised(source.class_names or ()))
        return {**SETS.get(known, {}), **found}
    if name == REAL and labels is None:
        raise UserError(
            f"--data {REAL} needs --labels=real.json (google-research/reassessed-imagenet)."
        )
    _check_complete(folder, name, source)
    if name == V2 and synsets.wordnet_ids(source.class_names or ()):  # as TFDS has them
        return {}
    return {**SETS[name], **({"labels": labels} if name == REAL else {})}


def recognised(class_names: Sequence[str]) -> str:
    """The set whose folders have these names and can be taken for nothing else; "" for none."""
    names = set(class_names)
    if names == {str(number) for number in range(1000)}:
        return V2
    return OBJECTNET if names > synsets.objectnet().keys() else ""


def _check_complete(folder: str, name: str, source: Source) -> None:
    """UserError unless the classes of `source` are those that the set of this name has."""
    expected = synsets.imagenet_sets().get(name)
    if name in ("imagenet", "imagenet_sketch"):
        expected = tuple(synsets.names_1k())
    found = synsets.wordnet_ids(source.class_names or ())
    if expected is None or (found and set(found) == set(expected)):
        return
    lacking = sorted(set(expected) - set(found or ()))
    raise UserError(
        f"--data {name}={folder} does not have the {len(expected):,} classes of {name}, by their "
        f"WordNet ids: {len(lacking):,} are missing, such as {', '.join(lacking[:3])}. Complete "
        f"it, or leave the name out: {folder} alone is scored on the classes that are there."
        if lacking
        else f"--data {name}={folder} has classes that {name} has not."
    )


def _open(open_split: Callable[..., Source], split: str | None) -> tuple[str, Source]:
    """The split to score, and its examples. UserError that says which splits there are."""
    *others, last = [split] if split else SPLITS
    for name in others:
        with contextlib.suppress(UnknownSplit):  # one that cannot be read is no reason for another
            return name, open_split(split=name)
    return last, open_split(split=last)
