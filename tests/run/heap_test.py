"""Keeping the memory of steps on a CPU."""

import itertools
import platform

import pytest

# A step whose result takes 64 MiB: 16,384 pages, or 32 huge ones. The heap grows for some steps.
FAULTS = """
import resource, statistics
from vit_jax.run import heap
kept = heap.keep_freed_memory()
import jax, jax.numpy as jnp
double = jax.jit(lambda x: x + x)
x = jnp.zeros(2**24)
faults = []
for _ in range(60):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    jax.block_until_ready(double(x))
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(kept, round(statistics.median(faults[-11:])))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's settings")
def test_memory_is_kept_from_step_to_step(run_python):
    kept, faults = run_python("-c", FAULTS, fresh=True).stdout.split()
    assert kept == "True"
    assert int(faults) < 32
    chosen, more = run_python(
        "-c", FAULTS, fresh=True, MALLOC_TRIM_THRESHOLD_="131072"
    ).stdout.split()
    assert chosen == "False"
    assert int(more) >= 32


# MiB returned of 256 that were freed and that something small lies above; it waits until they are,
# or for so many seconds.
RESIDENT = """
import pathlib, sys, time
import numpy as np
from vit_jax.run import heap
heap.SHARE = int(sys.argv[1])
heap.keep_freed_memory()
large, small = np.ones(2**25), np.ones(1000)
resident = lambda: int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20
before = resident()
del large
until = time.time() + float(sys.argv[2])
while time.time() < until and resident() > before - 200:
    time.sleep(0.1)
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's settings")
def test_memory_is_returned_where_the_process_has_much_of_it(run_python):
    returned = lambda share, secs: int(run_python("-c", RESIDENT, share, secs, fresh=True).stdout)
    assert returned("1", "3") < 10
    assert returned("100000", "60") > 200


# MiB by which the process grows in 20 steps of 128 MiB, each of which leaves 1 MiB behind.
STEPS = """
import ctypes, pathlib, time
from vit_jax.run import heap
heap.keep_freed_memory()
import jax, jax.numpy as jnp
import numpy as np

class Mallinfo2(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    _fields_ = [(name, ctypes.c_size_t) for name in names]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Mallinfo2
allocated = lambda: libc.mallinfo2().uordblks >> 20
resident = lambda: int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

x, w = jnp.ones((8192, 16)), jnp.ones((16, 4096))
step = jax.jit(lambda x: jnp.sin(x @ w) @ w.T).lower(x).compile()
size = step.memory_analysis().temp_size_in_bytes >> 20
heap.make_room(step)
before, left = resident(), []
for _ in range(20):
    used = allocated()
    jax.block_until_ready(step(x))
    while allocated() > used + size / 2:  # freed by a thread of XLA's
        time.sleep(0.001)
    left.append(np.ones(2**17))
print(size, resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's settings")
def test_what_a_step_leaves_behind_does_not_take_the_place_of_the_next(run_python):
    # Where the machine is busy, something may come between: of tries on a very busy one 7 of 11
    # passed, and 1 of 11 without make_room. So three of nine pass in 99 %, without it in 4 %.
    tries = (map(int, run_python("-c", STEPS, fresh=True).stdout.split()) for _ in range(9))
    passed = (growth for step, growth in tries if growth < 1.5 * step)
    assert len(list(itertools.islice(passed, 3))) == 3


def test_it_is_left_alone_where_something_else_computes(run_python):
    program = "from vit_jax.run import heap; print(heap.keep_freed_memory())"
    done = run_python("-c", program, fresh=True, JAX_PLATFORMS="tpu,cpu")
    assert done.stdout == "False\n"
