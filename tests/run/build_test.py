"""All problems are reported at once, before anything is compiled or written; folders first."""

import collections
from types import SimpleNamespace

import pytest
from etils import epath

from tests.messages import refused
from vit_jax.config import InitConfig
from vit_jax.core.errors import UserError
from vit_jax.run import folders
from vit_jax.run.build import Run
from vit_jax.run.parts import warm_start
from vit_jax.train import train

FOLDER = ("input.source=image_folder", "input.num_examples=none", "input.num_classes=none")
UNNAMED = tuple(
    f"model.{field}=none" for field in ("name", "depth", "width", "mlp_dim", "num_heads")
)
EVAL = "evals.test.preprocess=decode|resize(8)"


@pytest.fixture
def problems_of(tmp_path, tiny_run):
    """Problems that `prepare` reports for a run with these overrides."""

    def problems_of(*overrides):
        with pytest.raises(UserError) as error:
            Run.build(tiny_run(*overrides), epath.Path(tmp_path / "run"))
        assert not (tmp_path / "run").exists()
        return str(error.value)

    return problems_of


def test_the_parts_of_a_run(tmp_path, tiny_run):
    run = Run.build(tiny_run(EVAL), epath.Path(tmp_path / "run"))
    assert run.source.num_examples == 64
    assert run.parts.durations.total_steps == 6
    assert list(run.eval_data) == list(run.evals.by_name) == ["test"]
    assert run.batch_layout["image"].shape == (16, 8, 8, 3)
    assert not (tmp_path / "run").exists()


def test_processes_with_other_data_or_weights_are_refused(tmp_path, tiny_run, trained):
    first, (weights, _) = {}, trained
    peers = SimpleNamespace(
        several=True,
        from_first=first.setdefault,
        members=["process 0 (a, pid 1)", "process 1 (b, pid 2)"],
        me="process 1 (b, pid 2)",
    )
    config = tiny_run(
        "evals.test.preprocess=decode|resize(8)", f"init.weights={weights}",
        "method.kind=distillation", f"method.teacher={weights}",
    )  # fmt: skip
    for _ in range(2):
        Run.build(config, epath.Path(tmp_path / "run"), peers)
    (files,) = first.values()
    for name in ("evals.test", "init.weights", "method.teacher"):
        files[name] = ["0"]
    with refused("process 1 (b, pid 2)", "for evals.test, init.weights, method.teacher."):
        Run.build(config, epath.Path(tmp_path / "run"), peers)


def test_all_problems_are_reported_at_once(problems_of):
    problems = problems_of(
        "input.batch_size=7", "optim.grad_accum_steps=2", "optim.freeze=hed/.*", "loss.mixup=1e-40",
        EVAL, "evals.val.preprocess=decode|resize(12)", "evals.test.source=image_folder",
        "evals.test.data_dir=/nowhere", "init.weights=/nowhere", "log.wandb_project=a/b",
    )  # fmt: skip
    assert problems.startswith("7 problems:\n  1. ")
    for number, problem in enumerate(
        (
            "input.batch_size=7 does not divide",
            "optim.freeze: 'hed/.*' matches no parameter",
            "loss.mixup=1e-40",
            "evals.test.data_dir=/nowhere is not a folder",
            "evals.val.preprocess",
            "init.weights=/nowhere: No checkpoint",
            "a/b",
        ),
        start=1,
    ):
        assert problem in problems, number


def test_without_the_data_the_rest_is_checked_if_they_are_declared(problems_of):
    problems = problems_of("input.source=tfds", "input.data_dir=/nowhere", "model.num_heads=3")
    assert "input.data_dir=/nowhere is not a folder" in problems
    assert "does not divide into 3 heads" in problems
    problems = problems_of(
        "input.source=tfds",
        "input.data_dir=/nowhere",
        "input.num_classes=none",
        "model.num_heads=3",
    )
    assert problems.startswith("input.data_dir=/nowhere")


def test_weights_that_do_not_fit_are_found_before_the_model_is_made(tmp_path, tiny_run, trained):
    first, _ = trained
    other = tiny_run(f"init.weights={first}", "model.mlp_dim=48")
    workdir = epath.Path(tmp_path / "run")
    with refused("init.weights"):
        Run.build(other, workdir)
    fits = Run.build(tiny_run(f"init.weights={first}"), workdir)
    assert fits.shapes["head/kernel"] == (16, 4)
    # A resumed run no longer needs them.
    gone = tiny_run("init.weights=/nowhere")
    assert Run.build(gone, epath.Path(first)).trained is None


