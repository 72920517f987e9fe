import io
import shlex
import types

import pytest
from etils import epath

from vit_jax.core.screen import Screen
from vit_jax.data.source import Request
from vit_jax.data.sources.table import Digits
from vit_jax.evals.early_stopping import EarlyStopping
from vit_jax.run import announce

PLAN = types.SimpleNamespace(total_steps=1_234_567, steps_per_epoch=312.0)
ROW = {
    "train/loss": 6.90775, "train/accuracy": 0.001, "speed/images_per_second": 12_345.0,
    "speed/input_wait": 0.02,
}  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self):
        return True


def line(monkeypatch, columns, **more):
    monkeypatch.setenv("COLUMNS", str(columns))
    out = Terminal()
    right = types.SimpleNamespace(warning=lambda row, step: None)
    announce.Progress(Screen(out), PLAN, right).show(123_456, ROW | more, 186_400.0)
    return out.getvalue().removeprefix("\r\x1b[K")


@pytest.mark.parametrize(
    ("split", "location", "says"),
    [("train[90%:]", "", True), ("test", "", False), ("train", "elsewhere", False)],
)
def test_an_evaluation_of_training_images_is_told(split, location, says):
    out, evaluated = io.StringIO(), Digits(Request(split, where="evals.val"))
    evaluated.location = location
    eval_data = {"val": types.SimpleNamespace(source=evaluated)}
    announce.shared_images(Screen(out), Digits(Request("train")), eval_data)
    said = "data     val: shares images with the split that is trained on\n"
    assert out.getvalue() == said * says


def test_the_time_left_and_bad_images_show_at_80_columns(monkeypatch):
    shown = line(monkeypatch, 80, **{"input/skipped_images": 17.0})
    assert shown == (
        "step 123,456/1,234,567 | loss 6.9078 | 2d 3:46:40 left | 17 bad images skipped"
    )
    assert "left | accuracy 0.1%" in line(monkeypatch, 80)


def test_what_is_wrong_is_said_until_it_is_right_again():
    out = io.StringIO()
    wrong = iter(["high", "higher", None, "high"])
    objective = types.SimpleNamespace(warning=lambda row, step: next(wrong))
    progress = announce.Progress(Screen(out), PLAN, objective)
    for step in range(4):
        progress.show(step, ROW, 1.0)
    told = [text for text in out.getvalue().splitlines() if text.startswith("warning")]
    assert told == ["warning  step 0: high", "warning  step 3: high"]


def test_the_next_command_is_quoted_for_a_shell():
    out, workdir = io.StringIO(), epath.Path("runs/my photos")
    announce.finished(Screen(out), 3, types.SimpleNamespace(num_classes=2), {}, workdir, 2)
    command = out.getvalue().splitlines()[-1].removeprefix("next     ")
    assert shlex.split(command)[-2:] == ["runs/my photos@best", "IMAGE..."]


@pytest.mark.parametrize(
    ("dtype", "platform", "multiplies", "said"),
    [
        ("bfloat16", "cpu", False, True),
        ("bfloat16", "cpu", True, False),
        ("float32", "cpu", False, False),
        ("bfloat16", "gpu", False, False),
    ],
)
def test_a_dtype_that_is_slow_on_cpus(dtype, platform, multiplies, said, monkeypatch):
    monkeypatch.setattr(announce.machine, "multiplies_bfloat16", lambda: multiplies)
    out, info = io.StringIO(), types.SimpleNamespace(spec={"dtype": dtype})
    announce.slow_dtype(Screen(out), info, types.SimpleNamespace(platform=platform))
    assert ("float32 is faster on this CPU" in out.getvalue()) == said
    assert out.getvalue().count("\n") == said


@pytest.mark.parametrize(("min_delta", "by"), [(0.0, ", in 1 "), (0.5, ", by more than 0.5 in 1 ")])
def test_why_a_run_ended_early(min_delta, by):
    early = EarlyStopping("test/loss", "min", 1, min_delta, {2: 0.5, 4: 0.5})
    out = io.StringIO()
    announce.stopped_early(Screen(out), early, types.SimpleNamespace(total_steps=6))
    text = f"stopped  after 4 of 6 steps: test/loss was not better than 0.5, of step 2{by}"
    assert out.getvalue().startswith(text)


def test_a_skipped_step_has_no_loss(monkeypatch):
    monkeypatch.delitem(ROW, "train/loss")
    monkeypatch.delitem(ROW, "train/accuracy")
    assert line(monkeypatch, 50) == "step 123,456/1,234,567 | 2d 3:46:40 left"
