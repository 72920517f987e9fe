"""vit-jax prepare: flags, output, exit status; mostly in this process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from absl import flags

from tests.messages import refused
from tests.tools.prepare.conftest import jpeg
from tests.tools.prepare.evaluation_sets_test import folder_of
from vit_jax.core.command import check_values
from vit_jax.core.errors import UserError
from vit_jax.tools.prepare import __main__ as command

ROOT = Path(__file__).parents[3]


@pytest.fixture
def main(monkeypatch, capsys):
    """Runs the command with these arguments; returns its output."""

    def run(*arguments):
        values = flags.FlagValues()
        command.define(values)
        monkeypatch.setattr(command, "FLAGS", values)
        monkeypatch.chdir(ROOT)
        positional = values(["prepare", *arguments])[1:]
        check_values(values)
        command.main(positional)
        return capsys.readouterr().out

    return run


@pytest.fixture
def prepare(tmp_path, main):
    """Runs the command on a list of two images; returns its output."""
    for number in range(2):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(number))
    (tmp_path / "list.jsonl").write_text(
        '{"image": "0.jpg", "labels": [0, 2]}\n{"image": "1.jpg", "labels": [1]}\n'
    )
    usual = {"source": f"{tmp_path}/list.jsonl", "num_classes": 3, "output": f"{tmp_path}/out"}

    def run(collection="records", **options):
        given = {name: value for name, value in (usual | options).items() if value is not None}
        return main(collection, "--workers=1", *(f"--{k}={v}" for k, v in given.items()))

    return run


def test_summarises_the_data_set(tmp_path, prepare):
    out = prepare(name="mine")
    assert "train        2 examples in 1 files" in out
    assert f"ready        {tmp_path}/out/mine/1.0.0" in out


def test_shows_a_finished_data_set_again(tmp_path, main):
    source = folder_of(tmp_path / "source", {f"{i}.jpg": jpeg(i) for i in range(6)})
    test_set = folder_of(tmp_path / "test_set", {"a.jpg": jpeg(0), "b.jpg": jpeg(9)})
    arguments = ["image_folder", f"--source={source}", f"--output={tmp_path}", "--workers=1"]
    arguments += [f"--drop_duplicates_of={test_set}"]
    out = main(*arguments)
    assert "train        5 examples in 1 files" in out
    assert "look at      Images of test_set that are also here: 1" in out
    assert main(*arguments).splitlines()[-6:] == out.splitlines()[-6:]


MISTAKES = {
    "a bucket of others": ({"output": "s3://bucket/data"}, "--output=s3://bucket/data"),
    "an unknown collection": ({"collection": "recods"}, "'records'"),
    "no such file": ({"source": "nowhere.jsonl"}, "nowhere.jsonl"),
    "a part that joins": ({"part": "1/2", "join": "true"}, "--part"),
    "a place in the collection": (
        {"collection": "image_folder", "source": ".", "output": "sets", "num_classes": None},
        "--output=sets",
    ),
    "the collection is where the set would be": (
        {"collection": "image_folder", "source": "configs", "output": ".", "name": "configs",
         "num_classes": None},
        "configs/1.0.0",
    ),
    "a source that is not UTF-8": ({"source": "b\udcff"}, r"b\udcff"),
    "an unknown fault": ({"policy": "grey:set_aside"}, "'gray'"),
}  # fmt: skip


@pytest.mark.parametrize("options, name", MISTAKES.values(), ids=list(MISTAKES))
def test_mistakes_are_explained(prepare, options, name):
    with refused(name):
        prepare(**options)


@pytest.fixture
def message(tmp_path, main):
    """The error that the command raises for these flags before it writes anything."""
    (tmp_path / "0.jpg").write_bytes(jpeg(0))
    (tmp_path / "list.jsonl").write_text('{"image": "0.jpg", "labels": [0]}\n')

    def of(*given):
        usual = [f"--source={tmp_path}/list.jsonl", f"--output={tmp_path}/out"]
        classes = [] if any("classes=" in one for one in given) else ["--num_classes=3"]
        with pytest.raises((UserError, flags.Error)) as caught:
            main("records", *usual, *classes, *given)
        assert not (tmp_path / "out").exists()
        return str(caught.value)

    return of


def flags_of(*parsers):
    values = flags.FlagValues()
    command.define(values)
    return [name for name in values if isinstance(values[name].parser, parsers)]


NUMBERS = flags_of(flags.IntegerParser, flags.FloatParser)
IMPOSSIBLE = ["", "-1", "nan", "1e400", "many"]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", IMPOSSIBLE)
def test_impossible_numbers(message, name, value):
    text = message(f"--{name}={value}")
    assert f"--{name}=" in text and len(text.splitlines()) == 1


@pytest.mark.parametrize("name", ["source", "version", "splits", "policy", "part"])
def test_empty_values_are_not_the_default(message, name):
    text = message(f"--{name}=")
    assert f"--{name}" in text and len(text.splitlines()) == 1


@pytest.fixture
def interrupted(tmp_path):
    """Starts the command on a folder of images, and sends SIGINT when `ready` says so."""
    for i in range(40):
        path = tmp_path / "photos" / f"class{i}" / "1.jpg"
        path.parent.mkdir(parents=True)
        path.write_bytes(jpeg(i))
    output = tmp_path / "out"
    arguments = ["image_folder", f"--source={tmp_path}/photos", f"--output={output}", "--workers=2"]

    def run(ready=None):
        with subprocess.Popen(
            [sys.executable, "-m", "vit_jax", "prepare", *arguments],
            cwd=ROOT, start_new_session=True, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            while ready and process.poll() is None and not ready(process.pid, output):
                time.sleep(0.02)
            typed_at = time.monotonic()
            if ready:
                os.killpg(process.pid, signal.SIGINT)
            errors = process.communicate(timeout=60)[1]
        return process.returncode, errors, time.monotonic() - typed_at

    return run


def imports_numpy(pid, _):
    return "numpy" in Path(f"/proc/{pid}/maps").read_text()


def has_read_a_part(_, output):
    return any(output.rglob("*.parquet"))


def test_an_interrupt_in_the_first_second(interrupted):
    status, output, _ = interrupted(imports_numpy)
    assert status == 75 and len(output.splitlines()) == 1 and "same command" in output, output


@pytest.mark.slow
def test_an_interrupt_later_and_the_same_command_again(interrupted, tmp_path):
    status, output, seconds = interrupted(has_read_a_part)
    assert status == 75 and len(output.splitlines()) == 1, output
    assert "same command goes on" in output and seconds < 10
    status, output, _ = interrupted()
    assert status == 0, output
    assert (tmp_path / "out" / "image_folder" / "1.0.0" / "prepared.json").exists()
