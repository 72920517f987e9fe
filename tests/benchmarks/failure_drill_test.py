import signal

import pytest

from benchmarks.drills.kills import as_expected


@pytest.mark.parametrize(
    ("statuses", "passes"),
    [
        ([75, 75], True),  # all saved
        ([76, -9], True),  # the victim died, the other noticed
        ([-9, 76], False),  # the other one died
        ([76, -15], False),  # by another signal
        ([76, 0], False),  # the run ended before the kill
        ([None, -9], False),  # the other hangs
        ([76, -9, None], False),  # a process is left behind
    ],
)
def test_what_counts_as_an_orderly_end(statuses, passes):
    assert as_expected(statuses, processes=2, victim=1, number=signal.SIGKILL) == passes


SHORT = """
from benchmarks import failure_drill
from benchmarks.drills import damage, kills
from vit_jax.core import command

damage.DAMAGES = {"flipped": damage.DAMAGES["flipped"]}
kills.MOMENTS = {name: kills.MOMENTS[name] for name in ("save", "restore")}
command.run(failure_drill.main)
"""


@pytest.mark.slow
def test_a_short_drill_passes(run_python, tmp_path):
    """Kills a single process twice; tests/multihost_test.py kills and stops one of several."""
    short = ("--kills=2", "--processes=1", "--drills=kills,damage", "--noappend")
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    done = run_python("-c", SHORT, *short, timeout_secs=1800, **cache)
    assert done.returncode == 0, done.stdout + done.stderr
    for row in ("| kills, 1 process | 2 | passed |", "| damage | 2 | passed |"):
        assert row in done.stdout
