"""What the launchers share, by scripts/launcher.sh: help, and the message without their program."""

import pytest

from tests.messages import failed

TRAINING = ("--", "--config=configs/vit_digits.py")
CLOUD = (
    "--name=l16",
    "--zone=us-west4-a",
    "--type=v5litepod-16",
    *TRAINING,
    "--workdir=gs://b/l16",
)
GKE = ("--name=l16", "--topology=v5e:4x8", "--image=x", *TRAINING, "--workdir=gs://b/l16")
SLURM = ("--name=l16", "--nodes=2", "--gpus=1", *TRAINING, "--workdir=/shared/l16")


@pytest.mark.parametrize(
    ("script", "arguments", "words"),
    [
        ("cloud_tpu.sh", CLOUD, ["gcloud", "PATH", "cloud.google.com/sdk"]),
        ("gke.sh", GKE, ["kubectl", "PATH", "get-credentials"]),
        ("slurm.sh", SLURM, ["sbatch", "PATH", "login"]),
    ],
)
def test_a_missing_program_is_named_with_where_to_get_it(
    launch, bare_path, script, arguments, words
):
    done = launch(script, *arguments, path=bare_path)
    failed(done, *words)


@pytest.mark.parametrize(
    ("script", "flags"),
    [
        ("cloud_tpu.sh", "name zone type runtime spot reserved delete dry_run"),
        ("gke.sh", "name topology slices image spot max_restarts dry_run"),
        ("slurm.sh", "name nodes gpus cpus_per_gpu time sbatch_flag dry_run"),
    ],
)
def test_help_explains_every_flag(launch, script, flags):
    done = launch(script, "--help")
    assert done.returncode == 0
    assert all(f"--{flag} " in done.stdout for flag in flags.split())


@pytest.mark.parametrize(("script", "arguments"), [("cloud_tpu.sh", CLOUD), ("slurm.sh", SLURM)])
def test_a_config_may_be_named_as_the_training_takes_it(launch, script, arguments):
    named = ["--config=vit_digits:x=1" if "--config" in word else word for word in arguments]
    done = launch(script, "--dry_run", *named)
    assert done.returncode == 0, done.stderr
    assert "--config=vit_digits:x=1" in done.stdout
