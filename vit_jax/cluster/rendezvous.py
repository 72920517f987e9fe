"""The rendezvous of a run's processes: all connect to process 0, at the coordinator's port.

It is before jax.distributed.initialize, which aborts a process without naming the missing ones. The
port is free for it again afterwards; the connections stay open (see connected.py).

Anyone can connect to that port. So both ends prove that they know the run's secret, without sending
it, before either believes anything: until then only lines of a bounded length are read.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import re
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vit_jax.cluster.members import SAME_SECRET, Cluster, Member, OtherSecret, Secret, local_member
from vit_jax.core.errors import PeerLost, UserError

RETRY_SECS = 0.5
PORT_BUSY_SECS = 20.0  # a run that was just killed may still have the port
ANSWER_SECS = 10.0  # how much later than its time-out process 0 may report it
SEND_TIMEOUT_SECS = 10.0
GREETING_SECS = 10.0  # for the other end to prove that it belongs to the run
MAX_GREETING_BYTES = 1024
MAX_LINE_BYTES = 1 << 20
MAX_STRANGERS = 256  # connections at a time
MAX_REPORTED = 20  # addresses of strangers
NONCE = re.compile(rb"[0-9a-f]{64}")
SEAL_BYTES = 64  # hexadecimal SHA-256
STRANGER = "is not a process of a run"
OTHER_SECRET = f"has another secret than this process, or none: {SAME_SECRET}"

Message = dict[str, Any]


class Connection:
    """One end of a connection between two processes of a run, usable with `select`.

    Each end first sends a nonce, in a line. The lines after that are JSON objects behind a seal: a
    MAC, by the run's secret, of both nonces, the sending end and the line's number. So only a
    process of this run can have made them, now and for this connection. The first is {}; any thread
    may send once it has arrived.

    Attributes:
      fault: why `receive` has returned None, if the other end is to blame.
    """

    def __init__(self, end: socket.socket, secret: Secret, *, calls: bool):
        """calls: whether this end has connected to the other, which listened."""
        self._socket = end
        self._socket.settimeout(SEND_TIMEOUT_SECS)
        self._secret, self._calls = secret, calls
        self._sending = threading.Lock()
        self._rest = b""  # the beginning of a line
        self._nonce, self._key, self._nonces = secrets.token_hex(32).encode(), b"", b""
        self._sent = self._received = 0
        self.fault = ""
        self._write(self._nonce)

    def fileno(self) -> int:
        """The socket's file descriptor, for `select`."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Sends if possible; a closed other end shows only when receiving."""
        body = json.dumps(message).encode()
        with self._sending:
            self._write(self._seal(self._calls, self._sent, body) + body)
            self._sent += 1

    def receive(self) -> list[Message] | None:
        """The messages that have arrived, once something has; None: the connection has ended.

        A peer that does not prove that it belongs to the run counts as ended too. Raises what the
        secret's function raises.
        """
        try:
            chunk = self._socket.recv(1 << 16)
        except OSError:
            return None
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        max_bytes = MAX_LINE_BYTES if self._received else MAX_GREETING_BYTES
        if not chunk:
            if self._nonces and not self._received and not self._calls:
                self.fault = OTHER_SECRET  # it has understood the greeting, and does not answer
            return None
        if max(len(line) for line in (*lines, self._rest)) > max_bytes:
            self.fault = STRANGER
            return None
        if lines and not self._nonces and not self._greet(lines.pop(0)):
            return None
        return self._open(lines)

    def _greet(self, nonce: bytes) -> bool:
        """Answers the other end's nonce with a first message; False: it was something else."""
        if not NONCE.fullmatch(nonce):
            self.fault = STRANGER
            return False
        self._key = self._secret()
        self._nonces = nonce + self._nonce if self._calls else self._nonce + nonce
        self.send({})
        return True

    def _open(self, lines: Sequence[bytes]) -> list[Message] | None:
        messages = []
        for line in lines:
            seal, body = line[:SEAL_BYTES], line[SEAL_BYTES:]
            if not hmac.compare_digest(seal, self._seal(not self._calls, self._received, body)):
                self.fault = OTHER_SECRET
                return None
            messages.append(json.loads(body))
            self._received += 1
        return messages

    def _seal(self, caller: bool, number: int, body: bytes) -> bytes:
        """The MAC of a line that one end sends: the caller, or the one that listened."""
        sealed = b"%s %d %d %s" % (self._nonces, caller, number, body)
        return hmac.digest(self._key, sealed, "sha256").hex().encode()

    def _write(self, line: bytes) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(line + b"\n")

    def close(self) -> None:
        """Closes the connection; may be called twice."""
        self._socket.close()