def test_a_kept_head_over_other_classes_is_refused():
    """The class that differs is named; the synsets of ImageNet are known by their ids."""
    check = lambda ours, theirs, head="keep": warm_start.check_head(
        InitConfig(weights="w", head=head),
        SimpleNamespace(class_names=theirs),
        SimpleNamespace(class_names=ours),
    )
    check(("cat", "dog"), ("cat", "dog"))
    check(("n01440764", "n01443537"), ("n01440764 tench", "n01443537 goldfish"))
    check(("cat", "dog"), ("cat", "cow"), head="reset")
    check(("cat", "dog"), None)
    with refused("'dog'", "'cow'"):
        check(("cat", "dog"), ("cat", "cow"))
    with refused("'cat'", "'dog'"):
        check(("cat", "dog"), ("dog", "cat"))


def test_a_full_disk_is_found_before_the_start(tmp_path, tiny_run, monkeypatch):
    usage = collections.namedtuple("Usage", ["total", "used", "free"])
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(0, 0, 10_000))
    with refused("keep_last"):
        train(tiny_run(), epath.Path(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_state_that_no_device_can_hold_is_refused_at_every_start(problems_of, monkeypatch):
    monkeypatch.setattr("vit_jax.run.memory.device_memory", lambda _: 10**8)
    assert problems_of("input.num_classes=10_000_000") == (
        "A device has 95.4 MiB, too little for the targets of a batch, 610 MiB: correct "
        "input.num_classes, or lower input.batch_size."
    )
    assert "too little for the state, 195 MiB" in problems_of("input.num_classes=1_000_000")


@pytest.fixture
def messages(tmp_path, tiny_run, monkeypatch):
    """`messages(override, ...)`: the error of a run with these overrides."""
    monkeypatch.chdir(tmp_path)

    def messages(*overrides, workdir="run"):
        with pytest.raises(UserError) as error:
            folders.check_folders(tiny_run(*overrides), epath.Path(tmp_path / workdir))
        return str(error.value)

    return messages


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["input.source=digts"], "input.source='digts' is no source. Did you mean"),
        (FOLDER, "input.data_dir=None"),
        ([*FOLDER, "input.data_dir=nowhere"], "input.data_dir=nowhere is not a folder"),
        ([*FOLDER, "input.data_dir=set"], 'not folders of images: set input.source="tfds"'),
        (["input.source=tfds", "input.data_dir=images"], "holds no dataset_info.json"),
        (["input.data_dir=images"], "is not read by input.source='synthetic'"),
        (["evals.val.source=image_folder"], "evals.val.data_dir=None"),
        (["evals.val.labels=real.json"], "evals.val.labels=real.json cannot be read"),
        (["input.mixture.a.source=tfds"], "input.mixture.a.data_dir=None"),
        (["init.weights=nowhere"], "init.weights=nowhere: No checkpoint in nowhere"),
        ([*UNNAMED, "init.head=reset"], "model.name=None: give --config.init.weights=DIR"),
    ],
)
def test_a_wrong_folder_is_reported(messages, tmp_path, overrides, message):
    (tmp_path / "set" / "3.0.2").mkdir(parents=True)
    (tmp_path / "set" / "3.0.2" / "dataset_info.json").write_text("{}")
    (tmp_path / "images" / "cat").mkdir(parents=True)
    (tmp_path / "a.jpg").write_text("")
    said = messages(*overrides)
    assert message in said
    assert "problems:" not in said
    assert not (tmp_path / "run").exists()


def test_all_wrong_folders_are_reported_at_once(messages, tmp_path):
    (tmp_path / "file").write_text("")
    said = messages(
        *FOLDER, "input.data_dir=nowhere", "evals.val.split=val", "evals.test.data_dir=/not",
        "init.weights=nowhere", workdir="file/run",
    )  # fmt: skip
    assert said.startswith("4 problems:")  # evals.val has the folder of the training
    for text in ("input.data_dir=", "evals.test.data_dir=", "init.weights=", "cannot be written"):
        assert text in said


def test_a_resumed_run_no_longer_needs_its_weights(tiny_run, tmp_path):
    (tmp_path / "run" / "checkpoints" / "3").mkdir(parents=True)
    for named in ((), UNNAMED):
        config = tiny_run(*named, "init.weights=/nowhere")
        folders.check_folders(config, epath.Path(tmp_path / "run"))


def test_needs_neither_tensorflow_nor_devices(run_python):
    """JAX_PLATFORMS is unusable: looking for devices would give that error instead."""
    program = (
        "import sys; from vit_jax import config, train; from vit_jax.run import folders\n"
        "from vit_jax.core.errors import UserError\n"
        "try: folders.check_folders(config.load('configs/vit_image_folder.py'))\n"
        "except UserError as error: print(error)\n"
        "sys.exit('tensorflow' in sys.modules)"
    )
    done = run_python("-c", program, JAX_PLATFORMS="none")
    assert done.stdout.startswith("input.data_dir=None"), done.stderr
    assert done.returncode == 0, done.stderr
