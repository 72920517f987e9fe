"""The start and end of every command: its flags, its exit status, its last message.

`--config.optim.lr=3e-4` overrides a field of the config. absl cannot know these flags before the
config file is read, so they are collected here and applied, with types, by config.py.

JAX looks for devices when one is first needed, long after the start of a command, and then raises
RuntimeError, or fails one of its own assertions. The cause is usually a setting of the user's.
"""

import difflib
import errno
import logging as py_logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import app, flags, logging

from vit_jax.core import errors, signals, synonyms, waiting

flags.disclaim_key_flags()  # --help shows what is defined here as the command's own

OVERRIDE = "config_override"
PREFIX = "--config."
_AT_HOME = re.compile(r"(-{0,2}(?:[\w.]+=)*)(~(?:/.*)?)", re.DOTALL)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors of writing alone
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
        OVERRIDE, [], "Overrides a field: --config.optim.lr=3e-4 is short for it. May be repeated."
    )


def define_checkpoint(more: str = "") -> None:
    """Defines --checkpoint: what weights.load takes. `more` ends its help."""
    flags.DEFINE_string(
        "checkpoint",
        None,
        "A run's work directory; RUN@best or RUN@300, a step of it; or weights: a file, a folder, "
        f"a name.{more}",
    )


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
        usage = lambda _: app.usage(shorthelp=True, writeto_stdout=True)
        _exit(_status(usage, [], positional=False))
    try:
        # Files of flags are read before absl does, since they may have overrides too.
        given = flags.FLAGS.read_flags_from_files(argv[1:], force_gnu=False)
        given = spell_overrides(given) if OVERRIDE in flags.FLAGS else given
        return flags.FLAGS([argv[0], *expand_home(given)])
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
    """Advice about an error of devices, paths or storage; None for others."""
    from vit_jax.core import cloud  # imports etils, for which --help does not wait

    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return errors.UserError(f"{errors.safe_str(error)}: give a shorter path.")
    if isinstance(error, OSError) and error.errno in _FULL:
        return _unwritten(error)
    if isinstance(error, ValueError) and "embedded null" in str(error):
        return errors.UserError("A path contains a NUL character: leave it out.")
    if isinstance(error, RuntimeError) and "determine home directory" in str(error):
        return errors.UserError(
            "A path begins with ~NAME, and no user of that name has a home folder here: write the "
            "folder."
        )
    return unusable(error) or cloud.explained(error)


def _unwritten(error: OSError) -> errors.UserError:
    return errors.UserError(
        f"{errors.safe_str(error)}: free space on the disk of the output, or write to another."
    )


def _flush(status: int) -> int:
    """Writes what was printed. Returns `status`, or another where that ends a good command."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        # Python would try once more at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        reader_has_gone = isinstance(error, BrokenPipeError)
        return status if status or reader_has_gone else report(_unwritten(error))
    return status


def _exit(status: int) -> None:
    signals.end_with(status)
    status = _flush(status)
    if waiting.any_abandoned():
        os._exit(status)
    sys.exit(status)


VARIABLE = "JAX_PLATFORMS"
_EXTRAS = {"gpu": "gpu", "cuda": "gpu", "tpu": "tpu"}  # platform -> its extra in setup.py
_FAILED = "Unable to initialize backend "
_DRIVER = Path("/proc/driver/nvidia")
_HINT = re.compile(r"\.? ?\((?:set JAX_PLATFORMS=|you may need to uninstall).*\)$", re.DOTALL)


def unusable(error: BaseException) -> errors.UserError | None:
    """The message for the user, if `error` is JAX's about missing devices; else None."""
    if not _is_of_devices(error):
        return None
    reason = _HINT.sub("", str(error)).removeprefix(_FAILED) or "no such device was found"
    wanted = _wanted()
    if not wanted:
        return errors.UserError(
            f"JAX cannot use the devices here ({reason}): {VARIABLE}=cpu does without."
        )
    there = _there()
    words = [word.strip().lower() for word in wanted.split(",")]
    meant = [m for word in words for m in difflib.get_close_matches(word, ["cpu", *_EXTRAS], n=1)]
    said = f"{VARIABLE}={wanted} is not what JAX can use here ({reason})."
    if meant and meant != wanted.split(","):
        said += f" Did you mean {','.join(meant)!r}?"
    said += f" Here there is {' and '.join(there)}: set {VARIABLE}={there[0]}, or unset it."
    extra = next((_EXTRAS[word] for word in words if word in _EXTRAS), None)
    if extra is not None:
        said += f" For a {extra.upper()}, docs/install.md: pip install '.[{extra}]' in the clone."
    return errors.UserError(said)


def expect_no_gpu() -> None:
    """Drops JAX's traceback about missing parts of CUDA where there is no driver for a GPU either.

    There its plugin serves to plan for GPUs that are not here (setup.py, "plan-gpu").
    """
    if not _DRIVER.exists():
        py_logging.getLogger("jax._src.xla_bridge").addFilter(_keeps)


def _keeps(record: py_logging.LogRecord) -> bool:
    cause = record.exc_info[1] if record.exc_info else None
    return not ("xla_cuda" in record.getMessage() and "Unable to load " in str(cause))


def _is_of_devices(error: BaseException) -> bool:
    if isinstance(error, RuntimeError):
        return str(error).startswith((_FAILED, "Unknown backend"))
    if not isinstance(error, AssertionError) or error.__traceback__ is None:
        return False
    last = traceback.extract_tb(error.__traceback__)[-1]  # "assert _default_backend is not None"
    return last.name == "backends" and "jax" in last.filename


def _wanted() -> str:
    """The platforms set for JAX, by the environment or by a program."""
    import jax

    return str(getattr(jax.config, "jax_platforms", None) or os.environ.get(VARIABLE) or "")


def _there() -> list[str]:
    """The platforms that can be used, best first; the CPU always can."""
    import jax
    import jax.extend

    if jax.distributed.is_initialized():  # looking again would wait for all processes
        return ["cpu"]
    try:
        jax.config.update("jax_platforms", "")
        best = jax.default_backend()
        return list(dict.fromkeys([best, *jax.extend.backend.backends()]))
    except Exception:  # for whatever reason, this platform cannot be used
        return ["cpu"]
