"""Every command given wrong arguments: one message, status 1, no traceback."""

import re
from pathlib import Path

import pytest

from tests.messages import told
from vit_jax import __main__ as console

PACKAGE = Path(console.__file__).parent
COMMANDS = sorted(console.COMMANDS.keys() - {"models", "info"})  # which need no arguments
NOWHERE = "/nowhere/x"
# Arguments that name a missing file; {out} is a folder that may be made.
MISSING = {
    "convert": ["--input", NOWHERE, "--output={out}/a.npz"],
    "demo": ["--checkpoint", NOWHERE, "--port=0"],
    "embed": ["--checkpoint", NOWHERE, "--output={out}/a.parquet", "docs"],
    "evaluate": ["--checkpoint", NOWHERE],
    "export": ["--checkpoint", NOWHERE, "--output={out}/a"],
    "find_lr": [f"--config={NOWHERE}.py"],
    "neighbours": ["--duplicates", NOWHERE],
    "plan": [f"--config={NOWHERE}.py"],
    "predict": ["--checkpoint", NOWHERE, "docs/digits/5_28.png"],
    "prepare": ["image_folder", "--source", NOWHERE, "--output={out}/a"],
    "preview": [f"--config={NOWHERE}.py", "--output={out}/a.png"],
    "report": [NOWHERE],
    "soup": [NOWHERE, f"{NOWHERE}2", "--data=docs", "--output={out}/a"],
    "study": [f"--config={NOWHERE}.py", "--workdir={out}/a"],
    "sweep": ["--workdir={out}/a", "--", f"--config={NOWHERE}.py"],
    "train": [f"--config={NOWHERE}.py", "--workdir={out}/a"],
    "transfer": ["--checkpoint=none", f"--config={NOWHERE}.py", "--workdir={out}/a"],
    "verify": [f"--workdir={NOWHERE}"],
    "visualize": ["--checkpoint", NOWHERE, "--images=docs/digits", "--output={out}/a"],
    "vtab": [
        "--checkpoint=none",
        "--config=configs/vtab.py",
        f"--data={NOWHERE}",
        "--workdir={out}/a",
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("commands")


@pytest.fixture
def run(run_python, folder):
    """`run(arguments by command)`: the finished process of each command."""

    def run(arguments):
        return {
            command: run_python("-m", "vit_jax", command, *(a.format(out=folder) for a in given))
            for command, given in arguments.items()
        }

    return run


def check_refused(processes, message):
    assert list(processes) == COMMANDS
    for command, done in processes.items():
        assert done.returncode == 1, f"{command}: {done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        assert len(re.findall(r"(?m)^error: ", done.stderr)) == 1, f"{command}: {done.stderr}"
        assert re.search(message, done.stderr), f"{command}: {done.stderr}"
        assert done.stdout == "", f"{command}: {done.stdout}"


def test_all_commands_are_tried():
    assert sorted(MISSING) == COMMANDS


def test_every_command_is_listed():
    files = [f for f in PACKAGE.rglob("*.py") if "\n    command.run(main" in f.read_text()]
    modules = {
        ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__main__")
        for file in files
    }
    assert modules == {module for module, _ in console.COMMANDS.values()}


def test_no_arguments(run):
    words = r"missing|[Gg]ive|Which|No config|must have"
    check_refused(run({command: [] for command in COMMANDS}), words)


def test_an_unknown_flag(run):
    processes = run({command: ["--nosuchflag=1"] for command in COMMANDS})
    check_refused(processes, r"nosuchflag(.|\n)*Try: vit-jax \w+ --help\n$")


@pytest.mark.parametrize("command", ["train", "evaluate", "preview", "plan", "study", "transfer"])
def test_a_mistake_in_a_config_comes_first(run_python, command):
    flags = {"train": ["--workdir=/nowhere"], "evaluate": ["--checkpoint=x"], "plan": []}
    flags["study"] = flags["train"]
    flags["transfer"] = [*flags["train"], *flags["evaluate"]]
    given = [*flags.get(command, ["--output=a.png"]), "--config=configs/vit_digits.py"]
    done = run_python("-m", "vit_jax", command, *given, "--config.optim.lrr=1")
    told(done.stderr, "optim.lrr", "'lr'")
    assert done.returncode == 1
    if command == "train":
        done = run_python("-m", "vit_jax", "train", *given, "typo")
        told(done.stderr, "'typo'")
        assert done.returncode == 1


def test_a_file_that_is_not_there(run, folder):
    check_refused(run(MISSING), re.escape(NOWHERE))
    assert not list(folder.iterdir())


def test_help_is_not_a_failure(run):
    for command, done in run({command: ["--help"] for command in COMMANDS}).items():
        assert (done.returncode, done.stderr) == (0, ""), command
        text, _, listed = done.stdout.partition("\nflags:\n")
        text = re.sub(r'(?s) -- .*?\n\n|"[^"]*"', "", text)  # flags of what a sweep starts
        for flag in set(re.findall(r"--(?:no(?=compile))?(\w+)", text if listed else "")):
            assert re.search(rf"(?m)^  --(\[no\])?{flag}:", listed), (command, flag)
        assert "--" in done.stdout, command
