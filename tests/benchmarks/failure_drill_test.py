import signal

import pytest

from benchmarks.drills.kills import as_expected


@pytest.mark.parametrize(
    ("statuses", "passes"),
    [
        ([75, 75], True),  # all saved
        ([76, -9], True),  # the victim died, the other noticed
        ([-9, 76], False),  # the other one died
        ([76, -15], False),  # of another signal
        ([76, 0], False),  # the run ended before it was killed
        ([None, -9], False),  # the other hangs
        ([76, -9, None], False),  # something is left behind
    ],
)
def test_what_counts_as_an_orderly_end(statuses, passes):
    assert as_expected(statuses, processes=2, victim=1, number=signal.SIGKILL) == passes


@pytest.mark.slow
def test_a_short_drill_passes(run_python):
    """Of one process; tests/multihost_test.py kills and stops one of several."""
    short = ("--kills=3", "--processes=1", "--drills=kills,damage", "--noappend")
    done = run_python("-m", "benchmarks.failure_drill", *short, timeout_secs=1800)
    assert done.returncode == 0, done.stdout + done.stderr
