"""A network with bad luck between nodes.

Rule 1: what travels takes its time, and requests may overtake each other.
Rule 2: a request may be lost, or its answer: the asker hears `UNREACHABLE` in both cases, and
        only the network knows the difference. It tells its witness.
Rule 3: a pair of nodes may be parted for a while.
Rule 4: when the luck is calm nothing is lost, and everything arrives soon.
Rule 5: an endpoint and a node may be near: then a push is a function call, as within one worker.

`wires.py` has the connections of user agents.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol

import msgspec

from waystation.push.model import MessageId, Notification, Uaid, Update
from waystation.push.wire.relay import Answer, NearNode, Node

ANSWER_TIMEOUT_S = 3.0  # the endpoint's request_timeout_s

# --- luck ----------------------------------------------------------------------------------------


class Luck(msgspec.Struct):
    """How often what goes wrong; all of it drawn from one source."""

    rng: random.Random
    slow_share: float = 0.1  # of what travels takes up to `slow_s`
    slow_s: float = 1.0
    request_lost: float = 0.0
    answer_lost: float = 0.0
    calm: bool = False

    def delay_s(self) -> float:
        draw = self.rng.random
        if self.calm or draw() >= self.slow_share:
            return 0.0005 + 0.02 * draw()
        return self.slow_s * draw()

    def hits(self, share: float) -> bool:
        return not self.calm and share > 0 and self.rng.random() < share


class Witness(Protocol):
    """Who must know what the network did, because the checkers will ask."""

    def misheard(self, uaid: Uaid, message_id: MessageId | None) -> None:
        """A node may have acted, but whoever asked it took it for unreachable."""
        ...


# --- between nodes -------------------------------------------------------------------------------


class Place(Protocol):
    """Where a connection node runs: its tasks end when it is killed."""

    @property
    def node(self) -> Node | None:
        """None while it is down."""
        ...

    def run(self, coro: Coroutine[Any, Any, None]) -> object: ...


class Network:
    """Which nodes there are, and which pairs of them cannot speak at present."""

    def __init__(self, luck: Luck, places: Mapping[str, Place], witness: Witness) -> None:
        self.luck = luck
        self.places = places
        self.witness = witness
        self._parted: set[tuple[str, str]] = set()
        self.near: set[tuple[str, str]] = set()  # an endpoint's name, and a node's id

    def part(self, source: str, node_id: str) -> None:
        self._parted.add((source, node_id))

    def join(self, source: str, node_id: str) -> None:
        self._parted.discard((source, node_id))

    def join_all(self) -> None:
        self._parted.clear()

    def parted(self, source: str, node_id: str) -> bool:
        return (source, node_id) in self._parted


class SimRelay:
    """The relay as one node has it. Never raises for a node that is gone."""

    def __init__(self, network: Network, source: str) -> None:
        self._network = network
        self._source = source
        self._loop = asyncio.get_running_loop()

    def offer(
        self, node_id: str, uaid: Uaid, notification: Notification | Update
    ) -> Answer | Awaitable[Answer]:
        if (self._source, node_id) in self._network.near:
            node = self._network.places[node_id].node
            if isinstance(node, NearNode):
                return node.offer(uaid, notification)
        return self.push(node_id, uaid, notification)

    async def push(self, node_id: str, uaid: Uaid, notification: Notification | Update) -> Answer:
        message_id = notification.message_id if isinstance(notification, Notification) else None
        return await self._ask(
            node_id, lambda node: node.push(uaid, notification), uaid, message_id
        )

    async def check_stored(self, node_id: str, uaid: Uaid) -> Answer:
        return await self._ask(node_id, lambda node: node.check_stored(uaid), uaid, None)

    async def displace(self, node_id: str, uaid: Uaid, connected_at_ms: int) -> Answer:
        # Nobody depends on this one arriving.
        return await self._ask(
            node_id, lambda node: node.displace(uaid, connected_at_ms), None, None
        )

    async def _ask(
        self,
        node_id: str,
        call: Callable[[Node], Coroutine[Any, Any, Answer]],
        uaid: Uaid | None,
        message_id: MessageId | None,
    ) -> Answer:
        network, luck, loop = self._network, self._network.luck, self._loop
        answered: asyncio.Future[Answer] = loop.create_future()
        parted = network.parted(self._source, node_id)
        request_lost = luck.hits(luck.request_lost) or parted
        answer_lost = luck.hits(luck.answer_lost)

        def hear(answer: Answer) -> None:
            if not answered.done():
                answered.set_result(answer)

        refused = False

        async def carry_out(node: Node) -> None:
            try:
                answer = await call(node)
            except asyncio.CancelledError:  # killed: its kernel resets the connection
                loop.call_later(luck.delay_s(), hear, Answer.UNREACHABLE)
                raise
            if not answer_lost:
                loop.call_later(luck.delay_s(), hear, answer)

        def arrive() -> None:
            nonlocal refused
            place = network.places.get(node_id)
            if place is None or place.node is None:
                refused = True
                loop.call_later(luck.delay_s(), hear, Answer.UNREACHABLE)  # connection refused
            else:
                place.run(carry_out(place.node))

        if not request_lost:
            loop.call_later(luck.delay_s(), arrive)
        # A parted network refuses at once as often as it says nothing.
        patience_s = 0.01 if parted and luck.rng.random() < 0.5 else ANSWER_TIMEOUT_S
        timer = loop.call_later(patience_s, hear, Answer.UNREACHABLE)
        try:
            answer = await answered
        except asyncio.CancelledError:
            if uaid is not None:
                network.witness.misheard(uaid, message_id)  # the asker was killed meanwhile
            raise
        finally:
            timer.cancel()
        if answer is Answer.UNREACHABLE and not refused and uaid is not None:
            network.witness.misheard(uaid, message_id)
        return answer
