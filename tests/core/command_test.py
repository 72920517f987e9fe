import errno
import os
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY, python_environment
from tests.messages import told
from vit_jax.core import command

PROGRAM = """
import sys
from vit_jax.core import errors
from vit_jax.core import command
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


def test_unknown_flag_is_the_users_error(run_python):
    done = run_python("-c", PROGRAM.format(body="pass"), "--confg=x")
    assert done.returncode == 1
    assert "confg" in done.stderr
    assert "Traceback" not in done.stderr
    done = run_python("-c", PROGRAM_ON_DEVICES, "--config.x=1")  # of a command without a config
    assert "flag 'config.x'" in done.stderr


@pytest.mark.parametrize("flag", ["--lr=1", "--optim.lr", "--learning_rate=1", "--LR=1", "--lrr=1"])
def test_a_flag_that_is_a_field_gets_its_whole_name(flag, capsys, monkeypatch):
    monkeypatch.setattr(command, "_fields", [lambda: ["optim.lr", "total.steps"]])
    with pytest.raises(SystemExit) as ended:
        command._parse(["prog", flag], "")
    assert ended.value.code == 1
    assert "\nFields of the config are set by --config.optim.lr=VALUE.\n" in capsys.readouterr().err


def test_a_wrong_value_of_a_flag_names_the_command(run_python):
    done = run_python("-m", "vit_jax.train", "--num_processes=two")
    assert done.returncode == 1
    told(done.stderr, "--num_processes=two", "vit_jax.train")


def test_a_missing_flag_is_named(run_python):
    done = run_python("-m", "vit_jax", "plan")
    assert done.returncode == 1
    told(done.stderr, "--config", "vit-jax plan --help")
    done = run_python("-m", "vit_jax", "prepare")
    told(done.stderr, "--source", "--output")


def test_help_is_not_a_failure(run_python):
    done = run_python("-c", PROGRAM.format(body="pass"), "--help")
    assert done.returncode == 0
    assert "--config" in done.stdout


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


def test_a_file_of_flags_that_is_not_text(run_python, tmp_path):
    (tmp_path / "flags.txt").write_text("--config=a.py\n", encoding="utf-16")
    done = run_python("-c", PROGRAM.format(body="pass"), f"--flagfile={tmp_path / 'flags.txt'}")
    assert done.returncode == 1
    told(done.stderr, "--flagfile", "UTF-8")


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
    assert done.returncode == 1
    told(done.stderr, "No space left", "free space")
    assert done.stderr.count("\n") == 1


def test_help_that_nobody_reads_is_no_failure():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body="pass"), "--help"], stdout=writer,
        stderr=subprocess.PIPE, text=True, cwd=REPOSITORY, env=python_environment(), check=False,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 5000), "give a shorter path"),
        (ValueError("embedded null byte"), "NUL character"),
        (RuntimeError("Could not determine home directory."), "~NAME"),
    ],
)
def test_paths_that_no_file_can_have_are_the_users_error(capsys, error, message):
    assert command.report(error) == 1
    said = capsys.readouterr().err
    assert message in said and len(said) < 500


PROGRAM_ON_DEVICES = """
import jax
from vit_jax.core import command
command.run(lambda _: print(jax.default_backend()))
"""


@pytest.mark.parametrize(
    ("platforms", "message"),
    [
        ("cuda", "no such device was found"),  # JAX fails an assertion
        ("cpuu", "Did you mean 'cpu'?"),
        ("cpu,CPU", "Did you mean 'cpu,cpu'?"),
        ("rocm", "'rocm'"),
    ],
)
def test_platforms_that_cannot_be_used_are_one_line_and_status_1(run_python, platforms, message):
    done = run_python("-c", PROGRAM_ON_DEVICES, JAX_PLATFORMS=platforms, CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]  # JAX may log a line of its own first
    assert last.split()[:2] == ["error:", f"JAX_PLATFORMS={platforms}"]
    assert "Traceback" not in done.stderr
    assert message in last
    assert "set JAX_PLATFORMS=" in last


def test_the_platforms_that_are_there_are_used(run_python):
    assert run_python("-c", PROGRAM_ON_DEVICES, JAX_PLATFORMS="cpu").stdout == "cpu\n"


def test_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(command, "_wanted", lambda: "tpu")
    monkeypatch.setattr(command, "_there", lambda: ["cpu"])
    of_jax = "Unable to initialize backend 'tpu': no libtpu.so (set JAX_PLATFORMS='' to choose)"
    error = str(command.unusable(RuntimeError(of_jax)))
    told(error, "JAX_PLATFORMS=tpu", "libtpu.so", "JAX_PLATFORMS=cpu", ".[tpu]")


def test_a_device_that_fails_without_being_requested(monkeypatch):
    monkeypatch.setattr(command, "_wanted", lambda: "")
    of_jax = "Unable to initialize backend 'tpu': it is in use"
    assert "it is in use): JAX_PLATFORMS=cpu does without" in str(
        command.unusable(RuntimeError(of_jax))
    )


@pytest.mark.parametrize("error", [RuntimeError("x"), AssertionError(), ValueError("Unable")])
def test_other_errors_are_bugs(error):
    assert command.unusable(error) is None
