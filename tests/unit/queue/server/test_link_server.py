"""A storage server's answers to moderation orders."""

from types import SimpleNamespace
from typing import Any, cast

from tests.unit.queue.server.test_ownership import Refs, Slots
from waystation.queue.model import Queue, RefKind, Slot
from waystation.queue.server.link_server import LinkServer
from waystation.queue.store import Ref
from waystation.queue.wire.link_messages import LinkMessage, Moderate, NotFound, RefIs

ID = bytes((0x10, 0)) + b"i" * 22
HOME = Slot(700)


class Without:
    """No queue has any id."""

    async def find(self, entity_id: bytes) -> Queue | None:
        return None


async def moderated(slots: Slots) -> LinkMessage:
    refs, unused = Refs(), cast(Any, None)
    await refs.set_ref(RefKind.LINK, ID, Ref(HOME, bytes(16)))
    links = LinkServer(
        store=unused,
        refs=cast(Any, refs),
        grants=unused,
        driver=unused,
        delivery=unused,
        subscribers=unused,
        uncommitted=unused,
        moderation=cast(Any, Without()),
        replication_driver=cast(Any, SimpleNamespace(on_map=[])),
        ownership=cast(Any, slots),
        peers=unused,
        settings=unused,
        tasks=unused,
        clock=unused,
    )
    word = await links._moderate(Moderate(ID, "status"))
    assert slots.running == []
    return word


async def test_a_reference_to_another_servers_slot_is_returned() -> None:
    slots = Slots()
    slots.foreign = HOME

    assert await moderated(slots) == RefIs(HOME)


async def test_a_deleted_queue_of_our_own_slot_is_reported_as_not_found() -> None:
    assert await moderated(Slots()) == NotFound()
