"""Every command with wrong arguments: one message, status 1, no traceback.

One process imports all commands, and a fork of it runs each: an import of them takes seconds.
"""

import json
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "vit_jax"
COMMANDS = sorted(
    (file.parent if file.name == "__main__.py" else file).stem
    for file in [*PACKAGE.glob("*.py"), *PACKAGE.glob("*/__main__.py")]
    if "\n    command.run(main" in file.read_text()
)
NOWHERE = "/nowhere/x"
# What names a file that is not there; {out} is a folder that may be made.
MISSING = {
    "convert": ["--input", NOWHERE, "--output={out}/a.npz"],
    "evaluate": ["--checkpoint", NOWHERE],
    "export": ["--checkpoint", NOWHERE, "--output={out}/a"],
    "plan": [f"--config={NOWHERE}.py"],
    "predict": ["--checkpoint", NOWHERE, "docs/digits/5_28.png"],
    "prepare": ["image_folder", "--source", NOWHERE, "--output={out}/a"],
    "preview": [f"--config={NOWHERE}.py", "--output={out}/a.png"],
    "report": [NOWHERE],
    "sweep": ["--workdir={out}/a", "--", f"--config={NOWHERE}.py"],
    "train": [f"--config={NOWHERE}.py", "--workdir={out}/a"],
    "verify": [f"--workdir={NOWHERE}"],
}
PROGRAM = """
import contextlib, importlib, json, os, runpy, sys, tempfile
commands, cases = json.loads(sys.argv[1])
for command in commands:
    importlib.import_module(f"vit_jax.{command}")
    with contextlib.suppress(ImportError):
        importlib.import_module(f"vit_jax.{command}.__main__")
for command, arguments in cases:
    files = [tempfile.TemporaryFile("w+") for _ in range(2)]
    child = os.fork()
    if child == 0:
        for number, file in enumerate(files, start=1):
            os.dup2(file.fileno(), number)
        sys.argv = sys.orig_argv = [command, *arguments]
        main = f"vit_jax.{command}.__main__"
        here = main if main in sys.modules else f"vit_jax.{command}"
        del sys.modules[here]  # as `python -m` finds it
        runpy.run_module(f"vit_jax.{command}", run_name="__main__", alter_sys=True)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    said = [(file.seek(0), file.read())[1] for file in files]
    print(json.dumps([command, arguments, status, *said]), flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("commands")


@pytest.fixture
def run(run_python, folder):
    """`run(arguments by command)`: (status, stdout, stderr) of each."""

    def run(arguments):
        cases = [(c, [a.format(out=folder) for a in args]) for c, args in arguments.items()]
        done = run_python("-c", PROGRAM, json.dumps([COMMANDS, cases]))
        assert done.returncode == 0, done.stderr
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        return {command: tuple(rest) for command, _, *rest in rows}

    return run


def check_refused(found, message):
    assert list(found) == COMMANDS
    for command, (status, out, err) in found.items():
        assert status == 1, f"{command}: {err}"
        assert "Traceback" not in err, err
        assert len(re.findall(r"(?m)^error: ", err)) == 1, f"{command}: {err}"
        assert re.search(message, err), f"{command}: {err}"
        assert out == "", f"{command}: {out}"


def test_all_commands_are_tried():
    assert sorted(MISSING) == COMMANDS


def test_no_arguments(run):
    check_refused(run({command: [] for command in COMMANDS}), r"missing|[Gg]ive|Which|No config")


@pytest.mark.slow
def test_an_unknown_flag(run):
    found = run({command: ["--nosuchflag=1"] for command in COMMANDS})
    check_refused(found, r"nosuchflag(.|\n)*Try: python -m vit_jax\.\w+ --help\n$")


def test_a_file_that_is_not_there(run, folder):
    check_refused(run(MISSING), re.escape(NOWHERE))
    assert not list(folder.iterdir())


@pytest.mark.slow
def test_help_is_no_failure(run):
    for command, (status, out, err) in run({command: ["--help"] for command in COMMANDS}).items():
        assert (status, err) == (0, ""), command
        assert "--" in out, command
