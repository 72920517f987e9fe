"""The benchmark of the loop, in a run shorter than its measurements."""

import json

MEASURED = """
import json
from unittest import mock
from absl import flags
from benchmarks import loop_overhead, rows
flags.FLAGS(["loop_overhead", "--steps=60", "--log_every_steps=20"])
with mock.patch.object(rows, "append") as append:
    loop_overhead.main([])
print(json.dumps(append.call_args.args[1]))
"""


def test_the_loop_is_run_with_a_feed_and_a_step_that_do_nothing(run_python):
    done = run_python("-c", MEASURED)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout.splitlines()[-1])
    assert (row["steps"], row["log_every_steps"]) == (60, 20)
    assert row["median_microseconds"] <= row["largest_microseconds"]
