"""scripts/slurm.sh against fake SLURM programs; its job script is really run."""

import os
import subprocess

import pytest

WANTED = ("--name=l16", "--nodes=2", "--gpus=1", "--time=24:00:00", "--cpus_per_gpu=12")
TRAINING = ("--", "--config=configs/vit_digits.py", "--workdir=/shared/l16", "--name=a 'b'")

# Two processes, one after the other, each with its own status; srun returns the highest.
SRUN = """
while [[ $1 == --* ]]; do shift; done
highest=0
for SLURM_PROCID in 0 1; do
  export SLURM_PROCID
  "$@" || { status=$?; ((status > highest)) && highest=$status; }
done
exit $highest
"""
PYTHON = """
printf '%s\\n' "$@" >"$WORLD/arguments-$SLURM_PROCID"
exit "$(cat "$WORLD/status-$SLURM_PROCID")"
"""


@pytest.fixture
def world(tmp_path, programs):
    folder = tmp_path / "world"
    folder.mkdir()
    (folder / "queue").touch()
    programs(
        squeue='[[ ! -e $WORLD/down ]] && cat "$WORLD/queue"',
        sbatch='[[ ! -e $WORLD/full ]] && printf "%s\\n" "$@" >"$WORLD/flags" &&'
        ' cat >"$WORLD/job" && echo "7 PENDING" >"$WORLD/queue" && echo "7;cluster"',
        scontrol='echo "$@" >>"$WORLD/scontrol"',
        srun=SRUN,
        nodes_python=PYTHON,
    )
    return folder


@pytest.fixture
def submit(launch, world, programs):
    python = f"--python={programs()}/nodes_python"
    return lambda *arguments: launch("slurm.sh", python, *arguments, WORLD=str(world))


