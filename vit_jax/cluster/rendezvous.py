"""The processes of a run and their rendezvous: all connect to process 0, at the coordinator's port.

They come from the flags, else from the cluster; else this process is alone. The rendezvous is
before jax.distributed.initialize, which aborts a process without naming the missing ones. The port
is free for it again afterwards; the connections stay open (see peers.py). Messages are JSON
objects, one per line.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# jax.distributed.initialize detects this by itself; there is no public way to ask first.
from jax._src.clusters import ClusterEnv

from vit_jax.core.errors import PeerLost, UserError

RETRY_SECS = 0.5
PORT_BUSY_SECS = 20.0  # a run that was just killed may still have the port
ANSWER_SECS = 10.0  # how much later than its time-out process 0 may report it
SEND_TIMEOUT_SECS = 10.0
MAX_LINE_BYTES = 1 << 20

Message = dict[str, Any]


class Cluster(NamedTuple):
    """A process's place among the processes of a run.

    Attributes:
      coordinator: HOST:PORT of process 0, on which it listens and which the others can reach.
      num_processes: how many there are, at least 2.
      process_id: this one's number, from 0.
      local_devices: the devices of this machine that this process uses; None: all.
    """

    coordinator: str
    num_processes: int
    process_id: int
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
        raise UserError(
            f"{there} without {' and '.join(missing)}: give all three, or none where the cluster "
            "says them (Cloud TPU, GKE, SLURM)."
        )
    try:
        address, number, index, local_devices = ClusterEnv.auto_detect_unset_distributed_params(
            None, None, None, None, None, int(timeout_secs)
        )
    except Exception as error:  # anything can be raised in a half-configured cluster
        raise UserError(
            f"This looks like a cluster, but it does not say who belongs to the run: {error}. Give "
            "--coordinator, --num_processes and --process_id, or --num_processes=1 for this "
            "process alone."
        ) from error
    if address is None or number is None or index is None:
        return None
    return _checked(Cluster(address, number, index, local_devices))


def _checked(cluster: Cluster) -> Cluster | None:
    _, colon, port = cluster.coordinator.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 2**16:
        raise UserError(
            f"--coordinator={cluster.coordinator}: give HOST:PORT of process 0, with a free port, "
            "such as 10.0.0.1:8476."
        )
    if cluster.num_processes < 1:
        raise UserError(f"--num_processes={cluster.num_processes}: at least 1.")
    if not 0 <= cluster.process_id < cluster.num_processes:
        raise UserError(
            f"--process_id={cluster.process_id} of --num_processes={cluster.num_processes}: the "
            f"processes count from 0 to {cluster.num_processes - 1}."
        )
    return cluster if cluster.num_processes > 1 else None


class Connection:
    """One end of a connection, usable with `select`; any thread may send."""

    def __init__(self, end: socket.socket):
        self._socket = end
        self._socket.settimeout(SEND_TIMEOUT_SECS)
        self._sending = threading.Lock()
        self._rest = b""  # the beginning of a message

    def fileno(self) -> int:
        """The socket's file descriptor, for `select`."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Sends if possible; a closed other end shows only when receiving."""
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[Message] | None:
        """The messages that have arrived, once something has; None: the connection has ended.

        A peer that does not follow this protocol counts as ended too.
        """
        try:
            chunk = self._socket.recv(1 << 16)
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            messages = [json.loads(line) for line in lines]
        except (OSError, ValueError):
            return None
        understood = all(isinstance(m, dict) for m in messages)
        return messages if chunk and understood and len(self._rest) < MAX_LINE_BYTES else None

    def close(self) -> None:
        """Closes the connection; may be called twice."""
        self._socket.close()


class Member(NamedTuple):
    """A process of the run."""

    process_id: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.process_id} ({self.host}, pid {self.pid})"


class Meeting(NamedTuple):
    """The result of a complete rendezvous.

    Attributes:
      members: by process id.
      connections: at process 0: to each other process; at the others: to process 0.
    """

    members: tuple[Member, ...]
    connections: Mapping[int, Connection]


def local_member(process_id: int) -> Member:
    """This process as a Member."""
    return Member(process_id, socket.gethostname(), os.getpid())


def meet(cluster: Cluster, *, timeout_secs: float) -> Meeting:
    """Returns when all processes have connected.

    Raises:
      PeerLost: some did not connect in time; it names them, and those present.
      UserError: two have the same number, or not all want the same number of processes.
    """
    if cluster.process_id == 0:
        return _receive(cluster, timeout_secs)
    return _call(cluster, timeout_secs)


def _receive(cluster: Cluster, timeout_secs: float) -> Meeting:
    """Process 0's side: collects the others and sends all of them the members."""
    reception = _Reception(cluster)
    deadline = time.monotonic() + timeout_secs
    with _listen(cluster.port) as listener:
        try:
            while reception.missing:
                if time.monotonic() > deadline:
                    missing = ", ".join(map(str, reception.missing))
                    raise PeerLost(
                        f"{'processes' if ',' in missing else 'process'} {missing} of "
                        f"{cluster.num_processes} did not come within {timeout_secs:g} s (here: "
                        f"{', '.join(map(str, reception.members.values()))}). See what it says on "
                        "its own host, and start all again; --start_timeout_secs waits longer."
                    )
                reception.wait(listener)
        except (PeerLost, UserError) as error:
            reception.tell({"refused": str(error), "user": isinstance(error, UserError)})
            raise
    members = tuple(reception.members[i] for i in range(cluster.num_processes))
    reception.tell({"members": members})
    return Meeting(members, reception.connections)


