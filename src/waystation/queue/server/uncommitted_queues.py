"""Queues that an edge has created and not committed yet (queues §6.6).

Rule 1: an uncommitted queue is kept in memory only: no command finds it, and a restart drops it.
Rule 2: the edge commits it after writing its references. It is dropped after `UNCOMMITTED_S` or by
        `NEWX`.
Rule 3: a queue that was created with a subscription has a grant, which moves with the queue:
        `NEW` cannot be repeated.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from waystation.base.errors import UnavailableError
from waystation.queue.model import CorrId, RefKind
from waystation.queue.server.client import Client
from waystation.queue.server.creation import Made
from waystation.queue.server.dispatch import Caller, Dispatch
from waystation.queue.server.ownership import Ownership, not_ours
from waystation.queue.server.streams import StreamSession
from waystation.queue.server.subscribers import Subscribers
from waystation.queue.store import GrantStore, QueueStore
from waystation.queue.wire.link_messages import (
    Busy,
    Cok,
    Duplicate,
    LinkMessage,
    Newq,
    Newr,
    NotFound,
)
from waystation.queue.wire.responses import Err, Response
from waystation.queue.wire.transmission import Refusal, Transmission, decode_transmission

UNCOMMITTED_S: Final = 60.0
UNCOMMITTED_MAX: Final = 10_000


class _UncommittedQueue(msgspec.Struct, frozen=True):
    made: Made
    client: Client
    session: StreamSession
    until: float


class UncommittedQueues:
    def __init__(
        self,
        *,
        store: QueueStore,
        grants: GrantStore,
        dispatch: Dispatch,
        subscribers: Subscribers,
        ownership: Ownership,
        mono: Callable[[], float],
        hybrid: bool,
    ) -> None:
        self._store = store
        self._grants = grants
        self._dispatch = dispatch
        self._subscribers = subscribers
        self._ownership = ownership
        self._mono = mono
        self._hybrid = hybrid
        self._queues: dict[bytes, _UncommittedQueue] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._queues)

    async def ask(self, client: Client, session: StreamSession, asked: Newq) -> list[LinkMessage]:
        """Makes the queue. The client's stream gets the IDS, which the edge holds back until the
        commit; returns the messages that follow."""
        received = decode_transmission(asked.transmission, session.agreement.dialect)
        if isinstance(received, Refusal):
            session.say(received.corr_id, received.entity_id, Err(received.fault))
            return []
        caller = Caller(client, session.version, session.session_key)
        if not self._ownership.serves(asked.home):
            return [not_ours(self._ownership, received.corr_id, asked.home)]
        made = await self._dispatch.draft(caller, received, asked.home)
        if isinstance(made, Err):
            self._say(session, received, made)
            return []
        self._forget_old()
        draft = _UncommittedQueue(made, client, session, self._mono() + UNCOMMITTED_S)
        self._queues[asked.tx_id] = draft
        self._say(session, received, made.ids)
        queue = made.queue
        return [
            Newr(
                asked.tx_id,
                queue.recipient_id,
                queue.sender_id,
                None if queue.notifier is None else queue.notifier.notifier_id,
                None if queue.link is None else queue.link.link_id,
                self._needs(made, received),
            )
        ]

    async def commit(self, tx_id: bytes) -> LinkMessage:
        self._forget_old()
        draft = self._queues.pop(tx_id, None)
        if draft is None:
            return NotFound()
        queue = draft.made.queue
        slot = queue.slot
        if not self._ownership.begin(slot):
            return not_ours(self._ownership, CorrId(b""), slot)
        try:
            try:
                created = await self._store.create(queue)
            except UnavailableError:
                return Busy(CorrId(b""))  # no room here; another server may have some
            if not created:
                return Duplicate()
            if draft.made.subscribes:
                await self._grants.set_grant(queue.recipient_id, draft.session.session_id)
                if not draft.client.gone:
                    self._subscribers.subscribe(draft.client, queue)
            return Cok()
        finally:
            self._ownership.end(slot)

    def withdraw(self, tx_id: bytes) -> LinkMessage:
        self._queues.pop(tx_id, None)
        return Cok()

    def _say(self, session: StreamSession, sent: Transmission, response: Response) -> None:
        session.say(sent.corr_id, sent.entity_id, response)

    def _needs(self, made: Made, sent: Transmission) -> tuple[RefKind, ...]:
        """Ids that need a reference to find the slot of their queue."""
        queue = made.queue
        ids: list[tuple[RefKind, bytes]] = [(RefKind.SENDER, queue.sender_id)]
        if queue.notifier is not None:
            ids.append((RefKind.NOTIFIER, queue.notifier.notifier_id))
        if queue.link is not None:
            ids.append((RefKind.LINK, queue.link.link_id))
        link = getattr(sent.command, "link", None)
        chosen = {RefKind.SENDER} if link is not None else set[RefKind]()
        if link is not None and link.link_id is not None:
            chosen.add(RefKind.LINK)
        return tuple(kind for kind, _ in ids if kind in chosen or not self._hybrid)

    def _forget_old(self) -> None:
        now = self._mono()
        for tx_id, draft in list(self._queues.items()):
            if draft.until > now and len(self._queues) < UNCOMMITTED_MAX:
                break
            del self._queues[tx_id]
