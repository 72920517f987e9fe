"""Cached programs are found again and give the same bits, whatever happens to the files."""

import concurrent.futures

import jax
import pytest

from vit_jax.core import compilation_cache
from vit_jax.store import checkpoint_dir

# A program that takes a second to compile; prints its result and the number of cache hits.
PROGRAM = """
import jax, jax.numpy as jnp
from vit_jax.core import compilation_cache

compilation_cache.use()

def f(x):
    for _ in range(12):
        x = jnp.tanh(x @ x) + jnp.sort(x, axis=0)
    return x.sum()

found = jax.jit(f).lower(jax.ShapeDtypeStruct((32, 32), jnp.float32)).compile()
ones = jnp.ones((32, 32))
hits, folder = compilation_cache.tally().found, jax.config.jax_compilation_cache_dir
print(float(found(ones)).hex(), hits, folder)
"""
KEEP_ALL = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}


@pytest.fixture(autouse=True)
def without_the_sessions_cache(monkeypatch):
    """Unsets what tests/conftest.py sets."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_MAX_SIZE", raising=False)


@pytest.fixture
def compile_program(run_python, tmp_path):
    """`compile_program()`: (result, cache hits, folder, standard error) of a process."""

    def compile_program(**env):
        done = run_python("-c", PROGRAM, **{"XDG_CACHE_HOME": str(tmp_path), **KEEP_ALL, **env})
        assert done.returncode == 0, done.stderr
        result, hits, folder = done.stdout.split()
        return result, int(hits), folder, done.stderr

    return compile_program


def entries(tmp_path):
    return sorted((tmp_path / "vit_jax" / "xla").glob("jit_f-*-cache"))


@pytest.mark.slow
def test_several_at_once_then_found_again_whatever_happens_to_the_file(tmp_path, compile_program):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = [f.result() for f in [pool.submit(compile_program) for _ in range(2)]]
    results = {result for result, *_ in first}
    assert len(results) == 1
    assert not any(errors for *_, errors in first)
    result, hits, folder, errors = compile_program()
    assert ({result}, errors) == (results, "")
    assert hits
    assert folder == str(tmp_path / "vit_jax" / "xla")

    (entry,) = entries(tmp_path)
    whole = entry.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"garbage"):
        entry.write_bytes(damaged)
        damaged_result, fewer_hits, _, errors = compile_program()
        assert damaged_result == result
        assert fewer_hits == hits - 1
        assert "jit_f" in errors

    # As left by a process killed while writing: it is written anew.
    entry.with_name(entry.name.replace("-cache", "-atime")).unlink()
    assert compile_program()[0] == result
    assert len(entry.read_bytes()) > len(whole) // 2
    assert compile_program()[1:] == (hits, folder, "")


@pytest.fixture
def use(monkeypatch, tmp_path):
    """The jax settings made by `use` when the user has set `given`; nothing is applied."""

    def use(**given):
        unset = {
            "jax_compilation_cache_dir": None,
            "jax_compilation_cache_max_size": -1,
            "jax_enable_compilation_cache": True,
        }
        changed = {}
        monkeypatch.setattr(compilation_cache, "_setting", (unset | given).__getitem__)
        monkeypatch.setattr(jax.config, "update", changed.__setitem__)
        compilation_cache.use()
        return changed

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return use


def test_a_largest_size_makes_jax_lock_the_folder(use, tmp_path):
    assert use() == {
        "jax_compilation_cache_dir": str(tmp_path / "vit_jax" / "xla"),
        "jax_compilation_cache_max_size": compilation_cache.MAX_BYTES,
    }


def test_without_a_folder_there_is_no_cache(use, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert use() == {}


def test_the_users_choice_wins(use, tmp_path):
    own = str(tmp_path / "own")
    assert use(jax_compilation_cache_dir=own)["jax_compilation_cache_dir"] == own
    assert "jax_compilation_cache_max_size" not in use(jax_compilation_cache_max_size=1000)
    for off in (
        {"jax_enable_compilation_cache": False},
        {"jax_compilation_cache_dir": ""},
        {"jax_compilation_cache_dir": "gs://bucket/folder"},  # as set up by the user
    ):
        assert use(**off) == {}


@pytest.mark.slow
def test_a_run_ends_with_the_same_bits(tmp_path, run_python):
    """A run compiled anew equals one that takes the program from the cache."""
    sums = []
    for workdir in (tmp_path / "cold", tmp_path / "warm"):
        done = run_python(
            "-m", "vit_jax.train", "--config", "configs/vit_digits.py", "--workdir", str(workdir),
            "--config.model.depth=2", "--config.total.epochs=none", "--config.total.steps=8",
            "--config.optim.warmup_epochs=none", "--config.log.tensorboard=false",
            XDG_CACHE_HOME=str(tmp_path), **KEEP_ALL,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert (", from the cache" in done.stdout) == (workdir.name == "warm")
        arrays = checkpoint_dir.read_description(workdir / "checkpoints" / "8")["arrays"]
        sums.append({name: array["checksum"] for name, array in arrays.items()})
    assert sums[0] == sums[1]
