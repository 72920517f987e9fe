"""scripts/sweep.sh: its dry run and messages; tests/tools/lab/sweep runs sweeps."""

from pathlib import Path

import pytest

from tests.messages import failed

REPOSITORY = Path(__file__).parents[2]
GRID = ("--config", "configs/vit_digits.py", "--config.optim.lr=1e-3,3e-3", "--config.seed=0,1,2")


@pytest.fixture
def sweep(launch):
    env = {"PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu"}
    return lambda *arguments, **more: launch("sweep.sh", *arguments, **env, **more)


@pytest.mark.slow
def test_dry_run_shows_every_point_and_starts_none(sweep, recorded, clone):
    op = "--config.input.preprocess=decode|resize(8),'decode|pad_crop(32, 4)'"
    done = sweep("--dry_run", "--workdir=runs/lr", "--", *GRID, op)
    assert done.returncode == 0, done.stderr
    arguments = ("--launcher=scripts/slurm.sh --nodes=1 --gpus=8", "--workdir=/shared/lr", "--")
    jobs = sweep("--dry_run", "--name=lr", *arguments, *GRID)
    assert jobs.returncode == 0, jobs.stderr
    assert recorded("sweep.txt", done.stdout + jobs.stdout)
    assert not (clone / "runs").exists()


@pytest.mark.parametrize(
    ("flags", "messages"),
    [
        ((), ["--workdir is missing"]),
        (("--workdir=WORKDIR", "--config=configs/vit_digits.py"), ['follow " -- "']),
        (("--workdir=WORKDIR", "--launcher=slurm.sh 'x"), ["--launcher=slurm.sh 'x", "No closing"]),
        (
            ("--workdir=WORKDIR", "--", *GRID, "--config.sed=1", "--config.loss.mixup=x,0"),
            ["no field sed", "loss.mixup takes a number"],
        ),
    ],
)
def test_wrong_flags_get_one_message(run_python, tmp_path, flags, messages):
    """Messages of the command, to which the script passes all its arguments."""
    given = [flag.replace("WORKDIR", str(tmp_path / "lr")) for flag in flags]
    given += [] if "--" in flags else ["--", *GRID]
    done = run_python("-m", "vit_jax", "sweep", *given)
    failed(done, *messages)
    assert not (tmp_path / "lr").exists()
