import pytest
from etils import epath

from tests.messages import refused
from vit_jax import config as configs
from vit_jax.core import command, files
from vit_jax.core.errors import UserError
from vit_jax.core.files import atomic_file, atomic_folder, cache_dir, delete_leftovers, write_file
from vit_jax.store import workdir
from vit_jax.weights import online


@pytest.mark.parametrize("kind", [lambda path: path, epath.Path], ids=["pathlib", "etils"])
def test_a_file_is_replaced_in_full_or_not_at_all(tmp_path, kind):
    path = kind(tmp_path / "file")
    write_file(path, "old")
    with pytest.raises(KeyboardInterrupt), atomic_file(path) as temporary:
        assert temporary.name.startswith(".file.") and temporary.parent == path.parent
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    write_file(path, b"new")
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_leftovers_of_killed_processes_are_deleted(tmp_path):
    writing = atomic_file(tmp_path / "file")
    writing.__enter__().write_text("half")  # and killed
    (tmp_path / ".config").touch()
    delete_leftovers(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [".config"]


def test_a_folder_is_complete_or_absent(tmp_path):
    folder = tmp_path / "a" / "folder"
    with refused("full", error=OSError), atomic_folder(folder) as temporary:
        (temporary / "file").touch()
        raise OSError("full")
    assert not list(folder.parent.iterdir())
    first, second = atomic_folder(folder), atomic_folder(folder)  # of processes started at once
    writes = first.__enter__()
    (writes / "file").touch()
    second.__enter__()
    (writes / "other").touch()
    first.__exit__(None, None, None)
    with pytest.raises(OSError, match=folder.name):
        second.__exit__(None, None, None)
    assert [p.name for p in folder.parent.iterdir()] == ["folder"]
    assert sorted(p.name for p in folder.iterdir()) == ["file", "other"]


@pytest.mark.parametrize(
    "path",
    [
        cache_dir,
        lambda: workdir.named("~/runs"),
        lambda: online.fetch("~/weights.npz"),
        lambda: files.expand_home("~/model.onnx"),
        lambda: configs.resolve({}, ["input.data_dir=~/data"]),
        lambda: command.expand_home(["--workdir=~/runs"]),
    ],
)
def test_without_a_home_folder_none_is_made_up(monkeypatch, path):
    """As in a container with --user; os.path.expanduser would leave "~"."""
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("VIT_JAX_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 5)  # in no passwd
    with pytest.raises((RuntimeError, UserError), match=r"home|~/data"):
        path()
