"""A work directory's identity: config.json records its run, and every start in it.

    {"config": the resolved config, "fingerprint": the data set's, "runs": [one entry per start]}

A run may be resumed only with the config it was started with: otherwise its result would belong to
neither config, and nothing would show it.
"""

import contextlib
import errno
import importlib.util
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from etils import epath

from vit_jax.core.errors import UserError, describe_error, reading, writing
from vit_jax.core.files import expand_home, is_folder, is_remote, parse_json, write_file
from vit_jax.core.screen import format_bytes

# TensorStore, of checkpoints and of the lock, would wait for ever for a connection that has died: a
# minute without a byte ends an attempt, and another follows. It reads these at its first request.
os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", "60")
os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1")

T = TypeVar("T")

CONFIG_FILE = "config.json"
PICTURES = "pictures"  # folder of what evaluations draw: NAME/PICTURE/STEP.png
TYPES = {"config": dict, "fingerprint": dict, "runs": list}  # types of its entries
UNFINISHED = "*.orbax-checkpoint-tmp*"  # folders of checkpoints while they are written
FINISHED = "commit_success.txt"  # the last object of a checkpoint at gs://, where none is renamed
# Steps' folders as they are written: not "007", "²" or digits of other scripts.
STEP_NAME = re.compile(r"0|[1-9][0-9]{0,17}")


class NotARun(UserError):
    """A folder that is not a work directory, such as an export among runs/*/."""


class MayDiffer(NamedTuple):
    """Fields in which a directory's config may differ from a run that resumes there."""

    # Dotted prefixes of fields, e.g. "log" or "input.threads", or patterns with "*".
    fields: Sequence[str] = ()
    # Lists of steps, which may differ in steps after the newest checkpoint.
    step_fields: Sequence[str] = ()
    # Completes the directory's config, which an older version may have written.
    with_new_fields: Callable[[dict[str, Any]], dict[str, Any]] = lambda config: config

    def differences(
        self, there: Mapping[str, Any], here: Mapping[str, Any], *, saved_step: int
    ) -> tuple[dict[str, str], dict[str, str]]:
        """(all differences, the forbidden ones): field -> "field: value there, value here".

        there, here: "config" and "fingerprint" of the directory, at `saved_step`, and of the run.
        """
        there = {**there, "config": self.with_new_fields(there["config"])}

        def may_differ(field: str) -> bool:
            if any(fnmatchcase(field, f) or field.startswith(f"{f}.") for f in self.fields):
                return True
            if field not in self.step_fields:
                return False
            lists = (flatten(each["config"]).get(field, "[]") for each in (there, here))
            try:
                theirs, ours = (set(json.loads(steps)) for steps in lists)
                return all(step > saved_step for step in theirs ^ ours)
            except TypeError:  # not lists of numbers: the file was edited
                return False

        every = differences(there, here)
        return every, {field: text for field, text in every.items() if not may_differ(field)}


_HASHED = {  # explanations of hashes that differ
    "data fingerprint.input": "\nThe training images, their names or labels have changed.",
    "data fingerprint.teacher": (
        "\nThe weights at method.teacher have changed. A work directory means its newest "
        "checkpoint; DIR/checkpoints/STEP stays the same."
    ),
}


class WorkdirRecord(NamedTuple):
    """A run that may work in a directory; see `check_workdir`."""

    folder: epath.Path  # the work directory
    document: dict[str, Any]  # the new config.json, still without this run in its list
    changes: list[str]  # the differences from the directory's config, all of them allowed


