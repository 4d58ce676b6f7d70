"""NEW: from a request to a queue with its ids and keys (§4.2)."""

from typing import Final

import msgspec

from waystation.queue.errors import Code, WeakKeyError
from waystation.queue.model import (
    ID_BYTES,
    CorrId,
    Link,
    Notifier,
    Queue,
    RecipientId,
    ServiceId,
    Slot,
    SubMode,
    sender_id_from,
)
from waystation.queue.server.ids import IdMaker
from waystation.queue.settings import Queue as QueueSettings
from waystation.queue.store import QueueStore
from waystation.queue.wire.boxes import agree, new_dh_pair
from waystation.queue.wire.commands import New, NewNotifier
from waystation.queue.wire.responses import Err, Ids, NewNotifierIds

_TRIES_MAX: Final = 4  # the first, and three more when an id that we drew is in use


class Made(msgspec.Struct, frozen=True):
    queue: Queue
    ids: Ids
    subscribes: bool


class Creation:
    def __init__(self, store: QueueStore, ids: IdMaker, settings: QueueSettings) -> None:
        self._store = store
        self._ids = ids
        self._settings = settings

    async def create(
        self, command: New, corr_id: CorrId, today_s: int, service_id: ServiceId | None = None
    ) -> Made | Err:
        for _ in range(_TRIES_MAX):
            made = self.draw(command, corr_id, today_s, self._ids.home(), service_id)
            if isinstance(made, Err) or await self._store.create(made.queue):
                return made
            if command.link is not None:
                return Err(Code.AUTH)  # most likely the id that the client chose is in use
        return Err(Code.INTERNAL)

    def draw(
        self,
        command: New,
        corr_id: CorrId,
        today_s: int,
        home: Slot,
        service_id: ServiceId | None = None,
    ) -> Made | Err:
        """Makes the queue with ids and keys, without storing it."""
        link = command.link
        if link is not None:
            if link.sender_id != sender_id_from(corr_id):
                return Err(Code.CMD_PROHIBITED)
            if link.link_id is not None and len(link.link_id) != ID_BYTES:
                return Err(Code.CMD_SYNTAX)
        try:
            return self._draw(command, today_s, home, service_id)
        except WeakKeyError:
            return Err(Code.CMD_SYNTAX)

    def _draw(self, command: New, today_s: int, home: Slot, service_id: ServiceId | None) -> Made:
        public, private = new_dh_pair()
        recipient_id = self._ids.recipient(home)
        link = None
        sender_id = self._ids.sender(recipient_id)
        if command.link is not None:
            sender_id = command.link.sender_id
            link = Link(command.link.link_id or self._ids.link(recipient_id), command.link.data)
        notifier, notifier_ids = None, None
        if command.notifier is not None:
            notifier, notifier_ids = new_notifier(self._ids, recipient_id, command.notifier)
        queue = Queue(
            recipient_id=recipient_id,
            recipient_keys=(command.recipient_key,),
            box_key=agree(command.dh_key, private),
            sender_id=sender_id,
            mode=command.mode,
            link=link,
            notifier=notifier,
            updated_on_s=today_s,
            service_id=service_id,
        )
        ids = Ids(
            recipient_id,
            sender_id,
            public,
            command.mode,
            None if link is None else link.link_id,
            service_id,
            notifier_ids,
        )
        return Made(queue, ids, command.sub_mode is SubMode.SUBSCRIBE)


def new_notifier(
    ids: IdMaker, recipient_id: RecipientId, asked: NewNotifier
) -> tuple[Notifier, NewNotifierIds]:
    """Raises `WeakKeyError` for a key of small order."""
    public, private = new_dh_pair()
    notifier_id = ids.notifier(recipient_id)
    notifier = Notifier(notifier_id, asked.key, agree(asked.dh_key, private))
    return notifier, NewNotifierIds(notifier_id, public)
