import errno
import os
import subprocess
import sys

import pytest
from absl import flags

from tests.conftest import REPOSITORY, python_environment
from tests.messages import failed, told
from vit_jax.core import command

PROGRAM = """
import sys
from vit_jax.core import errors
from vit_jax.core import command, errors
command.define_config(list, required=False)
def main(arguments):
    {body}
command.run(main)
"""


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ("pass", 0, ""),
        ("raise errors.UserError('wrong size')", 1, "error: wrong size\n"),
        ("raise errors.NonFiniteError('loss nan')", 2, "error: loss nan\n"),
        ("raise errors.Preempted('saved')", 75, "saved\n"),
        ("raise KeyboardInterrupt('Stopped by SIGTERM')", 75, "Stopped by SIGTERM\n"),
    ],
)
def test_exit_status_and_one_message(run_python, body, status, message):
    done = run_python("-c", PROGRAM.format(body=body))
    assert (done.returncode, done.stderr) == (status, message)


def test_closed_output_ends_no_command():
    program = PROGRAM.format(body="from vit_jax.core.screen import Screen; Screen().say('hello')")
    for arguments in ([], ["--help"]):
        done = subprocess.run(
            ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-c", program, *arguments],
            env=python_environment(), cwd=REPOSITORY, capture_output=True, check=False, text=True,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")


def test_a_bug_keeps_its_traceback(run_python):
    done = run_python("-c", PROGRAM.format(body="1 / 0"))
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert "ZeroDivisionError" in done.stderr


def test_wrong_flags_are_named(run_python):
    for arguments, names in (
        (["-c", PROGRAM_ON_DEVICES, "--config.x=1"], ["flag 'config.x'"]),  # it has no config
        (["-m", "vit_jax.train", "--num_processes=two"], ["--num_processes=two", "vit_jax.train"]),
        (["-m", "vit_jax", "prepare"], ["--source", "--output"]),
    ):
        done = run_python(*arguments)
        failed(done, *names)


@pytest.mark.parametrize("flag", ["--lr=1", "--optim.lr", "--learning_rate=1", "--LR=1", "--lrr=1"])
def test_a_flag_that_is_a_field_gets_its_whole_name(flag, capsys, monkeypatch):
    monkeypatch.setattr(command, "_fields", [lambda: ["optim.lr", "total.steps"]])
    with pytest.raises(SystemExit) as ended:
        command._parse(["prog", flag], "")
    assert ended.value.code == 1
    assert "\nFields of the config are set by --config.optim.lr=VALUE.\n" in capsys.readouterr().err


def test_overrides_are_collected():
    argv = [
        "prog",
        "--config=a.py",
        "--config.optim.lr=1",
        "--config.seed",
        "3",
        "--",
        "--config.x",
    ]
    assert command.spell_overrides(argv) == [
        "prog", "--config=a.py", "--config_override=optim.lr=1", "--config_override=seed=3",
        "--", "--config.x",
    ]  # fmt: skip


def test_the_home_folder_is_expanded_in_every_flag(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    argv = ["--workdir=~/runs", "--data=birds=~/birds", "--config_override=init.weights=~/w",
            "~/a.png", "--x=a~/b", "--name=~", "--", "--workdir=~/later"]  # fmt: skip
    assert command.expand_home(argv) == [
        "--workdir=/home/ada/runs", "--data=birds=/home/ada/birds",
        "--config_override=init.weights=/home/ada/w", "/home/ada/a.png", "--x=a~/b",
        "--name=/home/ada", "--", "--workdir=~/later",
    ]  # fmt: skip


def test_a_file_of_flags_may_have_overrides(run_python, tmp_path):
    inner, outer = tmp_path / "inner.txt", tmp_path / "outer.txt"
    inner.write_text("# a comment\n--config.optim.lr=2\n")
    outer.write_text(f"--config=a.py\n--flagfile={inner}\n--config.seed=3")
    program = PROGRAM.format(
        body="from absl import flags; print(flags.FLAGS.config, flags.FLAGS.config_override)"
    )
    done = run_python("-c", program, "--config.optim.lr=1", f"--flagfile={outer}")
    assert done.stdout == "a.py ['optim.lr=1', 'optim.lr=2', 'seed=3']\n"
    inner.write_text("--config.optim.lr 2\n")
    done = run_python("-c", program, "--flagfile", str(outer))
    told(done.stderr, "'config.optim.lr 2'")


def test_a_pipe_that_nobody_reads_any_more_does_not_end_a_command():
    body = """
    from vit_jax.core.screen import Screen
    screen = Screen()
    for _ in range(1000):
        screen.say("x" * 1000)
    print("done", file=sys.stderr)"""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=body)], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, cwd=REPOSITORY, env=python_environment(),
    )  # fmt: skip
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == "done\n"
    assert process.wait(timeout=300) == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux's file that is always full")
@pytest.mark.parametrize("characters", [10, 100_000], ids=["at_the_end", "at_once"])
def test_output_that_cannot_be_written_is_one_message(characters):
    program = PROGRAM.format(body=f"print('x' * {characters})")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, text=True,
            cwd=REPOSITORY, env=python_environment() | {"PYTHONUNBUFFERED": ""}, check=False,
        )  # fmt: skip
    failed(done, "No space left")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 5000), "too long"),
        (ValueError("embedded null byte"), "embedded null byte"),
        (RuntimeError("Could not determine home directory."), "home directory"),
    ],
)
def test_paths_that_no_file_can_have_are_the_users_error(capsys, monkeypatch, error, message):
    assert command.report(error) == 1
    said = capsys.readouterr().err
    assert message in said and len(said) < 500
    monkeypatch.setattr(command, "shows_tracebacks", lambda: True)
    assert command.report(error) == 1
    assert message in capsys.readouterr().err


PROGRAM_ON_DEVICES = """
import jax
from vit_jax.core import command, errors
command.run(lambda _: print(jax.default_backend()))
"""


@pytest.mark.parametrize(
    ("platforms", "message"),
    [
        ("cpuu", "'cpuu' is not in the list of known backends"),
        ("cpu,CPU", "'CPU' is not in the list of known backends"),
    ],
)
def test_platforms_that_cannot_be_used_are_one_line_and_status_1(run_python, platforms, message):
    done = run_python("-c", PROGRAM_ON_DEVICES, JAX_PLATFORMS=platforms, CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]  # JAX may log a line of its own first
    assert last.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert message in last


@pytest.mark.parametrize("argument", ["--text=", "--names=", "--names=a,,b", "--number=nan"])
def test_a_flag_without_a_value_is_refused(argument):
    values = flags.FlagValues()
    flags.DEFINE_string("text", "", "", flag_values=values)
    flags.DEFINE_list("names", [], "", flag_values=values)
    flags.DEFINE_float("number", None, "", lower_bound=0, flag_values=values)
    values(["program"])
    command.check_values(values)  # defaults may be empty
    values(["program", argument])
    with pytest.raises(flags.Error, match=argument.partition("=")[0]):
        command.check_values(values)
