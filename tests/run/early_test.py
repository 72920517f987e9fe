"""Errors visible from folders alone come first, and cost next to nothing."""

import pytest
from etils import epath

from vit_jax.core.errors import UserError
from vit_jax.run import early

FOLDER = ("input.source=image_folder", "input.num_examples=none", "input.num_classes=none")
UNNAMED = tuple(
    f"model.{field}=none" for field in ("name", "depth", "width", "mlp_dim", "num_heads")
)


@pytest.fixture
def messages(tmp_path, tiny_run, monkeypatch):
    """`messages(override, ...)`: the error of a run with these overrides."""
    monkeypatch.chdir(tmp_path)

    def messages(*overrides, workdir="run"):
        with pytest.raises(UserError) as error:
            early.look(tiny_run(*overrides), epath.Path(tmp_path / workdir))
        return str(error.value)

    return messages


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["input.source=digts"], "input.source='digts': there is no such source. Did you mean"),
        (FOLDER, "input.data_dir is not set"),
        ([*FOLDER, "input.data_dir=nowhere"], "input.data_dir=nowhere is not a folder"),
        ([*FOLDER, "input.data_dir=a.jpg"], "input.data_dir=a.jpg is not a folder"),
        ([*FOLDER, "input.data_dir=set"], 'not folders of images: set input.source="tfds"'),
        ([*FOLDER, "input.data_dir=set/3.0.2"], 'set input.source="tfds"'),
        (["input.source=tfds", "input.data_dir=images"], "holds no dataset_info.json"),
        (["input.data_dir=images"], "input.source='synthetic' reads no folder"),
        (["evals.val.source=image_folder"], "evals.val.data_dir is not set"),
        (["input.mixture.a.source=tfds"], "input.mixture.a.data_dir is not set"),
        (["init.weights=nowhere"], "init.weights=nowhere: No checkpoint in nowhere"),
        (["init.weights="], "init.weights is empty"),
        (["init.head=reset"], "init.head=reset says how to take weights"),
        ([*UNNAMED, "init.head=reset"], "model.name=None takes the architecture from init.weights"),
        ([*UNNAMED, "init.weights=nowhere"], "put the weights back"),
    ],
)
def test_a_wrong_folder_is_reported(messages, tmp_path, overrides, message):
    (tmp_path / "set" / "3.0.2").mkdir(parents=True)
    (tmp_path / "set" / "3.0.2" / "dataset_info.json").write_text("{}")
    (tmp_path / "images" / "cat").mkdir(parents=True)
    (tmp_path / "a.jpg").write_text("")
    text = messages(*overrides)
    assert message in text
    assert "problems:" not in text
    assert not (tmp_path / "run").exists()


def test_all_wrong_folders_are_reported_at_once(messages, tmp_path):
    (tmp_path / "file").write_text("")
    message = messages(
        *FOLDER, "input.data_dir=nowhere", "evals.val.split=val", "evals.test.data_dir=/not",
        "init.weights=nowhere", workdir="file/run",
    )  # fmt: skip
    assert message.startswith("4 problems:")  # evals.val has the folder of the training
    for text in ("input.data_dir=", "evals.test.data_dir=", "init.weights=", "work directory"):
        assert text in message


def test_existing_and_remote_folders_pass(tiny_run, tmp_path):
    (tmp_path / "images" / "cat").mkdir(parents=True)
    workdir = epath.Path(tmp_path / "run")
    early.look(tiny_run(), workdir)
    early.look(tiny_run())
    early.look(tiny_run(*FOLDER, f"input.data_dir={tmp_path}/images"), workdir)
    early.look(tiny_run(*FOLDER, "input.data_dir=gs://x/y", "init.weights=gs://x/z"), workdir)


def test_a_resumed_run_no_longer_needs_its_weights(tiny_run, tmp_path):
    (tmp_path / "run" / "checkpoints" / "3").mkdir(parents=True)
    early.look(tiny_run("init.weights=/nowhere"), epath.Path(tmp_path / "run"))


def test_needs_neither_tensorflow_nor_devices(run_python, tmp_path):
    """JAX_PLATFORMS is unusable: looking for devices would give that error instead."""
    program = (
        "import sys; from vit_jax import config, train; from vit_jax.run import early\n"
        "from vit_jax.core.errors import UserError\n"
        "try: early.look(config.load('configs/vit_image_folder.py'))\n"
        "except UserError as error: print(error)\n"
        "sys.exit('tensorflow' in sys.modules)"
    )
    done = run_python("-c", program, JAX_PLATFORMS="none")
    assert done.stdout.startswith("input.data_dir is not set"), done.stderr
    assert done.returncode == 0, done.stderr
    done = run_python(
        "-m", "vit_jax.train", "--config=configs/vit_image_folder.py", f"--workdir={tmp_path}",
        JAX_PLATFORMS="none",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: input.data_dir is not set")
