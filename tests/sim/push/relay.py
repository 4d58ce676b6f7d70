"""The relay of simulated nodes: the production client, with a record of lost and repeated requests.

A request that is answered `UNREACHABLE` may have been carried out: its answer was lost or late. One
whose connection was cut may have been carried out twice. The checkers need to know both.

An endpoint and a node may be near: then a push is a function call, as within one worker.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Protocol

from tests.sim.sockets import SimNetLoop
from waystation.base.clock import Clock
from waystation.push.endpoint.relay_client import RelayClient
from waystation.push.model import MessageId, Notification, Uaid, Update
from waystation.push.settings import Endpoint
from waystation.push.wire.relay import Answer, ServedNode


class Witness(Protocol):
    """Who must know what the network did, because the checkers will ask."""

    def misheard(self, uaid: Uaid, message_id: MessageId | None) -> None:
        """A node may have acted, but whoever asked it took it for unreachable."""
        ...

    def problem(self, sentence: str) -> None: ...


class Place(Protocol):
    """Where a connection node runs."""

    @property
    def node(self) -> ServedNode | None:
        """None while it is down."""
        ...

    name: str
    lives: int  # how often it has begun


class SimRelay(RelayClient):
    def __init__(
        self,
        places: Mapping[str, Place],
        witness: Witness,
        *,
        own_node_id: str,
        net: SimNetLoop,
        clock: Clock,
        secret: bytes,
    ) -> None:
        super().__init__(
            Endpoint(url="http://push"),
            own_node_id=own_node_id,
            relay_url="http://none",
            sibling_socket=str,
            secret=secret,
            clock=clock,
            net=net,
        )
        self._places = places
        self._witness = witness
        self._own = places.get(own_node_id)
        self._host = net.host

    async def push(self, node_id: str, uaid: Uaid, notification: Notification | Update) -> Answer:
        message_id = notification.message_id if isinstance(notification, Notification) else None
        self.node = None if self._own is None else self._own.node
        asked = super().push(node_id, uaid, notification)
        return await self._witnessed(asked, node_id, uaid, message_id)

    async def check_stored(self, node_id: str, uaid: Uaid) -> Answer:
        self.node = None if self._own is None else self._own.node
        asked = super().check_stored(node_id, uaid)
        return await self._witnessed(asked, node_id, uaid, None)

    async def _witnessed(
        self, asked: Awaitable[Answer], node_id: str, uaid: Uaid, message_id: MessageId | None
    ) -> Answer:
        place = self._places[node_id]
        if place is self._own and place.node is not None:
            return await asked
        network, here = self._host.network, self._host.name
        was_up, lives = place.node is not None, place.lives

        def broke(one: str, other: str) -> None:
            if {one, other} == {here, place.name}:
                self._witness.misheard(uaid, message_id)

        network.witnesses.append(broke)
        try:
            answer = await asked
        except asyncio.CancelledError:
            self._witness.misheard(uaid, message_id)  # the asker was killed meanwhile
            raise
        finally:
            network.witnesses.remove(broke)
        was_down = not was_up and place.node is None and lives == place.lives
        if answer is Answer.UNREACHABLE and not was_down:
            self._witness.misheard(uaid, message_id)
        if answer is Answer.UNEXPECTED:
            self._witness.problem(f"{node_id} gave an odd answer")
        return answer
