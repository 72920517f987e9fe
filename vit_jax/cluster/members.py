"""The processes of a run: from the flags, else from the cluster; else this one alone."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import NamedTuple

# jax.distributed.initialize detects this by itself; there is no public way to ask first.
from jax._src.clusters import ClusterEnv

from vit_jax.core.errors import UserError

SAME_SECRET = (
    "--workdir has to be one folder that all hosts see, and VIT_JAX_SECRET, if set, the same on all"
)

Secret = Callable[[], bytes]


class OtherSecret(UserError):
    """The process that listens as process 0 has another secret, or there is none to compare."""


class Member(NamedTuple):
    """A process of the run."""

    process_id: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.process_id} ({self.host}, pid {self.pid})"


def local_member(process_id: int) -> Member:
    """This process as a Member."""
    return Member(process_id, socket.gethostname(), os.getpid())


class Cluster(NamedTuple):
    """A process's place among the processes of a run."""

    coordinator: str  # HOST:PORT of process 0, on which it listens and which the others can reach
    num_processes: int  # how many there are, at least 2
    process_id: int  # this one's number, from 0
    # The devices of this machine that this process uses; None: all.
    local_devices: Sequence[int] | None = None

    @property
    def host(self) -> str:
        """The coordinator's host."""
        return self.coordinator.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The coordinator's port."""
        return int(self.coordinator.rpartition(":")[2])


def find_cluster(
    coordinator: str | None,
    num_processes: int | None,
    process_id: int | None,
    *,
    timeout_secs: float,
) -> Cluster | None:
    """The cluster given by flags, else the detected one; None: this process is alone.

    It detects Cloud TPU, GKE, SLURM, Open MPI, and Kubernetes jobs if the package kubernetes is
    installed; num_processes=1 skips detection. timeout_secs: how long to wait until the
    coordinator's name resolves. Raises UserError if the flags do not fit together or the cluster
    gives too little information.
    """
    given = {
        "--coordinator": coordinator,
        "--num_processes": num_processes,
        "--process_id": process_id,
    }
    missing = [flag for flag, value in given.items() if value is None]
    if num_processes == 1 and len(missing) == 2:
        return None
    if not missing:
        return _checked(Cluster(str(coordinator), int(num_processes or 0), int(process_id or 0)))
    if len(missing) < len(given):
        there = " and ".join(flag for flag in given if flag not in missing)
        raise UserError(f"{there} without {' and '.join(missing)}: give all three, or none.")
    try:
        address, number, index, local_devices = ClusterEnv.auto_detect_unset_distributed_params(
            None, None, None, None, None, int(timeout_secs)
        )
    except Exception as error:  # anything can be raised in a half-configured cluster
        raise UserError(
            f"The cluster does not say who is in the run ({error}). Give --coordinator, "
            "--num_processes and --process_id, or --num_processes=1."
        ) from error
    if address is None or number is None or index is None:
        return None
    return _checked(Cluster(address, number, index, local_devices))


def _checked(cluster: Cluster) -> Cluster | None:
    address, number, i = cluster.coordinator, cluster.num_processes, cluster.process_id
    port = address.rpartition(":")[2]
    is_address = ":" in address and port.isdecimal() and 0 < int(port) < 2**16
    if not is_address or not 0 <= i < number:
        flags = f"--coordinator={address} --num_processes={number} --process_id={i}"
        rule = "need HOST:PORT, as 10.0.0.1:8476, at least 1 process, and numbers from 0."
        raise UserError(rule, field=flags)
    return cluster if number > 1 else None
