"""The start and end of every command: its flags, its exit status, its last message.

`--config.optim.lr=3e-4` overrides a field of the config. absl cannot know these flags before the
config file is read, so they are collected here and applied, with types, by config.py.
"""

import contextlib
import logging as py_logging
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags, logging

from vit_jax.core import class_names, errors, signals, waiting

flags.disclaim_key_flags()  # --help shows what is defined here as the command's own

flags.DEFINE_bool("traceback", False, "Show where an error comes from, besides its message.")
OVERRIDE = "config_override"
PREFIX = "--config."
_AT_HOME = re.compile(r"(-{0,2}(?:[\w.]+=)*)(~(?:/.*)?)", re.DOTALL)
# Errors about paths and devices, of Python and of JAX, that no code of ours has raised.
_OF_MACHINE = re.compile(
    "embedded null|determine home directory|Unable to initialize backend|Unknown backend"
)
_fields: list[Callable[[], Sequence[str]]] = []  # the config's, if the command takes a config
_called: list[str] = []  # the program and command that `call_as` names


def define_config(fields: Callable[[], Sequence[str]], required: bool = True) -> None:
    """Defines --config, and overrides of its fields."""
    flags.DEFINE_string(
        "config",
        None,
        "Config: a file, or the name of one of the package's, such as vit_digits[:variant].",
    )
    define_overrides(fields)
    if required:
        flags.mark_flag_as_required("config")


def define_overrides(fields: Callable[[], Sequence[str]]) -> None:
    """Makes --config.section.field=value work.

    fields: lists "optim.lr" and so on, for the message about a flag that was meant as one of them.
    """
    _fields.append(fields)
    flags.DEFINE_multi_string(
        OVERRIDE,
        [],
        "Overrides a field: --config.optim.lr=3e-4 is short for it. All fields: docs/config.md; "
        "--config.optim.x=1 names those of optim. May be repeated.",
    )


def define_checkpoint(more: str = "") -> None:
    """Defines --checkpoint: what weights.load takes. `more` ends its help."""
    flags.DEFINE_string(
        "checkpoint",
        None,
        "A run's work directory; RUN@best or RUN@300, a step of it; or weights: a file, a folder, "
        f"a name.{more}",
    )


def define_labels() -> None:
    """Defines --labels: what weights.with_labels takes."""
    flags.DEFINE_string(
        "labels",
        None,
        "An .npz or .parquet of class names and of what the text tower of CLIP or SigLIP makes "
        "of them: zero-shot.",
    )


def refuse_flags(
    *names: str, when: object, rule: str, values: flags.FlagValues = flags.FLAGS
) -> None:
    """Raises UserError `when` one of these flags must not be given, and is."""
    given = [name for name in names if values[name].present]
    if when and given:
        raise errors.UserError(rule, field=f"--{given[0]}")


def values(*names: str) -> dict[str, Any]:
    """The values of flags by their names, for a call whose arguments have these names."""
    return {name: flags.FLAGS[name].value for name in names}


def check_values(values: flags.FlagValues) -> None:
    """Raises flags.Error for a flag that is given and empty, or NaN, which has no bounds."""
    for name, flag in ((name, values[name]) for name in values):
        several = flag.value if isinstance(flag.value, list) else [flag.value]
        if flag.present and (not several or "" in several):
            raise flags.Error(f"--{name} is empty: give a value, or leave it out.")
        if isinstance(flag.value, float) and math.isnan(flag.value):
            raise flags.Error(f"--{name}={flag.value} is not a number.")


def define_processes() -> None:
    """Defines flags that differ from process to process, and so are not fields of a config."""
    flags.DEFINE_string(
        "coordinator",
        None,
        "HOST:PORT of process 0, with a free port. Cloud TPU, GKE and SLURM say this and the "
        "next two by themselves.",
    )
    flags.DEFINE_integer("num_processes", None, "How many processes train together.")
    flags.DEFINE_integer("process_id", None, "Which of them this is, from 0.")
    for name, secs, about in (
        ("start", 300, "How long to wait until all of them are there."),
        ("peer", 60, "A process without a sign of life for so long counts as lost."),
        ("barrier", 600, "How long processes wait for the last before they save or evaluate."),
    ):
        flags.DEFINE_float(f"{name}_timeout_secs", secs, about, 1, 1_000_000)


