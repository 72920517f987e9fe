"""scripts/gke.sh against a fake kubectl."""

import pytest
import yaml

from tests.messages import failed

WANTED = ("--name=l16", "--topology=v5e:4x8", "--slices=2", "--image=gcr.io/project/vit_jax:1")
TRAINING = (
    "--",
    "--config=configs/vit_digits.py",
    "--workdir=gs://bucket/l16",
    "--name=a 'b' $(C)",
)

# Keeps the manifest in $WORLD/jobset and its state in $WORLD/state; a call that contains the text
# in $WORLD/fail fails once, one with that in $WORLD/cut kills the launcher.
KUBECTL = """
cd "$WORLD"
echo "$*" >>calls
if [[ -e fail && $* == *$(cat fail)* ]]; then
  rm fail
  cat reason >&2
  exit 1
fi
cut() { if [[ -e cut && $1 == *$(cat cut)* ]]; then rm cut; kill -KILL 0; fi; }
[[ -e after ]] || cut "$*"
case " $* " in
  *" apply "*) cat >jobset && echo >state ;;
  *" delete "*) rm -f jobset state ;;
  *" logs "*)
    [[ ! -e pods ]] || { head -n 1 pods; sed -i 1d pods; [[ -s pods ]] || cat ending >state; } ;;
  *" get "*)
    if [[ -e jobset ]]; then
      sum=$(sed -n 's/.*vit-jax-manifest: "\\(.*\\)"/\\1/p' jobset)
      echo "sum=$sum state=$(cat state)"
    fi ;;
esac
cut "$*"
exit 0
"""


@pytest.fixture
def world(tmp_path, programs):
    folder = tmp_path / "world"
    folder.mkdir()
    (folder / "reason").write_text("told to fail\n")
    programs(kubectl=KUBECTL)
    return folder


@pytest.fixture
def gke(launch, world):
    return lambda *arguments: launch("gke.sh", *arguments, WORLD=str(world))


def test_the_manifest_says_what_was_asked_for(gke, world):
    about = '--about="two"\nlines \\n'
    done = gke(*WANTED, "--spot", "--chips_per_host=8", *TRAINING, about)
    assert done.returncode == 0, done.stderr
    assert "2 x v5e:4x8, 8 hosts" in done.stdout
    jobset = yaml.safe_load((world / "jobset").read_text())
    (job,) = jobset["spec"]["replicatedJobs"]
    assert job["replicas"] == 2
    assert job["template"]["spec"]["parallelism"] == job["template"]["spec"]["completions"] == 4
    pod = job["template"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x8",
        "cloud.google.com/gke-spot": "true",
    }
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"google.com/tpu": 8}
    arguments = [word.replace("$(", "$$(") for word in (*TRAINING[1:], about)]
    assert container["command"] == ["python", "-m", "vit_jax.train", *arguments]


@pytest.mark.parametrize(
    ("ending", "status", "message"),
    [("Completed", 0, "l16 has finished"), ("Failed", 1, "l16 has failed")],
)
def test_the_log_is_followed_from_pod_to_pod(gke, world, ending, status, message):
    (world / "pods").write_text("step 1\nstep 2\n")
    (world / "ending").write_text(ending)
    done = gke(*WANTED, "--follow", "--poll_secs=0", *TRAINING)
    assert done.returncode == status
    assert "step 1\nstep 2\n" in done.stdout
    assert message in done.stdout + done.stderr
    assert (world / "calls").read_text().count("logs --follow") == 2


@pytest.mark.parametrize(
    ("state", "overrides", "verbs", "status", "message"),
    [
        ("", (), ["get"], 0, "there already"),
        ("", ("--config.seed=1",), ["get"], 1, "runs with other settings"),
        ("Completed", (), ["get"], 0, "has finished"),
        ("Completed", ("--config.seed=1",), ["get", "delete", "apply"], 0, "with other settings"),
        ("Failed", (), ["get", "delete", "apply"], 0, "has failed"),
    ],
)
def test_existing_jobs_decide_what_is_done(gke, world, state, overrides, verbs, status, message):
    gke(*WANTED, *TRAINING)
    (world / "state").write_text(state)
    (world / "calls").unlink()
    done = gke(*WANTED, *TRAINING, *overrides)
    assert message in done.stdout + done.stderr
    assert done.returncode == status
    assert [call.split()[0] for call in (world / "calls").read_text().splitlines()] == verbs


BEFORE = pytest.param(False, id="before", marks=pytest.mark.slow)


@pytest.mark.parametrize("after", [BEFORE, pytest.param(True, id="after")])
@pytest.mark.parametrize("step", ["get", "delete", "apply"])
def test_interrupted_at_any_step_the_same_command_goes_on(gke, world, step, after):
    gke(*WANTED, *TRAINING)
    (world / "state").write_text("Failed")
    (world / "cut").write_text(step)
    if after:
        (world / "after").touch()
    assert gke(*WANTED, *TRAINING).returncode == -9
    done = gke(*WANTED, *TRAINING)
    assert done.returncode == 0, done.stderr
    assert (world / "state").read_text() == "\n"


@pytest.mark.parametrize("step", ["get", "delete", "apply"])
def test_a_failed_step_is_reported(gke, world, step):
    gke(*WANTED, *TRAINING)
    (world / "state").write_text("Failed")
    (world / "fail").write_text(step)
    done = gke(*WANTED, *TRAINING)
    failed(done, (world / "reason").read_text())
    assert gke(*WANTED, *TRAINING).returncode == 0
    assert (world / "state").read_text() == "\n"


def test_a_cluster_without_jobset_is_told_where_to_get_it(gke, world):
    (world / "fail").write_text("get")
    (world / "reason").write_text('error: the server doesn\'t have a resource type "jobset"\n')
    done = gke(*WANTED, *TRAINING)
    failed(done, "jobset.sigs.k8s.io")


def test_delete_removes_the_job(gke, world):
    gke(*WANTED, *TRAINING)
    assert gke("delete", "--name=l16").returncode == 0
    assert not (world / "jobset").exists()
    assert gke("delete", "--name=l16").returncode == 0


def test_dry_run_shows_every_command_and_runs_none(launch, recorded, bare_path):
    options = ("--dry_run", "--spot", "--context=c", "--namespace=n", "--node_selector=team=vision")
    done = launch("gke.sh", *options, *WANTED, *TRAINING, path=bare_path)
    assert done.returncode == 0, done.stderr
    assert recorded("gke.txt", done.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--name=l16",), "gke.sh needs --topology --image"),
        (("--name=L16", *WANTED[1:], *TRAINING), "small letters"),
        ((*WANTED, "--topology=v9:4x4", *TRAINING), "begin with v4:"),
        ((*WANTED, "--topology=v5e:4x4x4", *TRAINING), "2 sides of a slice, such as v5e:16x16"),
        ((*WANTED, "--topology=v5e:2x2", *TRAINING), "more than one host"),
        ((*WANTED, "--chips_per_host=3", *TRAINING), "do not divide"),
        ((*WANTED, "--", "--config=a.py", "--workdir=runs/a"), "has to be gs://"),
    ],
)
def test_wrong_arguments_get_one_message(gke, world, arguments, message):
    done = gke(*arguments)
    failed(done, message)
    assert not (world / "calls").exists()