class Meeting(NamedTuple):
    """The result of a complete rendezvous."""

    members: tuple[Member, ...]  # by process id
    # At process 0: to each other process; at the others: to process 0.
    connections: Mapping[int, Connection]


def meet(cluster: Cluster, secret: Secret, *, timeout_secs: float) -> Meeting:
    """Returns when all processes have connected.

    secret: returns the run's secret. Process 0 calls it before it listens, the others only when
    process 0 listens: so it may leave the secret where the others find it.

    Raises:
      PeerLost: some did not connect in time; it names them, and those present.
      UserError: two have the same number, not all want the same number of processes, or process 0
        has another secret.
    """
    if cluster.process_id == 0:
        return _receive(cluster, secret(), timeout_secs)
    return _call(cluster, secret, timeout_secs)


def _receive(cluster: Cluster, secret: bytes, timeout_secs: float) -> Meeting:
    """Process 0's side: collects the others and sends all of them the members."""
    reception = _Reception(cluster, secret)
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
        finally:
            reception.dismiss_guests()
    members = tuple(reception.members[i] for i in range(cluster.num_processes))
    reception.tell({"members": members})
    return Meeting(members, reception.connections)


class _Guest(NamedTuple):
    """The other end of a connection that is not known to be a process of the run."""

    address: str
    deadline: float


class _Reception:
    """The processes that have connected so far."""

    def __init__(self, cluster: Cluster, secret: bytes):
        self._num_processes, self._secret = cluster.num_processes, secret
        self.members = {0: local_member(0)}
        self.connections: dict[int, Connection] = {}
        self._guests: dict[Connection, _Guest] = {}
        self._reported: set[str] = set()  # addresses

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
            for connection in (*self._guests, *self.connections.values()):
                selector.register(connection, selectors.EVENT_READ)
            arrived = [key.fileobj for key, _ in selector.select(RETRY_SECS)]
        for source in arrived:
            if isinstance(source, Connection):
                self._read(source)
        if listener in arrived:
            self._accept(listener)
        self._dismiss_idle()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it has gone already
            end, (host, *_) = listener.accept()
            guest = _Guest(host.removeprefix("::ffff:"), time.monotonic() + GREETING_SECS)
            self._guests[Connection(end, lambda: self._secret, calls=False)] = guest

    def _dismiss_idle(self) -> None:
        """Closes connections of guests that say nothing, and the oldest of too many."""
        too_many = len(self._guests) - self._num_processes - MAX_STRANGERS
        for place, (connection, guest) in enumerate(list(self._guests.items())):
            if place < too_many or time.monotonic() > guest.deadline:
                self._forget(connection)

    def dismiss_guests(self) -> None:
        for connection in list(self._guests):
            self._forget(connection)

    def _read(self, connection: Connection) -> None:
        messages = connection.receive()
        if messages is None:
            self._report(connection)
            self._forget(connection)
        for message in messages or ():
            if "member" in message:
                self._introduce(Member(*message["member"]), message["num_processes"], connection)
                del self._guests[connection]

    def _report(self, connection: Connection) -> None:
        """Names an address from which a stranger has connected, once, and not without end."""
        guest = self._guests.get(connection)
        if guest is None or not connection.fault or len(self._reported) == MAX_REPORTED:
            return
        if guest.address not in self._reported:
            self._reported.add(guest.address)
            text = f"ignored  a connection from {guest.address}, which {connection.fault}"
            print(text, file=sys.stderr, flush=True)

    def _forget(self, connection: Connection) -> None:
        """Drops a connection; the process may connect again after a restart."""
        connection.close()
        self._guests.pop(connection, None)
        for i in [i for i, known in self.connections.items() if known is connection]:
            del self.connections[i], self.members[i]

    def _introduce(self, member: Member, num_processes: int, connection: Connection) -> None:
        i = member.process_id
        if known := self.connections.get(i):  # it sends nothing at this stage, unless it has gone
            with selectors.DefaultSelector() as selector:
                selector.register(known, selectors.EVENT_READ)
                if selector.select(0) and known.receive() is None:
                    self._forget(known)
        problem = None
        if num_processes != self._num_processes:
            problem = (
                f"{member} was started with --num_processes={num_processes}, {self.members[0]} "
                f"with --num_processes={self._num_processes}: give all the same."
            )
        elif i in self.members:
            problem = (
                f"--process_id={i} is that of {self.members[i]} and of {member}. Give each its "
                f"own, from 0 to {self._num_processes - 1}."
            )
        if problem:
            connection.send({"refused": problem, "user": True})
            raise UserError(problem)
        self.members[i], self.connections[i] = member, connection


