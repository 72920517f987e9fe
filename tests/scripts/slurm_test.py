"""scripts/slurm.sh, on a SLURM cluster of one node where the programs of one are installed."""

import json
import os
import re
import signal
import sys
import time

import pytest

from tests.conftest import python_environment
from tests.messages import failed
from tests.processes import wait_for
from tests.scripts import slurm_cluster
from tests.scripts.slurm_cluster import answer

WANTED = ("--name=l16", "--nodes=2", "--gpus=1", "--time=24:00:00", "--cpus_per_gpu=12")
HERE = ("--name=l16", "--nodes=1", "--gpus=2")  # what the one node has
TRAINING = ("--", "--config=configs/vit_digits.py", "--workdir=/shared/l16", "--name=a 'b'")
WAITS = "--sbatch_flag=--hold"
JOB_SECS = 180


def slow(*statuses):
    return [pytest.param(each, marks=pytest.mark.slow) for each in statuses]


# Two processes, each with a status of its own on the first go; it is 0 on the next.
PYTHON = """
printf '%s\\n' "$@" >"$WORLD/arguments-$SLURM_PROCID"
((${SLURM_RESTART_COUNT:-0} < ${FAIL_GOES:-1})) || exit 0
status=$(cat "$WORLD/status-$SLURM_PROCID")
((status != 137)) || kill -KILL $$
exit "$status"
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """The variables by which SLURM's programs find the cluster."""
    if not slurm_cluster.is_installed():
        pytest.skip("needs SLURM and munge, and root: apt-get install slurm-wlm munge")
    with slurm_cluster.cluster(tmp_path_factory.mktemp("slurm")) as variables:
        yield variables


@pytest.fixture
def submit(launch, slurm, programs, tmp_path):
    """`submit(FLAG...)`: the launcher; the jobs that it leaves are cancelled."""
    python = f"--python={programs(nodes_python=PYTHON)}/nodes_python"
    yield lambda *flags, **env: launch(
        "slurm.sh", python, *flags, WORLD=str(tmp_path), **slurm, **env
    )
    answer("scancel", "--me", "--signal=KILL", "--full", **slurm)
    answer("scancel", "--me", **slurm)
    while answer("squeue", "--me", "--noheader", **slurm):
        time.sleep(0.1)


@pytest.fixture
def job(slurm):
    """`job(7)`: what SLURM says of a job, by field."""

    def fields(number):
        text = answer("scontrol", "show", "job", "--oneliner", str(number), **slurm)
        return dict(re.findall(r"(\w+)=(\S*)", text))

    return fields


@pytest.fixture
def run_job(submit, job, tmp_path):
    """`run_job(0, 76)`: what SLURM says of a job whose processes first end with these statuses."""

    def run(*statuses, flags=(), **env):
        for process, status in enumerate(statuses):
            (tmp_path / f"status-{process}").write_text(str(status))
        done = submit(*HERE, f"--log={tmp_path}/log", *flags, *TRAINING, **env)
        assert done.returncode == 0, done.stderr
        number = int(re.search(r"Submitted job (\d+)", done.stdout)[1])
        return wait_for(lambda: at_end(job(number)), JOB_SECS)

    return run


def at_end(about):
    """The job if it has ended, or None."""
    return about if about["JobState"] in ("COMPLETED", "FAILED", "CANCELLED") else None


def queue(slurm):
    """The jobs' states."""
    return answer("squeue", "--me", "--noheader", "--format=%T", **slurm).split()


def test_a_job_is_submitted_once(submit, slurm):
    first = submit(*HERE, WAITS, *TRAINING)
    assert first.returncode == 0, first.stderr
    assert re.search(r"Submitted job \d+\n", first.stdout)
    again = submit(*HERE, WAITS, *TRAINING)
    assert again.returncode == 0
    assert "PENDING is there already" in again.stdout
    assert queue(slurm) == ["PENDING"]


@pytest.mark.parametrize("step", ["squeue", "mkdir", "sbatch", "after sbatch"])
def test_interrupted_at_any_step_the_same_command_goes_on(submit, slurm, programs, tmp_path, step):
    """The step kills the launcher; its work until then counts."""
    program = step.split()[-1]
    real = f'PATH=${{PATH#*:}} {program} "$@"'
    cut = f'if [[ -e {tmp_path}/cut ]]; then rm "{tmp_path}/cut"; kill -KILL 0; fi'
    programs(**{program: f"{real}\n{cut}" if step.startswith("after") else f"{cut}\n{real}"})
    (tmp_path / "cut").touch()
    assert submit(*HERE, WAITS, *TRAINING).returncode == -signal.SIGKILL
    done = submit(*HERE, WAITS, *TRAINING)
    assert done.returncode == 0, done.stderr
    notice = "PENDING is there already" if step == "after sbatch" else "Submitted job"
    assert notice in done.stdout
    assert queue(slurm) == ["PENDING"]


@pytest.mark.slow
@pytest.mark.parametrize("statuses", [(0, 76), (76, 137), *slow((75, 75), (75, 0))])
def test_the_job_is_requeued(run_job, tmp_path, statuses):
    ended = run_job(*statuses, flags=("--follow", "--poll_secs=0.1"))
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1")
    assert "has finished" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("statuses", [(0, 0), (1, 137), *slow((1, 76), (76, 2), (127, 76))])
