"""The training loop end to end: its outputs, its stopping, its bit-exact resumption."""

import contextlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.messages import refused
from vit_jax import config as configs
from vit_jax.cluster.peers import Peers
from vit_jax.core.errors import NonFiniteError, Preempted, UserError
from vit_jax.evals import Evals
from vit_jax.learning.clock import Clock, InFlightSteps
from vit_jax.learning.feed import SKIPPED_IMAGES, Feed
from vit_jax.learning.loggers import RunLog
from vit_jax.learning.state import stop_if_not_finite
from vit_jax.run import build
from vit_jax.run.build import Run
from vit_jax.run.session import Session
from vit_jax.store import checkpoint_dir
from vit_jax.store.checkpoints import Checkpoints
from vit_jax.train import train

REPOSITORY = Path(__file__).parents[1]
STEPS = 40
EVALUATED = ("evals.test.preprocess=decode|resize(8)", "model.depth=1")  # which compiles sooner

# Everything random is on: anything but a function of (seed, step) would show.
COMMAND = [
    "-m", "vit_jax.train", "--config", "configs/vit_digits.py",
    "--config.model.depth=2", "--config.model.width=16", "--config.model.mlp_dim=32",
    "--config.model.num_heads=2", "--config.model.dropout=0.1",
    "--config.model.stochastic_depth=0.2",
    "--config.loss.mixup=0.2", "--config.input.preprocess=decode|pad_crop(8, 1)",
    "--config.input.batch_size=32", "--config.total.epochs=none", f"--config.total.steps={STEPS}",
    "--config.optim.warmup_epochs=none", "--config.optim.warmup_steps=5",
    "--config.evals.test.every_steps=10", "--config.checkpoint.every_steps=5",
    "--config.log.every_steps=5", "--config.log.tensorboard=false",
]  # fmt: skip

# And everything else that carries state between steps or draws random numbers.
EVERYTHING = (
    "--config.optim.name=muon", "--config.optim.ema_decay=0.9", "--config.optim.grad_accum_steps=2",
    "--config.loss.cutmix=1", "--config.input.cache=ram",
    "--config.input.preprocess=decode|pad_crop(8, 1)|randaugment(2, 15)|random_erasing(0.25)",
)  # fmt: skip


def start(workdir, *more, python=sys.executable):
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [python, *COMMAND, "--workdir", str(workdir), *more],
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_here(workdir, *overrides):
    """Runs in this process, which saves starting another."""
    fields = [flag.removeprefix("--config.") for flag in COMMAND if flag.startswith("--config.")]
    return train(configs.load("configs/vit_digits.py", [*fields, *overrides]), workdir)


def checksums(workdir, step=STEPS):
    arrays = checkpoint_dir.read_description(workdir / "checkpoints" / str(step))["arrays"]
    assert any(name.startswith("params/") for name in arrays)
    return {name: a["checksum"] for name, a in arrays.items()}


def losses(workdir):
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]


def record(monkeypatch, events, owner, name, event):
    """Appends `event` to `events` whenever this method is called."""
    original = getattr(owner, name)
    recorded = lambda *a, **options: events.append(event) or original(*a, **options)
    monkeypatch.setattr(owner, name, recorded)


def fail_at(monkeypatch, step):
    """The batch of this step, counted from the start of its feed, cannot be read."""
    read = Feed.__next__

    def fail(feed):
        feed.number = getattr(feed, "number", 0) + 1
        if feed.number == step:
            raise UserError("val/a.png is a bad image")
        return read(feed)

    monkeypatch.setattr(Feed, "__next__", fail)


@pytest.fixture(autouse=True)
def shared_programs(monkeypatch):
    """Runs of equal configs share the program of a step, which takes a second to trace."""
    compile_update = Run.compile_update

    def shared(run, screen):
        key = repr(run.config), run.parts.layout.unstacked_steps, build.lower_update
        if key not in PROGRAMS:
            PROGRAMS[key] = compile_update(run, screen)
        return PROGRAMS[key]

    monkeypatch.setattr(Run, "compile_update", shared)


