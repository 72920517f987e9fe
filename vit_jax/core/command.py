"""The start and end of every command: its flags, its exit status, its last message.

`--config.optim.lr=3e-4` overrides a field of the config. absl cannot know these flags before the
config file is read, so they are collected here and applied, with types, by config.py.
"""

import errno
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import app, flags, logging

from vit_jax.core import devices, errors, signals, synonyms, waiting

flags.disclaim_key_flags()  # --help shows what is defined here as the command's own

OVERRIDE = "config_override"
PREFIX = "--config."
_AT_HOME = re.compile(r"(-{0,2}(?:[\w.]+=)*)(~(?:/.*)?)", re.DOTALL)
_fields: list[str] = []  # the config's fields, if the command takes a config
_called: list[str] = []  # the program and command that `call_as` names


def define_config(fields: Sequence[str], required: bool = True) -> None:
    """Defines --config and makes --config.section.field=value work.

    fields: "optim.lr" and so on, for the message about a flag that was meant as one of them.
    """
    _fields.extend(fields)
    flags.DEFINE_string(
        "config",
        None,
        "Config: a file, or the name of one of the package's, such as vit_digits[:variant].",
    )
    flags.DEFINE_multi_string(
        OVERRIDE, [], "Overrides a field: --config.optim.lr=3e-4 is short for it. May be repeated."
    )
    if required:
        flags.mark_flag_as_required("config")


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
    flags.DEFINE_float("start_timeout_secs", 300, "How long to wait until all of them are there.")
    flags.DEFINE_float(
        "peer_timeout_secs", 60, "A process without a sign of life for so long counts as lost."
    )
    flags.DEFINE_float(
        "barrier_timeout_secs",
        600,
        "How long processes wait for the last before they save, restore or evaluate.",
    )


def run(main: Callable[[list[str]], None], *, positional: bool = False, hint: str = "") -> None:
    """Parses the flags, calls main(positional arguments), ends the process.

    The exit statuses are those of errors.py; a bug ends it with its traceback and 2.

    Args:
      main: the command.
      positional: whether it takes arguments beside its flags.
      hint: is added to the message about wrong flags.
    """
    _show_any_name()
    _open_closed()
    logging.set_verbosity(logging.WARNING)  # orbax logs a page per save; --verbosity=0 shows
    devices.expect_no_gpu()
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
        f"{match[1]}{os.path.expanduser(match[2])}" if (match := _AT_HOME.fullmatch(arg)) else arg
        for arg in argv[:last]
    ]
    return [*expanded, *argv[last:]]


def _show_any_name() -> None:
    """Lets a file name that cannot be shown not end a command. (TextIO lacks the method.)"""
    if sys.stdout is not None:  # of stderr it is Python's default
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _parse(argv: list[str], hint: str) -> list[str]:
    if any(arg in ("--help", "-h", "-help", "--helpshort") for arg in argv[1:]):
        app.usage(shorthelp=True, writeto_stdout=True, exitcode=errors.EXIT_OK)
    try:
        # Files of flags are read before absl does, since they may have overrides too.
        given = flags.FLAGS.read_flags_from_files(argv[1:], force_gnu=False)
        return flags.FLAGS([argv[0], *expand_home(spell_overrides(given))])
    except UnicodeDecodeError as error:
        print(f"error: A --flagfile is not text in UTF-8, save it so: {error}.", file=sys.stderr)
        raise SystemExit(errors.EXIT_USER_ERROR) from error
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
    meant = [f"{PREFIX}{field}" for field in synonyms.fields_meant(error.flagname, _fields)]
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
    """Prints the last message of a command that `error` has ended; returns its exit status.

    speaker: which of several processes this is, as a prefix.
    """
    match error:
        case errors.UserError() | errors.NonFiniteError() | errors.PeerLost():
            print(f"{speaker}error: {error}", file=sys.stderr)
            return error.exit_status
        case errors.Preempted():
            print(error, file=sys.stderr)
            return error.exit_status
        case KeyboardInterrupt():  # while training this is a signal like any other, see signals.py
            print(
                str(error)
                or "Stopped by SIGINT. Nothing was to be saved: start the same command again.",
                file=sys.stderr,
            )
            return errors.EXIT_PREEMPTED
        case BrokenPipeError():  # the reader of our output has gone, as in `predict ... | head`
            return errors.EXIT_OK
        case _ if (explained := _explained(error)) is not None:
            print(f"{speaker}error: {explained}", file=sys.stderr)
            return explained.exit_status
        case _:
            text = "".join(traceback.format_exception(error))
            print(f"{speaker}{text}", end="", file=sys.stderr)
            return errors.EXIT_INTERNAL


def _explained(error: BaseException) -> errors.UserError | None:
    """What the user can do about an error of devices, paths or storage; None for others."""
    from vit_jax.core import cloud  # imports etils, for which --help does not wait

    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return errors.UserError(f"{errors.safe_str(error)}: give a shorter path.")
    if isinstance(error, ValueError) and "embedded null" in str(error):
        return errors.UserError("A path contains a NUL character: leave it out.")
    return devices.unusable(error) or cloud.explained(error)


def _exit(status: int) -> None:
    signals.end_with(status)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:  # nobody reads any more: Python would complain again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if waiting.any_abandoned():
        os._exit(status)
    sys.exit(status)
