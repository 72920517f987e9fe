"""The program that times the tests, run on short programs and tests."""

import ast
from pathlib import Path

import pytest

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


def test_schedules_as_the_scripts_do(run_python):
    done = run_python("-c", "from benchmarks import test_time; print(*test_time.SCHEDULE)")
    script = Path(__file__).parents[2] / "scripts" / "environment.sh"
    assert f"-m pytest -n 2 {done.stdout.strip()} " in script.read_text()


@pytest.mark.slow
def test_a_row_for_a_suite(run_python):
    arguments = ("--suites=quick", "--workers=0", "--norecord", "tests/core/errors_test.py")
    done = run_python("-m", "benchmarks.test_time", *arguments, fresh=True)
    assert done.returncode == 0, done.stdout + done.stderr
    row = ast.literal_eval(done.stdout.splitlines()[-1])
    assert row["suite"] == "quick" and row["passed"] > 0 and row["failed"] == 0
    assert row["cpu_minutes"] < 10
