"""The processes of a run, of which there is usually one; connected.py has several."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from vit_jax.cluster.members import Member, local_member
from vit_jax.core.signals import StopRequest


class Peers:
    """The processes of a run; of this class, a single one, which never waits.

    Attributes:
      members: all of them.
      me: this process.
    """

    def __init__(self, members: tuple[Member, ...], process_id: int) -> None:
        self.members, self.me = members, members[process_id]

    @classmethod
    def alone(cls) -> Peers:
        """This process alone."""
        return Peers((local_member(0),), 0)

    @property
    def several(self) -> bool:
        """Returns whether there are other processes."""
        return len(self.members) > 1

    def from_first(self, name: str, value: Any) -> Any:
        """A barrier that gives all processes the JSON value of process 0, so that they agree."""
        del name
        return value

    def barrier(self, name: str) -> None:
        """Returns when all processes are at `name`, such as "before saving step 100"."""
        self.from_first(name, None)

    @contextlib.contextmanager
    def barriers_around(self, what: str) -> Iterator[None]:
        """Context between two barriers, so that one names a process that hangs in `what`."""
        self.barrier(f"before {what}")
        yield
        self.barrier(f"after {what}")

    def request_stop(self, reason: str) -> None:
        """Requests that the other processes stop soon."""

    def agreed_stop(self, request: StopRequest) -> Any:
        """A stop request for all processes, by one to this process."""
        return request
