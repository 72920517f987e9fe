"""What a container's limits leave of the machine's memory and cores."""

import subprocess
import sys

import pytest

from tests.conftest import python_environment
from vit_jax.core import machine

GIB = 2**30
PROGRAM = """
import os, sys
from vit_jax.core import machine
machine.use_huge_pages()
print(os.environ["GLIBC_TUNABLES"], *sys.argv)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's variable")
@pytest.mark.parametrize(("given", "then"), [(None, machine.HUGE_PAGES), ("", ""), ("x", "x")])
def test_a_program_starts_again_with_huge_pages(given, then):
    environment = python_environment()
    del environment[machine.TUNABLES]
    environment |= {} if given is None else {machine.TUNABLES: given}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "a b", "--c"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"{then} -c a b --c\n"


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Makes this a process of `group` on a machine of 64 GiB and 8 cores, with files of limits."""

    def make(group, files):
        (tmp_path / "cgroup").write_text(group)
        for name, text in files.items():
            file = tmp_path / "mounted" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")

    sizes = {"SC_PHYS_PAGES": 64 * GIB // 4096, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(machine.os, "sysconf", sizes.__getitem__)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(machine, "GROUP", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "MOUNTED", tmp_path / "mounted")
    return make


@pytest.mark.parametrize(
    ("group", "files", "memory", "cores"),
    [
        ("0::/\n", {}, 64, 8),
        ("0::/\n", {"memory.max": "max", "cpu.max": "max 100000"}, 64, 8),
        ("0::/\n", {"memory.max": str(4 * GIB), "cpu.max": "150000 100000"}, 4, 2),
        (  # the group around a process's own
            "0::/pod/box\n",
            {"pod/memory.max": str(2 * GIB), "pod/box/memory.max": "max", "pod/cpu.max": "1 2"},
            2,
            1,
        ),
        (  # a path of the host's, which the container does not see
            "5:cpu,cpuacct:/docker/4f1e\n4:memory:/docker/4f1e\n0::/\n",
            {
                "memory/memory.limit_in_bytes": str(3 * GIB),
                "cpu/cpu.cfs_quota_us": "400000",
                "cpu/cpu.cfs_period_us": "100000",
            },
            3,
            4,
        ),
        (  # version 1 without limits
            "2:cpu:/\n1:memory:/\n",
            {
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "cpu/cpu.cfs_quota_us": "-1",
                "cpu/cpu.cfs_period_us": "100000",
            },
            64,
            8,
        ),
    ],
)
def test_limits_of_containers(groups, group, files, memory, cores):
    groups(group, files)
    assert (machine.memory_bytes(), machine.cores()) == (memory * GIB, cores)


def test_limits_that_cannot_be_read(groups, tmp_path):
    groups("0::/\n", {"memory.max": str(GIB)})
    (tmp_path / "mounted/memory.max").write_bytes(b"")
    (tmp_path / "mounted/cpu.max").mkdir()
    assert (machine.memory_bytes(), machine.cores()) == (64 * GIB, 8)


@pytest.mark.parametrize(("flags", "known"), [("avx512f avx512_bf16", True), ("avx512f", False)])
def test_products_of_bfloat16(tmp_path, monkeypatch, flags, known):
    monkeypatch.setattr(machine, "PROCESSOR", tmp_path / "cpuinfo")
    assert not machine.multiplies_bfloat16()  # as where there is no such file
    machine.PROCESSOR.write_text(f"model name\t: a processor\nflags\t\t: fpu {flags}\n")
    assert machine.multiplies_bfloat16() == known
