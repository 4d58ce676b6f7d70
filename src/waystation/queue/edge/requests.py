"""Requests of the edge itself to servers, without a client's stream: references, creations.

Rule 1: the callback is called once: with the answer, or with None after the timeout.
Rule 2: a request to a *slot* goes to the slot's server. It is repeated when the slot moved or froze
        or the link broke, so it may arrive twice. A request to a *server* is not repeated.
Rule 3: at most `REQUESTS_MAX` requests are pending.

A core without I/O.
"""

from collections.abc import Callable
from typing import Final, Protocol

from waystation.queue.cluster.slot_map import NOBODY, NodeId, SlotMap
from waystation.queue.edge.effects import Effects
from waystation.queue.model import Slot
from waystation.queue.wire.link import REQUESTS_FROM, Body
from waystation.queue.wire.link_messages import Busy, Frozen, WrongSlot

REQUEST_S: Final = 8.0
REQUESTS_MAX: Final = 100_000

Done = Callable[[Body | None], None]


class ServerMap(Protocol):
    """The slot map, and which servers are linked."""

    @property
    def slot_map(self) -> SlotMap: ...

    def is_up(self, node_id: NodeId) -> bool: ...


class _Request:
    __slots__ = ("body", "done", "node_id", "since", "slot")

    def __init__(self, slot: Slot | None, body: Body, done: Done, since: float) -> None:
        self.slot = slot
        self.body = body
        self.done = done
        self.since = since
        self.node_id = NOBODY  # NOBODY: not sent


def ignored(_: Body | None) -> None:
    """Callback for requests whose answer changes nothing."""


class Requests:
    def __init__(self, ways: ServerMap, out: Effects) -> None:
        self._servers = ways
        self._out = out
        self._requests: dict[int, _Request] = {}  # oldest first
        self._next = REQUESTS_FROM
        self.mono = 0.0  # set by the edge with each input

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def waits(self) -> bool:
        """Whether a request waits for a newer map."""
        return any(one.node_id == NOBODY for one in self._requests.values())

    def ask_slot(self, slot: Slot, body: Body, done: Done = ignored) -> None:
        self._begin(_Request(slot, body, done, self.mono))

    def ask_server(self, node_id: NodeId, body: Body, done: Done = ignored) -> None:
        request = _Request(None, body, done, self.mono)
        request.node_id = node_id
        self._begin(request)

    def _begin(self, request: _Request) -> None:
        if len(self._requests) >= REQUESTS_MAX:
            request.done(None)
            return
        number = self._next
        self._next = number + 1 if number < 0xFFFFFFFF else REQUESTS_FROM
        self._requests[number] = request
        self._send(number, request)

    def _send(self, number: int, request: _Request) -> None:
        if request.slot is not None:
            request.node_id = self._servers.slot_map.slots[request.slot].server
        if self._servers.is_up(request.node_id):
            self._out.send(request.node_id, number, request.body)
        elif request.slot is None:
            del self._requests[number]
            request.done(None)
        else:
            request.node_id = NOBODY

    def answered(self, node_id: NodeId, number: int, body: Body) -> None:
        request = self._requests.get(number)
        if request is None or request.node_id != node_id:
            return
        if request.slot is not None and isinstance(body, Frozen | WrongSlot | Busy):
            request.node_id = NOBODY
            self._out.refresh()
            return
        del self._requests[number]
        request.done(body)

    def repeat_waiting(self) -> None:
        """Called when the map changed, a link came up, or time passed."""
        for number, request in list(self._requests.items()):
            if request.node_id == NOBODY:
                self._send(number, request)

    def link_down(self, node_id: NodeId) -> None:
        for number, request in list(self._requests.items()):
            if request.node_id != node_id:
                continue
            if request.slot is not None:
                request.node_id = NOBODY
            elif self._requests.pop(number, None) is not None:
                request.done(None)

    def tick(self, mono: float) -> None:
        while self._requests:
            number, oldest = next(iter(self._requests.items()))
            if mono - oldest.since < REQUEST_S:
                break
            del self._requests[number]
            oldest.done(None)
        self.repeat_waiting()
