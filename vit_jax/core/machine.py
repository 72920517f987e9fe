"""The memory, cores and processor that this process may use: the machine's, or a container's.

A container's limits are those of its control groups, of version 1 or 2, and of the groups around
them (https://docs.kernel.org/admin-guide/cgroup-v2.html); neither os.sysconf nor os.cpu_count
knows them.
"""

import contextlib
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

GROUP = Path("/proc/self/cgroup")
MOUNTED = Path("/sys/fs/cgroup")
UNLIMITED = sys.maxsize
PROCESSOR = Path("/proc/cpuinfo")
TUNABLES, HUGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"


def use_huge_pages() -> None:
    """Starts this program once more, with a variable that makes glibc ask for pages of 2 MiB.

    XLA on a CPU allocates the memory of each step anew, and the kernel clears every page of it. A
    variable that is set, even to nothing, is the user's own choice.
    """
    if sys.platform == "linux" and TUNABLES not in os.environ:
        os.environ[TUNABLES] = HUGE_PAGES
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def memory_bytes() -> int:
    """Bytes of memory; beyond a container's limit the kernel ends the process.

    UNLIMITED where the system does not say, as Windows.
    """
    is_posix = hasattr(os, "sysconf")
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if is_posix else UNLIMITED
    limits = [*_limits("memory", "memory.limit_in_bytes"), *_limits("", "memory.max")]
    return min([there, *(int(limit) for limit in limits if limit.isdigit())])


def cores() -> int:
    """The number of cores, at least 1."""
    has_affinity = hasattr(os, "sched_getaffinity")
    there = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    quotas = [
        *(limit.split() for limit in _limits("", "cpu.max")),
        *zip(_limits("cpu", "cpu.cfs_quota_us"), _limits("cpu", "cpu.cfs_period_us"), strict=True),
    ]
    allowed = [
        math.ceil(int(quota) / int(period))
        for quota, period in quotas
        if quota.isdigit()  # "max" or -1: no limit
    ]
    return max(1, min([there, *allowed]))


def multiplies_bfloat16() -> bool:
    """Whether the processor is known to have products of bfloat16 that XLA uses: AVX512_BF16."""
    with contextlib.suppress(OSError):  # not Linux
        return "avx512_bf16" in PROCESSOR.read_text().split()
    return False


def _limits(controller: str, name: str) -> Iterator[str]:
    """The contents of a group's file and its ancestors' files, as far as they are there.

    controller: of version 1; "": version 2, which has one tree for all.
    """
    with contextlib.suppress(OSError):  # not Linux, or hidden: no limit is known
        for line in GROUP.read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controller not in controllers.split(","):
                continue
            # In a container, the path may be that of the host, of which only the root is there.
            for folder in (MOUNTED / controller / group.lstrip("/") / "x").parents:
                if folder.is_relative_to(MOUNTED / controller) and (folder / name).is_file():
                    yield (folder / name).read_text().strip()
