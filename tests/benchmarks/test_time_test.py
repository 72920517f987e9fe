"""The program that times the tests, run on short programs and tests."""

import ast

BUSY = """
import subprocess, sys, time
child = "import time\\nwhile time.process_time() < 0.3: pass"
subprocess.run([sys.executable, "-c", child], check=True)
time.sleep(0.2)
print("1 passed, 2 skipped in 0.5s\\n")
sys.exit(3)
"""
RUN = """
import sys
from benchmarks import test_time

print(test_time.measure([sys.executable, "-c", sys.argv[1]])._asdict())
print(test_time.outcomes("3 failed, 12 passed, 1 skipped, 5 deselected in 7.5s"))
"""


def test_cpu_time_of_grandchildren_counts(run_python):
    done = run_python("-c", RUN, BUSY)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    taken = ast.literal_eval(lines[-2])
    assert taken["status"] == 3
    assert taken["last_line"] == "1 passed, 2 skipped in 0.5s"
    assert 0.3 <= taken["cpu_secs"] < 3
    assert taken["wall_secs"] >= 0.5
    assert ast.literal_eval(lines[-1]) == {"passed": 12, "skipped": 1, "failed": 3}
