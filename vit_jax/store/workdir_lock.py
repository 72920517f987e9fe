"""A lock for one run at a time in a work directory: two would delete each other's files.

The lock belongs to the open file, so the kernel releases it however the process ends. The file
stays, and names the process that holds the lock or held it last.

At gs:// no kernel releases what a dead process held. There the lock is an object that says who
holds it. The holder writes it anew every RENEW_SECS, each time on the condition that it is still
its own, which the storage checks (generations). Who finds it there waits: if it has not changed for
LOST_SECS, its holder is dead, and it is taken over. No clocks are compared. A holder that was taken
over all the same, as after a long pause, ends at once.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any, NoReturn

import jax
from etils import epath

from vit_jax.core import cloud
from vit_jax.core.errors import EXIT_USER_ERROR, UserError
from vit_jax.store import workdir

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # a system without it, such as Windows

LOCK_FILE = ".lock"
LEASED = "gs://"


@contextlib.contextmanager
def lock(path: epath.PathLike) -> Iterator[None]:
    """Keeps other runs out of the work directory, which is created if needed.

    Raises UserError if another run is in it. Nothing is locked where locks are unavailable: on
    Windows, on file systems without locks. On several hosts process 0 holds it for all.
    """
    with contextlib.nullcontext() if jax.process_index() else lock_for_process(epath.Path(path)):
        yield


@contextlib.contextmanager
def lock_for_process(folder: epath.Path) -> Iterator[None]:
    """A `lock` for a single process, without asking JAX for its devices."""
    if str(folder).startswith(LEASED):
        with hold_lease(str(folder), LOCK_FILE):
            yield
        return
    if fcntl is None or cloud.is_remote(folder):
        yield
        return
    workdir.make(folder)
    file = try_lock(folder, LOCK_FILE)
    if file is None:
        holder = (folder / LOCK_FILE).read_bytes()[:1000].decode(errors="replace").strip()
        advice = "wait for it, or give another --workdir."
        raise UserError(f"Another run ({holder}) is writing to {folder}: {advice}")
    try:
        with workdir.explain_unwritable_workdir(folder):
            os.truncate(file, 0)
            os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        os.close(file)


def try_lock(folder: epath.Path, name: str) -> int | None:
    """Locks a file of the folder until the returned descriptor is closed; None: another holds it.

    UserError if the file cannot be written; where locks are unavailable it is only opened.
    """
    with workdir.explain_unwritable_workdir(folder):
        file = os.open(folder / name, os.O_RDWR | os.O_CREAT, mode=0o666)
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    except OSError:  # a file system without locks
        pass
    return file


def is_locked(folder: epath.Path, name: str = LOCK_FILE) -> bool:
    """Returns whether a process holds a lock of the folder; False where locks are unavailable."""
    if fcntl is None or cloud.is_remote(folder) or not (folder / name).exists():
        return False
    with (folder / name).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks
            pass
    return False


RENEW_SECS = 20.0
LOST_SECS = 70.0  # three attempts to renew it, and some more
_POLL_SECS = 2.0


@contextlib.contextmanager
def hold_lease(folder: str, name: str) -> Iterator[None]:
    """Holds the lock `name` in a folder such as "gs://bucket/run". UserError: another holds it."""
    try:
        lease = _Lease(folder, name)
        lease.take()
    except Exception as error:
        if isinstance(error, UserError) or not (failed := cloud.failure(error)):
            raise
        raise UserError(f"{folder} cannot be locked: {failed.reason}. {failed.advice}") from error
    renewal = threading.Thread(target=lease.renew, name="lease", daemon=True)
    renewal.start()
    try:
        yield
    finally:
        lease.done.set()
        renewal.join()
        lease.release()


class _Lease:
    """The object; `generation` is that of what was written last."""

    def __init__(self, folder: str, name: str):
        import tensorstore  # as checkpoints are written; 0.2 s

        self._store = tensorstore.KvStore.open(f"{folder.rstrip('/')}/").result()
        self._folder, self._name = folder, name
        self._id = uuid.uuid4().hex
        self.generation = b""
        self.done = threading.Event()

    def take(self) -> None:
        """Writes the object. Raises UserError if another holds it."""
        stored = self._store.read(self._name).result()
        if stored.state == "value" and not _is_dead(_holder(stored.value)):
            stored = self._watch(stored)
        if not self._write(stored.stamp.generation):
            self._refuse(_holder(self._store.read(self._name).result().value))

    def _watch(self, stored: Any) -> Any:
        """Watches the object; returns its last state. Raises UserError if it changes."""
        holder, until = _holder(stored.value), time.monotonic() + LOST_SECS
        print(
            f"Notice: {_process(holder)} was writing to {self._folder}. Waiting {LOST_SECS:.0f} s "
            "to see whether it still is.",
            file=sys.stderr,
            flush=True,
        )
        while time.monotonic() < until:
            time.sleep(min(_POLL_SECS, LOST_SECS))
            now = self._store.read(self._name).result()
            if now.state == "missing":
                return now
            if now.stamp.generation != stored.stamp.generation:
                self._refuse(_holder(now.value))
        return stored

    def _refuse(self, holder: dict[str, Any]) -> NoReturn:
        raise UserError(
            f"Another run ({_process(holder)}) is writing to {self._folder}: wait for it, or give "
            "another --workdir."
        )

    def _write(self, generation: bytes) -> bool:
        """Writes the object over that generation; False if it is another by now."""
        holder = {
            "process": os.getpid(),
            "host": socket.gethostname(),
            "machine": _machine(),
            "id": self._id,
            "time": time.time(),  # for readers; nothing compares it
        }
        text = json.dumps(holder).encode()
        written = self._store.write(self._name, text, if_equal=generation).result()
        if written.generation:
            self.generation = written.generation
            return True
        # Or it was written, and the answer was lost: then the second attempt met its own.
        now = self._store.read(self._name).result()
        if now.state == "value" and _holder(now.value).get("id") == self._id:
            self.generation = now.stamp.generation
            return True
        return False

    def renew(self) -> None:
        """Writes the object every RENEW_SECS; ends the process if it is another's."""
        while not self.done.wait(RENEW_SECS):
            try:
                if self._write(self.generation):
                    continue
                now = self._store.read(self._name).result()
                if now.state == "missing" and self._write(now.stamp.generation):
                    continue  # somebody has deleted it
                holder = _holder(now.value)
            except Exception:  # no network, for now: another process would have to wait as well
                continue
            print(
                f"error: {self._folder} was taken over by another run ({_process(holder)}), since "
                f"this one could not be heard for {LOST_SECS:.0f} s. It ends without saving.",
                file=sys.stderr,
                flush=True,
            )
            os._exit(EXIT_USER_ERROR)

    def release(self) -> None:
        """Deletes the object; what cannot be deleted now counts as dead later."""
        with contextlib.suppress(Exception):
            self._store.write(self._name, None, if_equal=self.generation).result()


def _holder(text: bytes) -> dict[str, Any]:
    try:
        holder = json.loads(text)
        return holder if isinstance(holder, dict) else {}
    except ValueError:
        return {}


def _process(holder: dict[str, Any]) -> str:
    return f"process {holder.get('process', '?')} on {holder.get('host', '?')}"


def _machine() -> str:
    """A name of this machine's start and of the container, in which a number means a process."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _is_dead(holder: dict[str, Any]) -> bool:
    """Returns whether it was a process of this machine that has ended: then nobody has to wait."""
    process, machine = holder.get("process"), holder.get("machine")
    if not machine or machine != _machine() or type(process) is not int:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False
