"""Keeping the memory of steps on a CPU."""

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


def test_it_is_left_alone_where_something_else_computes(run_python):
    program = "from vit_jax.run import heap; print(heap.keep_freed_memory())"
    done = run_python("-c", program, fresh=True, JAX_PLATFORMS="tpu,cpu")
    assert done.stdout == "False\n"