class _Reception:
    """The processes that have connected so far."""

    def __init__(self, cluster: Cluster):
        self._num_processes = cluster.num_processes
        self.members = {0: local_member(0)}
        self.connections: dict[int, Connection] = {}
        self._guests: list[Connection] = []  # connected, not yet introduced

    @property
    def missing(self) -> list[int]:
        return [i for i in range(self._num_processes) if i not in self.members]

    def tell(self, message: Message) -> None:
        for connection in self.connections.values():
            connection.send(message)

    def wait(self, listener: socket.socket) -> None:
        """Handles connections, messages and departures for a short time."""
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            for source in (*self._guests, *self.connections.values()):
                selector.register(source, selectors.EVENT_READ)
            for key, _ in selector.select(RETRY_SECS):
                if key.fileobj is listener:
                    self._guests.append(Connection(listener.accept()[0]))
                elif isinstance(key.fileobj, Connection):
                    self._read(key.fileobj)

    def _read(self, connection: Connection) -> None:
        messages = connection.receive()
        if messages is None:
            self._forget(connection)
        for message in messages or ():
            try:
                member = Member(*message["member"])
                num_processes = message["num_processes"]
            except (KeyError, TypeError):  # some other program
                self._forget(connection)
                return
            self._introduce(member, num_processes, connection)
            self._guests.remove(connection)

    def _forget(self, connection: Connection) -> None:
        """Drops a connection; the process may connect again after a restart."""
        connection.close()
        if connection in self._guests:
            self._guests.remove(connection)
        for i in [i for i, known in self.connections.items() if known is connection]:
            del self.connections[i], self.members[i]

    def _introduce(self, member: Member, num_processes: int, connection: Connection) -> None:
        i = member.process_id
        if i in self.connections and _has_gone(self.connections[i]):
            self._forget(self.connections[i])
        first = self.members.get(i)
        problem = None
        if num_processes != self._num_processes:
            problem = (
                f"{member} was started with --num_processes={num_processes}, {self.members[0]} "
                f"with --num_processes={self._num_processes}: give all the same."
            )
        elif first is not None:
            problem = (
                f"Two processes came with --process_id={i}: one on {first.host} (pid {first.pid}), "
                f"one on {member.host} (pid {member.pid}). Give each its own, from 0 to "
                f"{self._num_processes - 1}."
            )
        if problem:
            connection.send({"refused": problem, "user": True})
            raise UserError(problem)
        self.members[i], self.connections[i] = member, connection


def _has_gone(connection: Connection) -> bool:
    """Returns whether the other end, which sends nothing at this stage, is closed."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        return bool(selector.select(0)) and connection.receive() is None


def _listen(port: int) -> socket.socket:
    """A socket that listens on all addresses here. Raises UserError if the port is in use."""
    deadline = time.monotonic() + PORT_BUSY_SECS
    dual: dict[str, Any] = {"family": socket.AF_INET6, "dualstack_ipv6": True}
    while True:
        try:
            return socket.create_server(("", port), **dual if socket.has_dualstack_ipv6() else {})
        except OSError as error:
            busy = error.errno == errno.EADDRINUSE
            if not busy or time.monotonic() > deadline:
                twice = (
                    "If another process 0 of this run is there already, give each its own "
                    "--process_id; else give"
                )
                raise UserError(
                    f"Process 0 cannot listen on port {port}: {error.strerror}. "
                    f"{twice if busy else 'Give'} all processes a --coordinator with another port."
                ) from error
        time.sleep(RETRY_SECS)


def _call(cluster: Cluster, timeout_secs: float) -> Meeting:
    """The other processes' side: connects to process 0 until it answers."""
    me = local_member(cluster.process_id)
    deadline = time.monotonic() + timeout_secs
    failure = ""
    while time.monotonic() < deadline:
        try:
            dialled = socket.create_connection((cluster.host, cluster.port), timeout=RETRY_SECS)
        except OSError as error:
            failure = f" The last call found: {error.strerror or error}."
            if isinstance(error, socket.gaierror):
                failure = f" The name {cluster.host} does not resolve: {error.strerror}."
            time.sleep(RETRY_SECS)
            continue
        connection = Connection(dialled)
        connection.send({"member": me, "num_processes": cluster.num_processes})
        # Process 0 may have started just now: it reports who is missing.
        answer = _answer(connection, timeout_secs + ANSWER_SECS)
        if "members" in answer:
            return Meeting(tuple(Member(*m) for m in answer["members"]), {0: connection})
        connection.close()
        if "refused" in answer:
            raise (UserError if answer["user"] else PeerLost)(answer["refused"])
        time.sleep(RETRY_SECS)  # it was another program, or process 0 is being started anew
    raise PeerLost(
        f"process 0 at {cluster.coordinator} did not come within {timeout_secs:g} s (here: {me})."
        f"{failure} Start it; see that this address is its, and can be reached from here "
        "(--coordinator). --start_timeout_secs waits longer."
    )


def _answer(connection: Connection, timeout_secs: float) -> Message:
    """The first message; {} if none arrives."""
    deadline = time.monotonic() + timeout_secs
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            if selector.select(RETRY_SECS):
                messages = connection.receive()
                if messages is None:
                    return {}
                if messages:
                    return messages[0]
    return {}