PROGRAMS = {}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("uninterrupted")
    with contextlib.redirect_stdout(io.StringIO()) as output:
        run_here(workdir)
    return workdir, output.getvalue()


def test_lines_on_the_screen(uninterrupted):
    workdir, output = uninterrupted
    for text in (
        "digits, train: 1,437 examples, 10 classes", "1 x cpu", "ViT-Ti/2:", "parameters",
        "FLOPs per image", f"{STEPS} steps of 32 examples", "compiling the first step ...",
        f"step 5/{STEPS} | loss", "left | accuracy", "images/s | input wait", "| epoch 0.1",
        "test: accuracy", f"saved    {workdir}/checkpoints/{STEPS}",
        f"vit-jax predict --checkpoint {workdir}",
    ):  # fmt: skip
        assert text in output


def test_rows_of_metrics(uninterrupted):
    workdir, _ = uninterrupted
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(5, STEPS + 1, 5))
    assert {"train/loss", "train/accuracy", "train/learning_rate", "train/grad_norm"} <= set(
        rows[0]
    )
    assert {"speed/images_per_second", "speed/input_wait"} <= set(rows[0])
    with_results = [row["step"] for row in rows if "test/accuracy" in row]
    assert with_results == [10, 20, 30, 40]
    page = (REPOSITORY / "docs" / "reading_logs.md").read_text()
    for key in {key.replace("test/", "<evaluation>/") for row in rows for key in row}:
        assert f"| `{key}` |" in page


def test_parameters_are_listed(uninterrupted):
    table = (uninterrupted[0] / "parameters.txt").read_text()
    assert "head/kernel" in table
    assert "Total: " in table


@pytest.mark.slow
def test_sigterm_saves_and_resuming_gives_the_same_bits(uninterrupted, tmp_path, capsys):
    process = start(tmp_path)
    for line in process.stdout:
        if line.startswith("step 15/"):
            process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) == 75
    stopped = max(checkpoint_dir.steps(tmp_path / "checkpoints"))
    assert 15 <= stopped < STEPS
    run_here(tmp_path)
    assert f"resumed  from the checkpoint of step {stopped}" in capsys.readouterr().out
    assert checksums(tmp_path) == checksums(uninterrupted[0])
    assert losses(tmp_path) == losses(uninterrupted[0])


@pytest.mark.slow
@pytest.mark.parametrize(("more", "seed"), [((), 0), (EVERYTHING, 1)], ids=["usual", "everything"])
def test_kill_9_three_times_then_the_same_bits(
    tmp_path, preloaded_server, uninterrupted, more, seed
):
    """Kills also hit saves: every fifth step saves, and the moment is random."""
    python = str(preloaded_server().write_python(tmp_path / "python"))
    killed, straight = tmp_path / "killed", tmp_path / "straight" if more else uninterrupted[0]
    moments = random.Random(seed)
    for _ in range(3):
        process = start(killed, *more, python=python)
        for line in process.stdout:
            if line.startswith("step "):
                time.sleep(moments.uniform(0, 0.5))
                break
        process.kill()  # and with it the program
        process.communicate()  # until that is dead too: it has the output open
    for workdir in (killed, straight) if more else (killed,):
        process = start(workdir, *more, python=python)
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output
    assert checksums(killed) == checksums(straight)
    assert losses(killed) == losses(straight)


def test_a_finished_run_shows_its_result_again(uninterrupted, capsys):
    workdir, first = uninterrupted
    run_here(workdir)
    output = capsys.readouterr().out
    result = [line for line in first.splitlines() if line.startswith("result")]
    assert result
    assert result == [line for line in output.splitlines() if line.startswith("result")]
    assert "compiling" not in output


def test_another_config_is_refused_and_named(uninterrupted):
    with refused("optim.lr: 0.003", "--allow_config_change"):
        run_here(uninterrupted[0], "optim.lr=0.5")