def run(main: Callable[[list[str]], None], *, positional: bool = False, hint: str = "") -> None:
    """Parses the flags, calls main(positional arguments), ends the process.

    The exit statuses are those of errors.py; a bug ends it with its traceback and 2.
    """
    _show_any_name()
    _open_closed()
    logging.set_verbosity(logging.WARNING)  # orbax logs a page per save; --verbosity=0 shows
    expect_no_gpu()
    app.run(
        lambda argv: _exit(_status(main, argv[1:], positional)),
        flags_parser=lambda argv: _parse(argv, hint),
    )


def _open_closed() -> None:
    """Output that was closed before the start, as by >&-, goes nowhere instead of failing."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115  # for the process's life


def call_as(program: str) -> None:
    """Says how the command was called, such as "vit-jax train", for the hint at --help."""
    _called.append(program)


def spell_overrides(argv: Sequence[str]) -> list[str]:
    """Rewrites --config.x.y=v, and --config.x.y v, to the flag that collects overrides."""
    rest: list[str] = []
    given = iter(argv)
    for arg in given:
        if arg == "--":
            return [*rest, arg, *given]
        # "--config.seed 3", one line of a file of flags, is left to absl, which refuses it.
        if not arg.startswith(PREFIX) or " " in arg.partition("=")[0]:
            rest.append(arg)
            continue
        rest.append(f"--{OVERRIDE}={arg.removeprefix(PREFIX)}")
        if "=" not in arg:  # the value is the next argument
            rest[-1] += f"={next(given, '')}"
    return rest


def expand_home(argv: Sequence[str]) -> list[str]:
    """The arguments before "--" with "~" for the home folder expanded.

    No shell does so in --workdir=~/runs, --config.input.data_dir=~/data or --data=birds=~/birds.
    """
    last = argv.index("--") if "--" in argv else len(argv)
    expanded = [
        f"{match[1]}{Path(match[2]).expanduser()}" if (match := _AT_HOME.fullmatch(arg)) else arg
        for arg in argv[:last]
    ]
    return [*expanded, *argv[last:]]


def _show_any_name() -> None:
    """Lets a file name that cannot be shown not end a command. (TextIO lacks the method.)"""
    if sys.stdout is not None:  # of stderr it is Python's default
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _parse(argv: list[str], hint: str) -> list[str]:
    if any(arg in ("--help", "-h", "-help", "--helpshort") for arg in argv[1:]):
        _exit(_status(lambda _: app.usage(shorthelp=True, writeto_stdout=True), [], False))
    try:
        # Files of flags are read before absl does, since they may have overrides too.
        given = flags.FLAGS.read_flags_from_files(argv[1:], force_gnu=False)
        given = spell_overrides(given) if OVERRIDE in flags.FLAGS else given
        positional = flags.FLAGS([argv[0], *expand_home(given)])
        check_values(flags.FLAGS)
        return positional
    except UnicodeDecodeError as error:
        print(f"error: A --flagfile is not text in UTF-8, save it so: {error}.", file=sys.stderr)
        raise SystemExit(errors.EXIT_USER_ERROR) from error
    except RuntimeError as error:  # of expand_home
        raise SystemExit(report(error)) from error
    except flags.Error as error:
        spec = sys.modules["__main__"].__spec__
        module = spec.name.removesuffix(".__main__") if spec else "vit_jax.<command>"
        called = _called[-1] if _called else f"python -m {module}"
        said = re.sub(r"(?m)^flag --(\w+)=None: Flag .*", r"--\1 is missing.", str(error))
        lines = [f"error: {said}", _meant(error), hint, f"Try: {called} --help"]
        print("\n".join(line for line in lines if line), file=sys.stderr)
        raise SystemExit(errors.EXIT_USER_ERROR) from error


def _meant(error: flags.Error) -> str:
    """A hint at the field that an unknown flag may stand for, as --lr for --config.optim.lr."""
    if not isinstance(error, flags.UnrecognizedFlagError):
        return ""
    from vit_jax.core import synonyms

    fields = [field for listed in _fields for field in listed()]
    meant = [f"{PREFIX}{field}" for field in synonyms.fields_meant(error.flagname, fields)]
    return f"Fields of the config are set by {' or '.join(meant[:3])}=VALUE." if meant else ""


def _status(main: Callable[[list[str]], None], arguments: list[str], positional: bool) -> int:
    try:
        signals.is_over()
        if arguments and not positional:
            given = " ".join(arguments)
            raise errors.UserError(f"Takes flags only, got {given!r}: is a -- missing?")
        main(arguments)
    except (Exception, KeyboardInterrupt) as error:
        return report(error)
    return errors.EXIT_OK


def report(error: BaseException, speaker: str = "") -> int:
    """Prints the last message of a command that `error` has ended; returns its exit status."""
    came_from, status = "".join(traceback.format_exception(error)), errors.EXIT_INTERNAL
    match error:
        case errors.UserError() | errors.NonFiniteError() | errors.PeerLost():
            text, status = f"{speaker}error: {error}", error.exit_status
        case errors.Preempted():
            text, status = str(error), error.exit_status
        case KeyboardInterrupt():  # while training this is a signal like any other, see signals.py
            text = str(error) or (
                "Stopped by SIGINT. Nothing was to be saved: start the same command again."
            )
            status = errors.EXIT_PREEMPTED
        case BrokenPipeError():  # the reader of our output has gone, as in `predict ... | head`
            return errors.EXIT_OK
        case _ if (explained := _explained(error)) is not None:
            text, status = f"{speaker}error: {explained}", explained.exit_status
        case _:
            text = speaker + came_from.rstrip("\n")
    with contextlib.suppress(OSError):  # a terminal that is lost leaves the status as it is
        shown = (came_from if shows_tracebacks() else "") + text
        print(class_names.printable_lines(shown), file=sys.stderr)
    return status


def shows_tracebacks() -> bool:
    """Returns whether --traceback was given."""
    return flags.FLAGS.is_parsed() and bool(flags.FLAGS.traceback)


def _explained(error: BaseException) -> errors.UserError | None:
    """An error about devices, paths, disks or storage, in its own words; else None."""
    from vit_jax.core import cloud  # imports etils, for which --help does not wait

    is_of_machine = isinstance(error, ValueError | RuntimeError) and _OF_MACHINE.search(str(error))
    cause = cloud.failure(error) or (error if isinstance(error, OSError) or is_of_machine else None)
    return errors.UserError(errors.describe_error(cause)) if cause else None


def _flush(status: int) -> int:
    """Writes what was printed. Returns `status`, or another where that ends a good command."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        # Python would try once more at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        reader_has_gone = isinstance(error, BrokenPipeError)
        return status if status or reader_has_gone else report(error)
    return status


def _exit(status: int) -> None:
    signals.end_with(status)
    status = _flush(status)
    if waiting.any_abandoned():
        os._exit(status)
    sys.exit(status)


_DRIVER = Path("/proc/driver/nvidia")


def expect_no_gpu() -> None:
    """Drops JAX's traceback about missing parts of CUDA where there is no driver for a GPU either.

    There its plugin serves to plan for GPUs that are not here (setup.py, "plan-gpu").
    """
    if not _DRIVER.exists():
        py_logging.getLogger("jax._src.xla_bridge").addFilter(_keeps)


def _keeps(record: py_logging.LogRecord) -> bool:
    cause = record.exc_info[1] if record.exc_info else None
    return not ("xla_cuda" in record.getMessage() and "Unable to load " in str(cause))