def check_workdir(
    path: epath.PathLike,
    *,
    config: Mapping[str, Any],
    fingerprint: Mapping[str, str],
    may_differ: MayDiffer,
    allow_config_change: bool,
) -> WorkdirRecord:
    """Checks that this run may start or resume in a work directory; creates only the folder.

    config: nested dictionary of JSON values. fingerprint: the data set's.

    `changes` of the result are e.g. ["optim.lr: 0.001 there, 0.003 here"]. Allowed are those that
    `may_differ` allows, all with `allow_config_change`, and all as long as there is no checkpoint,
    since training then starts from the beginning. Others are refused.
    """
    folder = epath.Path(path)
    make(folder)
    before = _read(folder, allow_config_change)
    now = json.loads(json.dumps({"config": config, "fingerprint": fingerprint}))
    changes: dict[str, str] = {}
    if before:
        saved = steps(folder / "checkpoints")
        changes, bound = may_differ.differences(before, now, saved_step=max(saved, default=0))
        if bound and saved and not allow_config_change:
            raise UserError(
                f"The work directory {folder} belongs to a run with another config:\n  "
                + "\n  ".join(bound.values())
                + "".join(text for field, text in _HASHED.items() if field in bound)
                + "\nUse the same values to resume it, or another --workdir for a new run, which "
                f"--config.init.weights={folder} starts from this one (init.head=reset for other "
                "classes); --allow_config_change goes on with the new values."
            )
    document = {**now, "runs": before["runs"] if before else []}
    return WorkdirRecord(folder, document, changes=list(changes.values()))


def write_record(record: WorkdirRecord, run: Mapping[str, Any]) -> str:
    """Writes config.json atomically: the config, and `run` added to the list of runs.

    Call it after all checks of the config. run: versions, commit, devices ...; "config_changes" is
    added, and an "id", which is returned for `check_owner`. On several hosts only process 0 calls
    it.
    """
    start = {**run, "config_changes": record.changes, "id": uuid.uuid4().hex}
    runs = [*record.document["runs"], start]
    save_json(record.folder / CONFIG_FILE, {**record.document, "runs": runs})
    return start["id"]


def check_owner(folder: epath.Path, run_id: str) -> None:
    """Raises UserError if another run has started in the work directory since this one did."""
    try:
        runs = read_document(folder)["runs"]
    except UserError:  # deleted or damaged, by whatever: a reason at the next start, not to end
        return
    if runs and runs[-1].get("id") != run_id:
        raise UserError(f"Another run has started in {folder}: give this one another --workdir.")


def read_document(path: epath.PathLike) -> dict[str, Any]:
    """The contents of config.json: "config", "fingerprint", "runs"."""
    file = epath.Path(path) / CONFIG_FILE
    if not file.exists():
        raise UserError(f"{path} is not a work directory: it has no {CONFIG_FILE}.")
    return _load(file)


def steps(directory: epath.PathLike) -> list[int]:
    """The steps that were saved in a checkpoints folder, valid or not, in ascending order.

    An unfinished one has another name; at gs:// it has all but its last object.
    """
    folder = epath.Path(directory)
    names = [child.name for child in folder.iterdir()] if is_folder(folder) else []
    names = [name for name in names if STEP_NAME.fullmatch(name)]
    if is_remote(folder):
        names = [name for name in names if (folder / name / FINISHED).exists()]
    return sorted(map(int, names))


def saved_step(folder: epath.PathLike) -> int:
    """The step of a work directory's newest checkpoint; 0 if there is none."""
    return max(steps(epath.Path(folder) / "checkpoints"), default=0)


def make(folder: epath.Path) -> None:
    """Creates the folder and its parents. Raises UserError if it cannot."""
    with writing("--workdir", folder):
        folder.mkdir(parents=True, exist_ok=True)


def save(file: epath.Path, content: str | bytes, *, private: bool = False) -> None:
    """Writes a file of a work directory, as `write_file`. Raises UserError if it cannot."""
    with writing("--workdir", file):
        write_file(file, content, private=private)


def save_json(file: epath.Path, document: Any) -> None:
    """Writes JSON for people and programs, as `save`."""
    save(file, json.dumps(document, indent=2) + "\n")


@contextlib.contextmanager
def explain_damage(name: object, cure: str = "") -> Iterator[None]:
    """Turns exceptions from reading a damaged file of a work directory into a UserError."""
    try:
        yield
    except (OSError, TypeError, LookupError, AttributeError, ValueError, ArithmeticError) as error:
        rule = f"is damaged: {describe_error(error)}."
        raise UserError(rule, field=str(name), cure=cure) from error