def _listen(port: int) -> socket.socket:
    """A socket that listens on all addresses here. Raises UserError if the port is in use."""
    deadline = time.monotonic() + PORT_BUSY_SECS
    dual: dict[str, Any] = {"family": socket.AF_INET6, "dualstack_ipv6": True}
    while True:
        try:
            return socket.create_server(("", port), **dual if socket.has_dualstack_ipv6() else {})
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise UserError(
                    f"Process 0 cannot listen on port {port}: {error.strerror}. Give each process "
                    "its own --process_id, and all a --coordinator with a port that is free."
                ) from error
        time.sleep(RETRY_SECS)


def _call(cluster: Cluster, secret: Secret, timeout_secs: float) -> Meeting:
    """The other processes' side: connects to process 0 until it answers."""
    me = local_member(cluster.process_id)
    deadline = time.monotonic() + timeout_secs
    failure, strange_since = "", None
    while time.monotonic() < deadline:
        try:
            return _call_once(cluster, secret, me, timeout_secs)
        except OtherSecret as error:
            # Process 0 does not wait longer for its port either, if a stranger has it.
            strange_since = strange_since or time.monotonic()
            if time.monotonic() > strange_since + PORT_BUSY_SECS:
                raise
            failure = f" {error}"
        except OSError as error:
            strange_since = None
            failure = f" The last call found: {error.strerror or error}."
            if isinstance(error, socket.gaierror):
                failure = f" The name {cluster.host} does not resolve: {error.strerror}."
        time.sleep(RETRY_SECS)
    raise PeerLost(
        f"process 0 at {cluster.coordinator} did not come within {timeout_secs:g} s (here: {me})."
        f"{failure} Start it; see that this address is its, and can be reached from here "
        "(--coordinator). --start_timeout_secs waits longer."
    )


def _call_once(cluster: Cluster, secret: Secret, me: Member, timeout_secs: float) -> Meeting:
    """One call. Raises OSError if process 0 does not answer, or does not do so to the end."""
    dialled = socket.create_connection((cluster.host, cluster.port), timeout=RETRY_SECS)
    connection = Connection(dialled, secret, calls=True)
    with contextlib.ExitStack() as stack:
        stack.callback(connection.close)
        if _answer(connection, GREETING_SECS) is None:
            if connection.fault == OTHER_SECRET:
                raise OtherSecret(f"Who listens at {cluster.coordinator} {connection.fault}.")
            raise ConnectionError("who answers is not process 0 of a run")  # or it restarts
        connection.send({"member": me, "num_processes": cluster.num_processes})
        # Process 0 may have started just now: it reports who is missing.
        answer = _answer(connection, timeout_secs + ANSWER_SECS) or {}
        if "refused" in answer:
            raise (UserError if answer["user"] else PeerLost)(answer["refused"])
        if "members" not in answer:
            raise ConnectionError("process 0 has ended")
        stack.pop_all()
        return Meeting(tuple(Member(*m) for m in answer["members"]), {0: connection})


def _answer(connection: Connection, timeout_secs: float) -> Message | None:
    """The first message; None if none arrives."""
    deadline = time.monotonic() + timeout_secs
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            if selector.select(RETRY_SECS):
                messages = connection.receive()
                if messages is None:
                    return None
                if messages:
                    return messages[0]
    return None
