import os
import subprocess
import sys

import pytest

from vit_jax.core.process import huge_pages

PROGRAM = """
import os
from vit_jax.core.process import huge_pages
huge_pages.use()
print(os.getpid(), os.environ["GLIBC_TUNABLES"])
"""
needs_glibc = pytest.mark.skipif(not huge_pages.settings(), reason="the C library is another one")


def run(**variables):
    environment = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"} | variables
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    pid, tunables = output.split()
    return int(pid) == process.pid, tunables


@needs_glibc
def test_starts_the_same_process_anew_once():
    assert run() == (True, "glibc.malloc.hugetlb=1")


@needs_glibc
def test_leaves_what_the_user_has_set():
    assert run(GLIBC_TUNABLES="glibc.malloc.check=0") == (True, "glibc.malloc.check=0")