def read_json(file: Path | epath.Path, parse: Callable[[Any], T], remedy: str) -> T | None:
    """Parses the JSON of a file; None if there is no file."""
    with explain_damage(file, remedy):
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            return None
        return parse(parse_json(data))


def _read(folder: epath.Path, allow_config_change: bool) -> dict[str, Any] | None:
    file = folder / CONFIG_FILE
    if not file.exists():
        # A run that is killed early has created an empty folder.
        traces = ["checkpoints"] if steps(folder / "checkpoints") else []
        traces += ["metrics.jsonl"] if (folder / "metrics.jsonl").exists() else []
        if traces and not allow_config_change:
            rule = f"has {' and '.join(traces)} but no {CONFIG_FILE}."
            cure = "Give another --workdir, or --allow_config_change."
            raise UserError(rule, field=str(folder), cure=cure)
        return None
    return _load(file)


def _load(file: epath.Path) -> dict[str, Any]:
    cure = "Put back a copy of it, or move it away and give --allow_config_change."
    with reading("--workdir", file, cure=cure):
        document = parse_json(file.read_bytes())
        entries = document.keys() if isinstance(document, dict) else ()
        if entries and not TYPES.keys() & entries:  # of transformers or timm, perhaps
            rule = f"is not a work directory: its {CONFIG_FILE} is of something else."
            cure = f"Weights are given as --config.init.weights={file.parent}."
            raise NotARun(rule, field=str(file.parent), cure=cure)
        wrong = [k for k, t in TYPES.items() if k not in entries or type(document[k]) is not t]
        if wrong or not all(isinstance(run, dict) for run in document["runs"]):
            raise ValueError(f"its {(wrong or ['runs'])[0]!r} is missing or of another type")
    from vit_jax.core.schema import renamed

    config = renamed.fields(document["config"])
    return {key: document[key] for key in TYPES} | {"config": config}


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, str]:
    """Differences in config and fingerprint: field -> "field: value there, value here"."""
    there = flatten(there["config"]) | flatten({"data fingerprint": there["fingerprint"]})
    here = flatten(here["config"]) | flatten({"data fingerprint": here["fingerprint"]})
    return {
        name: f"{name}: {there.get(name, 'nothing')} there, {here.get(name, 'nothing')} here"
        for name in here | there
        if there.get(name) != here.get(name)
    }


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """{"optim": {"lr": 0.1}} -> {"optim.lr": "0.1"}; values as JSON, so that 1 is not 1.0."""
    flat = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            flat.update(flatten(value, f"{name}."))
        else:
            flat[name] = json.dumps(value)
    return flat


def named(path: epath.PathLike) -> epath.Path:
    """The folder that --workdir names. Raises UserError for none, and for storage of no library."""
    if not os.fspath(path):
        raise UserError("--workdir is empty: give the folder for checkpoints and logs.")
    cure = "Give a folder or gs://..., or mount that storage as a folder."
    with writing("--workdir", path, cure=cure):
        try:
            folder = epath.Path(expand_home(path))
        except KeyError as error:  # a scheme that etils does not know, such as memory://
            raise ValueError(f"the scheme {error} is unknown") from error
        is_step = re.search(r"@(\d+|best)$", folder.name) and not folder.exists()
    if is_step:
        rule = "is a step of a run, which --checkpoint and --config.init.weights read"
        raise UserError(f"{rule}; give the run, or another name.", field=f"--workdir={path}")
    return folder


def check_name(folder: epath.Path) -> None:
    """Raises UserError for a folder of checkpoints whose path orbax cannot read them back from."""
    path = (folder if is_remote(folder) else folder.absolute()).as_posix()
    is_text = path.encode(errors="ignore").decode() == path
    if not is_text or "[" in path or "\\" in path:  # orbax takes them for a pattern's
        raise UserError(f"Orbax cannot read {path!a}: it has [ or \\, or is not UTF-8.")


