"""Routes an operator's moderation command to the server of the cluster that has the queue.

Rule 1: the id of a sender or a link is routed like their commands: by its slot, or by a reference.
Rule 2: `UNKNOWN` is accepted from a server with the same map as ours, and from the home slot of a
        reference only after the reference was read again. Any other server is asked again after a
        pause in which it can read a newer map.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from waystation.queue.control import Outcome
from waystation.queue.model import Slot, slot_of
from waystation.queue.wire.link import Body
from waystation.queue.wire.link_messages import (
    LinkMessage,
    Moderate,
    Moderated,
    NotFound,
    RefIs,
    Unknown,
)

from .slot_map import NOBODY, NodeId, SlotMap

TRIES_MAX: Final = 25  # enough to wait for a moving slot
PAUSE_S: Final = 0.2


class Asks(Protocol):
    async def ask(self, node_id: NodeId, message: LinkMessage) -> Body | None: ...


async def moderate(
    read_map: Callable[[], Awaitable[SlotMap]], peer_requests: Asks, order: Moderate
) -> str:
    """Returns the outcome as text."""
    own_slot = slot = slot_of(order.entity_id)
    rechecked: set[Slot] = set()  # home slots that did not have it
    server = NOBODY
    answer: Body | None = None
    for _ in range(TRIES_MAX):
        slot_map = await read_map()
        server = slot_map.slots[slot].server
        answer = None if server == NOBODY else await peer_requests.ask(server, order)
        match answer:
            case Moderated(text):
                return text
            case NotFound():
                return Outcome.UNKNOWN.value
            case RefIs(home) if home in rechecked or home == own_slot:
                return Outcome.UNKNOWN.value  # only the reference of the queue is left
            case RefIs(home) if home != slot:
                slot = home
            case Unknown(_, epoch) if slot != own_slot and epoch == slot_map.epoch:
                rechecked.add(slot)
                slot = own_slot
            case _:
                await asyncio.sleep(PAUSE_S)
    if isinstance(answer, RefIs | Unknown):
        return Outcome.UNKNOWN.value  # all servers had time to read the map
    if server == NOBODY:
        return "error: no node serves the queue's slot at present"
    return f"error: node {server} has the queue's slot and does not answer"