@pytest.fixture
def run_job(world, programs):
    """`run_job(0, 76)`: runs the submitted job, whose processes end with these statuses."""

    def run(*statuses, restarts=0):
        for process, status in enumerate(statuses):
            (world / f"status-{process}").write_text(str(status))
        return subprocess.run(
            ["bash", str(world / "job")],
            env={
                "PATH": f"{programs()}:{os.environ['PATH']}",
                "WORLD": str(world),
                "SLURM_JOB_ID": "7",
                "SLURM_RESTART_COUNT": str(restarts),
            },
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_a_job_is_submitted_once(submit, world):
    first = submit(*WANTED, *TRAINING)
    assert first.returncode == 0, first.stderr
    assert "Submitted job 7\n" in first.stdout
    (world / "job").unlink()
    again = submit(*WANTED, *TRAINING)
    assert again.returncode == 0
    assert "Job 7 PENDING is there already" in again.stdout
    assert not (world / "job").exists()


def test_the_log_is_followed_until_the_job_has_left_the_queue(submit, world, programs, tmp_path):
    log = tmp_path / "log"
    log.write_text("step 1\n")
    # The queue is full, then does not answer, and is empty at the fourth look.
    programs(
        squeue='echo >>"$WORLD/looks"; looks=$(wc -l <"$WORLD/looks")\n'
        "((looks != 3)) || exit 1; ((looks != 2)) || echo 7 RUNNING"
    )
    done = submit(*WANTED, f"--log={log}", "--follow", "--poll_secs=0.1", *TRAINING)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("step 1\n")
    assert (world / "looks").read_text().count("\n") == 4


@pytest.mark.parametrize("step", ["squeue", "mkdir", "sbatch", "after sbatch"])
def test_interrupted_at_any_step_the_same_command_goes_on(submit, world, programs, step):
    """The step kills the launcher; its work until then counts."""
    program = step.split()[-1]
    whole = (programs() / program).read_text() if program != "mkdir" else 'exec /bin/mkdir "$@"'
    cut = 'if [[ -e $WORLD/cut ]]; then rm "$WORLD/cut"; kill -KILL 0; fi'
    programs(**{program: f"{whole}\n{cut}" if step.startswith("after") else f"{cut}\n{whole}"})
    (world / "cut").touch()
    assert submit(*WANTED, *TRAINING).returncode == -9
    done = submit(*WANTED, *TRAINING)
    assert done.returncode == 0, done.stderr
    notice = "Job 7 PENDING is there already" if step == "after sbatch" else "Submitted job 7"
    assert notice in done.stdout
    assert (world / "queue").read_text() == "7 PENDING\n"


def test_every_process_gets_the_arguments_as_they_were(submit, run_job, world):
    submit(*WANTED, *TRAINING)
    done = run_job(0, 0)
    assert done.returncode == 0, done.stderr
    expected = ["-m", "vit_jax.train", *TRAINING[1:]]
    for process in (0, 1):
        assert (world / f"arguments-{process}").read_text().splitlines() == expected


@pytest.mark.parametrize("statuses", [(75, 75), (0, 76), (76, 137), (75, 0)])
def test_the_job_is_requeued(submit, run_job, world, statuses):
    submit(*WANTED, *TRAINING)
    assert run_job(*statuses).returncode == 0
    assert (world / "scontrol").read_text() == "requeue 7\n"


@pytest.mark.parametrize("statuses", [(0, 0), (1, 76), (76, 2), (1, 137), (127, 76)])
def test_the_job_ends_when_it_has_finished_or_failed(submit, run_job, world, statuses):
    submit(*WANTED, *TRAINING)
    own = set(statuses) - {0, 76, 137}
    assert run_job(*statuses).returncode == max(own, default=0)
    assert not (world / "scontrol").exists()


@pytest.mark.parametrize("mode", [None, 0o644])
def test_a_missing_interpreter_is_an_error(submit, run_job, world, programs, mode):
    """Statuses 127 and 126 of the shell on the node: no number of restarts helps."""
    submit(*WANTED, *TRAINING)
    python = programs() / "nodes_python"
    python.unlink() if mode is None else python.chmod(mode)
    done = run_job(0, 0)
    assert done.returncode == (127 if mode is None else 126)
    assert "--python" in done.stdout
    assert not (world / "scontrol").exists()


@pytest.mark.parametrize("config", ["configs/vit_digits.py", "vit_digits:x=1", "mine.py:x=1"])
def test_a_job_starts_where_the_command_is_given(launch, world, tmp_path, config):
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


def test_the_job_gives_up(submit, run_job, world):
    submit(*WANTED, "--max_restarts=3", *TRAINING)
    done = run_job(76, 76, restarts=3)
    assert done.returncode == 76
    assert "giving up" in done.stdout
    assert not (world / "scontrol").exists()


def test_a_process_is_not_cut_off_by_the_signal_to_its_shell(submit, world, programs):
    """SLURM signals every process of a step: the shell must wait for the training to end."""
    submit(*WANTED, *TRAINING)
    programs(nodes_python="trap 'sleep 0.2; exit 75' TERM; kill -TERM $PPID $$; sleep 5 & wait")
    done = subprocess.run(
        ["bash", str(world / "job")],
        env={"PATH": f"{programs()}:{os.environ['PATH']}", "WORLD": str(world)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Ended with status 75; going back" in done.stdout


@pytest.mark.parametrize(("file", "message"), [("down", "squeue"), ("full", "sbatch")])
def test_a_failed_step_is_reported_and_repeated(submit, world, file, message):
    (world / file).touch()
    done = submit(*WANTED, *TRAINING)
    assert done.returncode == 1
    assert message in done.stderr
    (world / file).unlink()
    assert "Submitted job 7" in submit(*WANTED, *TRAINING).stdout


def test_dry_run_shows_every_command_and_runs_none(launch, recorded, bare_path):
    done = launch("slurm.sh", "--dry_run", *WANTED, *TRAINING, path=bare_path)
    assert done.returncode == 0, done.stderr
    assert recorded("slurm.txt", done.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "slurm.sh needs --name --nodes --gpus"),
        ((*WANTED, "--nodes=two", *TRAINING), "--nodes=two"),
        (("--name=a b", "--nodes=1", "--gpus=1", *TRAINING), "--name=a b"),
        (WANTED, "--workdir /shared/l16"),
        ((*WANTED, "--", "--config=b.py", "--workdir=/shared/l16"), "--config=b.py: there is no"),
        ((*WANTED, "--python=/nowhere/python", *TRAINING), "no Python at /nowhere/python"),
    ],
)
def test_wrong_arguments_get_one_message(submit, world, arguments, message):
    done = submit(*arguments)
    assert done.returncode == 1
    assert message in done.stderr
    assert not (world / "job").exists()


@pytest.mark.parametrize("time", ["5", "4:59", "0:05:00", "0-0:5", "0-00:04:59"])
def test_a_time_that_leaves_none_to_train_is_refused(submit, time):
    done = submit("--dry_run", *WANTED, f"--time={time}", *TRAINING)
    assert done.returncode == 1
    assert all(flag in done.stderr for flag in (f"--time={time} ", "--save_secs=300"))


@pytest.mark.parametrize("time", ["6", "5:01", "0:05:01", "1-0", "0-0:6", "0-00:05:01", "infinite"])
def test_any_longer_time_is_taken(submit, time):
    assert submit("--dry_run", *WANTED, f"--time={time}", *TRAINING).returncode == 0
