"""An operator's word about a queue of the cluster, brought to whichever server has the queue."""

import asyncio
from typing import Final, Protocol

from waystation.queue.control import Outcome
from waystation.queue.model import slot_of
from waystation.queue.wire.link import Body
from waystation.queue.wire.link_words import Moderate, Moderated, NotFound, RefIs, Unknown, Word

from .cluster_store import ClusterStore
from .slot_map import NOBODY, NodeId, SlotMap

TRIES_MAX: Final = 25  # a slot on its way is waited for
PAUSE_S: Final = 0.2


class Asks(Protocol):
    async def ask(self, node_id: NodeId, word: Word) -> Body | None: ...


async def moderate(store: ClusterStore, asking: Asks, order: Moderate) -> str:
    """What came of it, in words. The id of a sender or a link leads to its queue as it leads
    their commands there: by its slot, or by a reference."""
    slot = slot_of(order.entity_id)
    referred = False
    server = NOBODY
    for _ in range(TRIES_MAX):
        slot_map: SlotMap = await store.read()
        server = slot_map.slots[slot].server
        answer = None if server == NOBODY else await asking.ask(server, order)
        match answer:
            case Moderated(text):
                return text
            case RefIs(home) if not referred:
                slot, referred = home, True
                continue
            case NotFound() | RefIs():
                return Outcome.UNKNOWN.value
            case Unknown(_, epoch) if referred and epoch <= slot_map.epoch:
                return Outcome.UNKNOWN.value  # of the queue only its reference is left
            case _:
                await asyncio.sleep(PAUSE_S)
    if server == NOBODY:
        return "error: nobody serves the queue's slot at present"
    return f"error: node {server} has the queue's slot and does not answer"