def check_writable(folder: epath.Path) -> None:
    """Raises UserError if the work directory cannot be created or written; leaves no trace.

    It writes a file: permissions alone are not reliable, least of all for root.
    """
    check_name(folder)
    if is_remote(folder):
        if not str(folder).startswith("gs://") or not has_google_storage():
            rule = "is not a folder, nor at gs:// with google-cloud-storage."
            cure = "pip install 'vit-jax-pretraining[gcs]'"
            raise UserError(rule, field="--workdir", value=folder, cure=cure)
        return
    with writing("--workdir", folder):
        try_writing(folder)


def has_google_storage() -> bool:
    """Returns whether google-cloud-storage is installed."""
    try:
        return importlib.util.find_spec("google.cloud.storage") is not None
    except ModuleNotFoundError:  # google.cloud is not there either
        return False


def try_writing(folder: Path | epath.Path) -> None:
    """Raises OSError if no file can be written to the local folder, or where it would be made."""
    there = _nearest_existing(folder)
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"{there} is a file")
    with tempfile.TemporaryFile(dir=there):
        pass


def check_output(
    path: epath.PathLike, flag: str = "output", endings: Sequence[str] = ()
) -> epath.Path:
    """The file that a flag names; leaves no trace."""
    file = epath.Path(path).expanduser()
    is_text = str(file) == str(file).encode(errors="replace").decode()
    if endings and not (is_text and file.suffix in endings):
        rule = f"is not a name in UTF-8 that ends in {' or '.join(endings)}."
        raise UserError(rule, field=f"--{flag}", value=file)
    with writing(f"--{flag}", file):
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        if not is_remote(file):
            try_writing(file.parent)
    return file


def write_output(file: epath.PathLike, content: str | bytes, flag: str = "output") -> None:
    """Writes a file that a flag names, all of it or nothing; its folder is made."""
    with writing(f"--{flag}", file):
        path = epath.Path(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content)


def check_disk_space(
    folder: epath.Path,
    *,
    checkpoint_bytes: int,
    keep_last: int,
    keep_every_steps: int | None,
    keep_best: bool,
    every_steps: int,
    total_steps: int,
) -> None:
    """Raises UserError if the checkpoints of a run do not fit on its disk; only for local disks.

    There is one more than the `keep_last` that are kept, since a new one is complete before an old
    one is deleted. Of those before, multiples of `keep_every_steps` stay, and the best.
    """
    if is_remote(folder):
        return
    checkpoints = folder / "checkpoints"  # perhaps a link to another disk
    there = steps(checkpoints)
    latest = max(there, default=0)
    if latest >= total_steps:
        return
    to_come = range((latest // every_steps + 1) * every_steps, total_steps, every_steps)
    # At the end, when the last one is written.
    all_steps = [*there, *to_come, total_steps]
    older = all_steps[: -(keep_last + 1)]
    stay = sum(step % keep_every_steps == 0 for step in older) if keep_every_steps else 0
    stay += keep_best and stay < len(older)
    most = min(keep_last + 1, len(all_steps)) + stay
    missing = max(most - len(there), 1)
    needed = missing * checkpoint_bytes
    unfinished = checkpoints.glob(UNFINISHED)  # the start deletes them
    free = shutil.disk_usage(_nearest_existing(checkpoints)).free + sum(
        map(folder_bytes, unfinished)
    )
    if needed > free:
        kept = f"checkpoint.keep_last={keep_last}, and one more while it is written"
        kept += f", and {stay} for checkpoint.keep_every_steps or best_metric" if stay else ""
        rule = f"has {format_bytes(free)} free; {missing} more checkpoints need "
        rule += f"{format_bytes(needed)}: {kept}. Free some, or keep fewer."
        raise UserError(rule, field=f"The disk of {folder}")


def folder_bytes(folder: epath.Path) -> int:
    """Bytes of the files below a local folder, which another process may be deleting."""
    total = 0
    for path in Path(folder).rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _nearest_existing(folder: Path | epath.Path) -> Path | epath.Path:
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())