def test_changes_that_do_not_fit_leave_the_run_as_it_was(trained, tiny_run):
    workdir, _ = trained
    before = (workdir / "config.json").read_text()
    assert [run["total_steps"] for run in json.loads(before)["runs"]] == [6]
    with refused("--workdir"):
        train(tiny_run("model.width=32"), workdir, allow_config_change=True)
    with refused("--workdir"):
        train(tiny_run("total.steps=3"), workdir, allow_config_change=True)
    assert (workdir / "config.json").read_text() == before
    train(tiny_run(), workdir)


def test_two_runs_in_one_directory_are_refused(tmp_path, tiny_run):
    program = (
        "import sys, time; from etils import epath; from vit_jax.store.workdir_lock import lock\n"
        "with lock(epath.Path(sys.argv[1])): print('locked', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE) as first:
        try:
            assert first.stdout.readline() == b"locked\n"
            with refused(first.pid):
                train(tiny_run(), tmp_path)
        finally:
            first.kill()
    assert not (tmp_path / "config.json").exists()


def test_a_wrong_config_leaves_no_trace(tmp_path, tiny_run):
    for override in (
        "model.name=ViT-Ti/3", "input.batch_size=0", "optim.warmup_steps=7",
        "evals.test.preprocess=decode|resize(12)", "evals.test.kind=clasification",
        "checkpoint.best_metric=test/acuracy", "loss.label_smoothing=2", "loss.mixup=1e-40",
        "optim.ema_decay=1", "init.weights=", "init.ema=true", "init.head=reset",
        "optim.freeze=hed/.*", "optim.freeze=a{99999999999}", "optim.lr_multipliers=head/.*=x",
        "input.preprocess=decode|resize(8)|pad_crop(8, 8, reflect=True)",
        "input.preprocess=decode|resize(8)|randaugmnt(2, 10)", "optim.grad_accum_steps=5",
        "total.steps=none", "model.num_heads=0", "model.depth=0", "input.num_examples=0",
        "log.every_steps=0", "log.histograms_every_steps=0", "log.wandb_project=a/b",
        "input.source=imagnet",
    ):  # fmt: skip
        with pytest.raises(UserError):
            train(tiny_run(override), tmp_path / "run")
        assert not (tmp_path / "run").exists(), override


def test_changes_that_keep_the_arrays_can_be_allowed(tmp_path, tiny_run):
    train(tiny_run("total.steps=3", "optim.weight_decay=0.1"), tmp_path)
    for change in (
        ("optim.weight_decay=0.0", "optim.lr_multipliers=head/.*=2"),
        (
            "optim.weight_decay_meaning=coupled",
            "optim.layer_decay=0.5",
            "optim.grad_clip_norm=none",
        ),
    ):
        train(tiny_run("total.steps=3", *change), tmp_path, allow_config_change=True)


def test_an_interrupted_evaluation_is_repeated(tmp_path, tiny_run, monkeypatch):
    fields = ("total.steps=1", "optim.warmup_steps=none", "optim.ema_decay=0.9")
    config, events = tiny_run(*EVALUATED, *fields), []
    record(monkeypatch, events, Evals, "run", "evaluated")
    record(monkeypatch, events, RunLog, "write", "written")
    record(monkeypatch, events, RunLog, "flush", "flushed")
    record(monkeypatch, events, Checkpoints, "save", "saved")
    with refused("SIGTERM", "step 1 ", error=Preempted):
        train(config, tmp_path, stop="SIGTERM")
    assert events == ["evaluated", "written", "flushed", "saved"]  # evaluated: step 0, at the start
    rows = (tmp_path / "metrics.jsonl").read_text()
    assert "test/accuracy" not in rows
    train(config, tmp_path)
    assert events[4:] == ["evaluated", "written", "flushed"]
    added = (tmp_path / "metrics.jsonl").read_text().removeprefix(rows)
    assert json.loads(added)["step"] == 1
    assert "test/accuracy" in added and "test_ema/accuracy" in added


@pytest.mark.parametrize(
    ("moment", "step", "mode"),
    [("run", 2, "max"), ("due", 6, "none")],
    ids=["during an evaluation", "before the last one"],
)
def test_the_best_step_is_the_same_after_a_stop_there(
    tmp_path, tiny_run, monkeypatch, capsys, moment, step, mode
):
    """Its loss is measured when the run goes on, after its checkpoint was written."""
    stop = stop_at(monkeypatch, moment, step)
    config = tiny_run(
        *EVALUATED, "evals.test.every_steps=2", "checkpoint.every_steps=2",
        "checkpoint.keep_last=1", "checkpoint.best_metric=test/loss",
        f"checkpoint.best_mode={mode}",
    )  # fmt: skip
    with pytest.raises(Preempted):
        train(config, tmp_path, stop=stop)
    for _ in range(2):  # goes on, and says its result again
        train(config, tmp_path)
        assert f"best     step {step} by test: loss" in capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").open()]
    losses = {row["step"]: row["test/loss"] for row in rows if "test/loss" in row}
    assert list(losses) == [2, 4, 6]
    assert checkpoint_dir.rank(losses, "max" if mode == "max" else "min")[0] == step
    assert {step, 6} <= set(checkpoint_dir.steps(tmp_path / "checkpoints"))
    assert checkpoint_dir.find(f"{tmp_path}@best").name == str(step)


def test_an_evaluation_interrupted_twice_is_repeated(tmp_path, tiny_run, monkeypatch):
    """Going on without it would lose the run's result."""
    config = tiny_run(*EVALUATED, "evals.test.every_steps=2")
    for step in (6, 6):
        with pytest.raises(Preempted, match=f"step {step} "):
            train(config, tmp_path, stop=stop_at(monkeypatch, "run", step))
    train(config, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").open()]
    assert [row["step"] for row in rows if "test/accuracy" in row] == [2, 4, 6]


def stop_at(monkeypatch, method, step):
    """A request to stop, true once this method of Evals is called for this step."""
    stop, original = [], getattr(Evals, method)

    def call(self, at, *arguments, **options):
        if at == step:
            stop.append("SIGTERM")
        return original(self, at, *arguments, **options)

    monkeypatch.setattr(Evals, method, call)
    return stop


EXHAUSTED = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1024 bytes")


@pytest.mark.parametrize(
    ("error", "names"),
    [
        (UserError("val/a.png is a bad image"), ["a.png"]),
        (EXHAUSTED, ["evals.test.batch_size (now 16)"]),
    ],
    ids=["data", "memory"],
)
def test_an_evaluation_that_fails_loses_no_training(tmp_path, tiny_run, monkeypatch, error, names):
    def fail(*_, **__):
        raise error

    config = tiny_run("checkpoint.every_steps=100", *EVALUATED)
    with monkeypatch.context() as patched:
        patched.setattr(Evals, "run", lambda self, step, *_, **__: step and fail())
        with refused(*names):
            train(config, tmp_path)
    assert checkpoint_dir.steps(tmp_path / "checkpoints") == [6]
    assert [step for step, _ in losses(tmp_path)] == [1, 2, 3, 4, 5, 6]
    train(config, tmp_path)  # evaluates what was missed
    assert '"test/accuracy"' in (tmp_path / "metrics.jsonl").read_text()


@pytest.mark.parametrize(
    ("every_steps", "apart"), [pytest.param(100, True, marks=pytest.mark.slow), (4, False)]
)
def test_a_batch_that_cannot_be_read_loses_no_training(
    trained, tmp_path, tiny_run, monkeypatch, every_steps, apart
):
    config = tiny_run(f"checkpoint.every_steps={every_steps}", EVALUATED[0])
    with monkeypatch.context() as patched:
        patched.setattr("vit_jax.run.parts.updates._unstacked_steps", lambda *_: apart)
        fail_at(patched, 5)
        with pytest.raises(UserError, match=r"a\.png"):
            train(config, tmp_path)
    assert checkpoint_dir.steps(tmp_path / "checkpoints") == [4]
    jax.tree.map(np.testing.assert_array_equal, train(config, tmp_path), trained[1])


@pytest.mark.parametrize(
    ("weight", "saved", "rows", "error"),
    [(0.0, [4], [{"step": 4, SKIPPED_IMAGES: 4}], r"a\.png"), (np.nan, [], [], "Step 1: loss nan")],
    ids=["a skipped image in each step", "no finite loss"],
)
def test_before_a_batch_that_cannot_be_read_only_finite_steps_are_saved(
    tmp_path, tiny_run, monkeypatch, weight, saved, rows, error
):
    read = Feed.__next__

    def first_image_has_weight(feed):
        batch = read(feed)
        return batch | {"weight": batch["weight"].at[0].set(weight)}

    monkeypatch.setattr(Feed, "__next__", first_image_has_weight)
    fail_at(monkeypatch, 5)
    fields = ("log.every_steps=100", "checkpoint.every_steps=100", "input.max_bad_fraction=1")
    with pytest.raises((UserError, NonFiniteError), match=error):
        train(tiny_run(*fields), tmp_path)
    assert checkpoint_dir.steps(tmp_path / "checkpoints") == saved
    logs = tmp_path.glob("metrics.jsonl")  # none, or one
    written = [json.loads(line) for log in logs for line in log.open()]
    without_times = [{k: x for k, x in row.items() if "speed/" not in k} for row in written]
    assert without_times == rows


def test_a_result_that_is_not_finite_is_shown(tmp_path, tiny_run, monkeypatch, capsys):
    monkeypatch.setattr(Evals, "run", lambda self, step, *_, **__: {"test/loss": float("nan")})
    train(tiny_run(*EVALUATED, "total.steps=1", "optim.warmup_steps=none"), tmp_path)
    assert "result   test: loss nan" in capsys.readouterr().out


def test_past_a_second_bad_batch_the_first_stays_left_out():
    scalars = {"first_bad_step": 900, "first_bad_values": (float("nan"), 1.0)}
    with refused("--config.input.skip_steps=100,900", error=NonFiniteError):
        stop_if_not_finite(scalars, (100,), workdir="runs/a")


@pytest.mark.parametrize(
    ("pause", "expected"),
    [
        ("evals.test.every_steps=5", ["begun"] * 4 + ["begun", "fetched", "paused"] * 2),
        pytest.param(
            "log.histograms_every_steps=2 input.skip_steps=2",  # of a step left out there are none
            ["begun"] * 3
            + ["finished", "paused", "begun", "begun"]
            + ["finished", "paused", "begun", "fetched", "paused"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_clock_is_paused_when_the_devices_have_finished(
    tmp_path, tiny_run, monkeypatch, pause, expected
):
    """What they had still to do would count as a pause, and the run would seem faster.

    Nor are they waited for in any other step than those of the log and of an evaluation. The first
    pause is that of compiling.
    """
    events = []
    record(monkeypatch, events, InFlightSteps, "add", "begun")
    record(monkeypatch, events, InFlightSteps, "finish", "finished")
    record(monkeypatch, events, Session, "fetch_scalars", "fetched")
    record(monkeypatch, events, Clock, "paused", "paused")
    overrides = ["total.steps=6", "log.every_steps=6", *pause.split()]
    if pause.startswith("evals"):
        overrides += EVALUATED
    train(tiny_run(*overrides), tmp_path)
    assert events == ["paused", *expected]


@pytest.mark.parametrize(("platform", "ahead"), [("tpu", 2), ("gpu", 2), ("cpu", 0)])
def test_the_loop_stays_few_steps_ahead_of_the_devices(platform, ahead, monkeypatch):
    waited = []
    monkeypatch.setattr(jax, "block_until_ready", lambda x: waited.extend(jax.tree.leaves(x)))
    in_flight = InFlightSteps(platform)
    for step in range(5):
        in_flight.add(step)
    done = 5 - ahead
    assert waited == list(range(done))
    in_flight.finish()
    in_flight.finish()
    assert waited == list(range(5))


def test_warm_start_takes_the_parameters(tmp_path, tiny_run, trained):
    workdir, first = trained
    overrides = [f"init.weights={workdir}", "optim.lr=0.0", "optim.ema_decay=0.9", "total.steps=2"]
    kept = train(tiny_run(*overrides), tmp_path / "kept")
    for params in (kept.params, kept.ema):
        jax.tree.map(np.testing.assert_array_equal, params, first.params)
    fewer = [*overrides, "input.num_classes=3"]
    with refused("init.head=reset"):
        train(tiny_run(*fewer), tmp_path / "refused")


def test_out_of_memory_names_the_cures(tmp_path, tiny_run, monkeypatch):
    def exhausted(*_):
        raise EXHAUSTED

    monkeypatch.setattr("vit_jax.run.build.lower_update", exhausted)
    with pytest.raises(UserError) as error:
        train(tiny_run(), tmp_path)
    for cure in ("input.batch_size", "optim.grad_accum_steps", "model.remat", "1024 bytes"):
        assert cure in str(error.value)


@pytest.mark.slow
def test_histograms_come_when_due_and_change_nothing(tmp_path, tiny_run):
    off = train(tiny_run(), tmp_path / "off")
    on = train(tiny_run("log.histograms_every_steps=4"), tmp_path / "on")
    jax.tree.map(np.testing.assert_array_equal, on.params, off.params)
    rows = [json.loads(line) for line in (tmp_path / "on" / "metrics.jsonl").open()]
    key = "gradients/blocks/1/norm"
    assert [row["step"] for row in rows if key in row] == [4, 6]
    squares = [x**2 for k, x in rows[-2].items() if k.startswith("gradients/")]
    assert rows[-1]["train/grad_norm"] == pytest.approx(sum(squares) ** 0.5, rel=1e-4)
    assert losses(tmp_path / "on") == losses(tmp_path / "off")
    assert key not in (tmp_path / "off" / "metrics.jsonl").read_text()


def test_tensorboard_and_profile_are_written(tmp_path, tiny_run):
    train(
        tiny_run("log.tensorboard=true", "log.profile_at_step=2", "log.profile_steps=2"), tmp_path
    )
    assert list(tmp_path.glob("events.out.tfevents.*"))
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_steps_on_layers_apart_end_with_the_same_bits(trained, tmp_path, tiny_run, monkeypatch):
    fields = ("log.histograms_every_steps=4", "checkpoint.every_steps=3")
    with monkeypatch.context() as patch:
        patch.setattr("vit_jax.run.parts.updates._unstacked_steps", lambda *_: True)
        state = train(tiny_run(*fields), tmp_path)
    jax.tree.map(np.testing.assert_array_equal, state, trained[1])
    assert checksums(tmp_path, 6) == checksums(trained[0], 6)
    # Its checkpoints are those of any run.
    shutil.rmtree(tmp_path / "checkpoints" / "6")
    jax.tree.map(np.testing.assert_array_equal, train(tiny_run(*fields), tmp_path), trained[1])
    assert losses(tmp_path) == losses(trained[0])


@pytest.mark.slow
def test_what_the_first_process_measured_ends_all_of_them(tmp_path, tiny_run, monkeypatch):
    """Probes of several hosts differ in rounding, and by them some would train on."""
    config = tiny_run(
        *EVALUATED, "evals.test.every_steps=1", "total.steps=5",
        "early_stopping.metric=test/loss", "early_stopping.patience=2", "optim.warmup_steps=0",
    )  # fmt: skip
    assert int(train(config, tmp_path / "alone").step) == 5
    peers = Peers.alone()
    first = {"test/loss": 1.0}
    agree = lambda name, value: first if value and name.startswith("results of") else value
    monkeypatch.setattr(peers, "from_first", agree)
    assert int(train(config, tmp_path / "others", peers=peers).step) == 3
