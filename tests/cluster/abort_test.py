import signal

import pytest

PROGRAM = """
import ctypes, os, threading
from vit_jax.cluster.start import explained_abort
def explain():
    {explain}
with explained_abort(explain):
    threading.Thread(target=ctypes.CDLL(None).abort).start()  # as C++ does it, without Python
    threading.Event().wait(30)
"""


@pytest.mark.parametrize(
    ("explain", "status"), [("os._exit(76)", 76), ("print('none')", -signal.SIGABRT)]
)
def test_an_abort_that_is_explained_and_one_that_is_not(run_python, explain, status):
    done = run_python("-c", PROGRAM.format(explain=explain))
    assert done.returncode == status, done.stderr
