"""The connected relays: one link for each, shared by all clients.

Rule 1: clients that ask for a relay while it is being connected wait for the same attempt.
Rule 2: a failed attempt is remembered for `failure_memory_s`. Until then all clients get the same
        answer at once, so that no client can cause a series of connection attempts.
Rule 3: at most `links_max` links; above that the least recently used one is closed. At most
        `ATTEMPTS_MAX` attempts run; further clients get a temporary error.
"""

import asyncio
from collections import OrderedDict
from typing import Final, Protocol

import msgspec

from waystation.base.clock import Clock
from waystation.base.tasks import Tasks
from waystation.queue.errors import TRY_LATER, Fault, RefusedError
from waystation.queue.model import SessionId
from waystation.queue.server.relay_link import RelayLink
from waystation.queue.wire.commands import RelayAddress

FAILURES_MAX: Final = 10_000
ATTEMPTS_MAX: Final = 256


class Connects(Protocol):
    async def connect(self, address: RelayAddress) -> RelayLink:
        """Raises `RefusedError`."""
        ...


class _Failure(msgspec.Struct, frozen=True):
    fault: Fault
    until: float  # monotonic


class Relays:
    def __init__(
        self,
        connector: Connects,
        *,
        tasks: Tasks,
        clock: Clock,
        links_max: int,
        failure_memory_s: float,
    ) -> None:
        self._connector = connector
        self._tasks = tasks
        self._clock = clock
        self._links_max = links_max
        self._failure_memory_s = failure_memory_s
        self._links: OrderedDict[RelayAddress, RelayLink] = OrderedDict()
        self._by_session: dict[SessionId, tuple[RelayAddress, RelayLink]] = {}
        self._attempts: dict[RelayAddress, asyncio.Task[RelayLink | Fault]] = {}
        self._failures: OrderedDict[RelayAddress, _Failure] = OrderedDict()

    async def link(self, address: RelayAddress) -> RelayLink:
        """Raises `RefusedError` with the fault for the client."""
        link = self._links.get(address)
        if link is not None:
            self._links.move_to_end(address)
            return link
        failure = self._failures.get(address)
        if failure is not None:
            if self._clock.mono() < failure.until:
                raise RefusedError(failure.fault)
            del self._failures[address]
        attempt = self._attempts.get(address)
        if attempt is None:
            if len(self._attempts) >= ATTEMPTS_MAX:
                raise RefusedError(TRY_LATER)
            attempt = self._tasks.spawn("relay", self._attempt(address))
            self._attempts[address] = attempt
        # Shielded: a client that disconnects must not end the attempt of the others.
        outcome = await asyncio.shield(attempt)
        if isinstance(outcome, RelayLink):
            return outcome
        raise RefusedError(outcome)

    def by_session(self, session_id: SessionId) -> tuple[RelayAddress, RelayLink] | None:
        """The link of a session that a client names; None if it ended."""
        found = self._by_session.get(session_id)
        if found is not None:
            self._links.move_to_end(found[0])
        return found

    def close(self) -> None:
        for link in list(self._links.values()):
            link.close()

    def __len__(self) -> int:
        return len(self._links)

    async def _attempt(self, address: RelayAddress) -> RelayLink | Fault:
        try:
            link = await self._connector.connect(address)
        except RefusedError as refused:
            self._failures[address] = _Failure(
                refused.fault, self._clock.mono() + self._failure_memory_s
            )
            if len(self._failures) > FAILURES_MAX:
                self._failures.popitem(last=False)
            return refused.fault
        finally:
            del self._attempts[address]
        self._keep(address, link)
        return link

    def _keep(self, address: RelayAddress, link: RelayLink) -> None:
        if link.is_over:
            return  # waiting requests get NETWORK from it
        if len(self._links) >= self._links_max:
            _, oldest = next(iter(self._links.items()))
            oldest.close()
        self._links[address] = link
        self._by_session[link.pkey.session_id] = (address, link)
        link.on_closed = lambda ended: self._drop(address, ended)

    def _drop(self, address: RelayAddress, link: RelayLink) -> None:
        if self._links.get(address) is link:
            del self._links[address]
        self._by_session.pop(link.pkey.session_id, None)