def test_the_job_ends_when_it_has_finished_or_failed(run_job, tmp_path, statuses):
    ended = run_job(*statuses)
    status = max(set(statuses) - {0, 76, 137}, default=0)
    assert (ended["ExitCode"], ended["Restarts"]) == (f"{status}:0", "0")
    for process in (0, 1):  # arguments are as they were given
        words = (tmp_path / f"arguments-{process}").read_text().splitlines()
        assert words == ["-m", "vit_jax.train", *TRAINING[1:]]


@pytest.mark.parametrize("mode", [None, 0o644])
def test_a_missing_interpreter_is_an_error(run_job, programs, tmp_path, mode):
    """Statuses 127 and 126 of the shell on the node: no number of restarts helps."""
    python = programs() / "nodes_python"
    programs(
        sbatch=f'PATH=${{PATH#*:}}; sbatch "$@" && {"rm" if mode is None else "chmod -x"} {python}'
    )
    ended = run_job(0, 0, flags=("--sbatch_flag=--begin=now+1",))
    assert ended["ExitCode"] == ("127:0" if mode is None else "126:0")
    assert "--python" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_the_job_gives_up(run_job, tmp_path):
    ended = run_job(76, 76, flags=("--max_restarts=1",), FAIL_GOES="2")
    assert (ended["ExitCode"], ended["Restarts"]) == ("76:0", "1")
    assert "giving up" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_a_training_goes_on_after_whatever_ends_it(launch, submit, slurm, job, tmp_path):
    """A signal, kill -9 of one of two processes, and another job that preempts it."""
    folder, log = tmp_path / "run", tmp_path / "log"
    metrics = folder / "metrics.jsonl"
    training = (
        *("--config=configs/vit_digits.py", f"--workdir={folder}", "--config.total.epochs=none"),
        *("--config.total.steps=1000000", "--config.log.every_steps=10"),
        *("--config.model.depth=1", "--config.model.width=16", "--config.model.num_heads=1"),
        *("--config.log.tensorboard=false", "--config.checkpoint.every_steps=20"),
    )
    flags = (f"--python={sys.executable}", f"--log={log}", "--max_restarts=3")
    done = launch("slurm.sh", *flags, *HERE, "--", *training, **python_environment(**slurm))
    assert done.returncode == 0, done.stderr
    number = re.search(r"Submitted job (\d+)", done.stdout)[1]

    def trains(go):
        """Waits until rows are written in this go."""
        running = lambda go=go: job(number)["Restarts"] == str(go) and queue(slurm) == ["RUNNING"]
        wait_for(running, JOB_SECS)
        before = metrics.stat().st_size if metrics.exists() else 0
        wait_for(lambda: metrics.exists() and metrics.stat().st_size > before + 200, JOB_SECS)

    trains(0)
    answer("scancel", "--signal=USR1", number, **slurm)
    trains(1)
    os.kill(int((folder / ".lock").read_text().split()[1]), signal.SIGKILL)
    trains(2)
    answer("srun", "--partition=urgent", "--ntasks=2", "true", **slurm)
    wait_for(lambda: job(number)["Restarts"] == "3", JOB_SECS)
    said = log.read_text()
    assert "Stopped by SIGUSR1" in said
    assert "Stopped by SIGTERM" in said
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert len(steps) == len(set(steps)) and steps == sorted(steps)


def test_a_failed_step_is_reported_and_repeated(submit, programs):
    refused = submit(*HERE, "--partition=none", *TRAINING)
    failed(refused, "sbatch does not take the job")
    programs(squeue="exit 1")
    refused = submit(*HERE, *TRAINING)
    failed(refused, "squeue does not answer")


@pytest.fixture
def refuse(launch, programs):
    """`refuse(FLAG...)`: the launcher where sbatch takes nothing."""
    python = f"--python={programs(sbatch='exit 9', squeue='', nodes_python='')}/nodes_python"
    return lambda *flags: launch("slurm.sh", python, *flags)


@pytest.mark.parametrize("config", ["configs/vit_digits.py", "vit_digits:x=1", "mine.py:x=1"])
def test_a_job_starts_where_the_command_is_given(launch, tmp_path, config):
    """Relative paths mean there what they mean here, and the code is that of the clone."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "mine.py").touch()
    training = (f"--config={config}", "--workdir=runs/l16", "--config.input.data_dir=data")
    submitted = launch("slurm.sh", "--dry_run", *WANTED, "--", *training, cwd=here)
    assert submitted.returncode == 0, submitted.stderr
    assert f" --chdir={here}\n" in submitted.stdout
    assert f"-m vit_jax.train {' '.join(training)}" in submitted.stdout
    assert f"export PYTHONPATH={tmp_path / 'clone'}${{PYTHONPATH" in submitted.stdout
    (here / "configs").mkdir()
    again = launch("slurm.sh", "--dry_run", *WANTED, "--", *training, cwd=here)
    assert again.returncode == (config == "configs/vit_digits.py"), again.stderr


def test_dry_run_shows_every_command_and_runs_none(launch, recorded, bare_path):
    done = launch("slurm.sh", "--dry_run", *WANTED, *TRAINING, path=bare_path)
    assert done.returncode == 0, done.stderr
    assert recorded("slurm.txt", done.stdout)


@pytest.mark.parametrize("time", ["5", "0-00:04:59"])
def test_a_time_that_leaves_none_to_train_is_refused(refuse, time):
    done = refuse("--dry_run", *WANTED, f"--time={time}", *TRAINING)
    failed(done, f"--time={time} ", "--save_secs=300")


@pytest.mark.parametrize("time", ["6", "0-00:05:01", "infinite"])
def test_any_longer_time_is_taken(refuse, time):
    assert refuse("--dry_run", *WANTED, f"--time={time}", *TRAINING).returncode == 0
