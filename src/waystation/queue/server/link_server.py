"""The storage server's end of links: streams of edges, references, copies.

Rule 1: the peer presents a certificate of the cluster: an edge sends commands of clients, a storage
        server sends copies.
Rule 2: a message outside of client sessions is answered under the number that it came with.
Rule 3: a frame with a newer epoch than ours makes this server read the map.
Rule 4: an edge that does not read is not read either, and gets no deliveries until it reads again.
"""

from collections.abc import Coroutine
from typing import Any, Final

from waystation.base.clock import Clock
from waystation.base.errors import UnavailableError
from waystation.base.tasks import Tasks
from waystation.queue.cluster.link_connection import LinkConnection
from waystation.queue.cluster.peer_requests import PeerRequests
from waystation.queue.cluster.peers import Peers, node_of
from waystation.queue.cluster.replication_driver import ReplicationDriver
from waystation.queue.cluster.slot_map import SlotMap
from waystation.queue.control import moderated
from waystation.queue.model import (
    ID_BYTES,
    CorrId,
    MessageId,
    Queue,
    RecipientId,
    RefKind,
    Slot,
    slot_of,
)
from waystation.queue.server.client import Client
from waystation.queue.server.delivery import Delivery
from waystation.queue.server.driver import Driver
from waystation.queue.server.moderation import Moderation
from waystation.queue.server.ownership import is_copy, not_ours
from waystation.queue.server.streams import StreamPort, Streams, StreamSession
from waystation.queue.server.subscribers import Subscribers
from waystation.queue.server.uncommitted_queues import UncommittedQueues
from waystation.queue.settings import Queue as QueueSettings
from waystation.queue.store import GrantStore, Party, QueueStore, Ref, RefStore
from waystation.queue.wire.link import Body, ClientTransmission, Frame
from waystation.queue.wire.link_messages import (
    Cok,
    CopyAck,
    CopyPart,
    Cping,
    Cpong,
    DelRef,
    Duplicate,
    Frozen,
    GetRef,
    Knows,
    LinkMessage,
    Moderate,
    Moderated,
    Newc,
    Newq,
    Newx,
    NotFound,
    RefIs,
    Sagain,
    Sclose,
    Sdlv,
    SetRef,
    Sopen,
    Spause,
    Sres,
    Sresume,
    Unknown,
)

STREAMS_MAX: Final = 200_000
PARTY_OF: Final = {
    RefKind.SENDER: Party.SENDER,
    RefKind.NOTIFIER: Party.NOTIFIER,
    RefKind.LINK: Party.LINK,
}


class KeptOwnership:
    """`Ownership` by the state of `ReplicationDriver`."""

    def __init__(self, replication_driver: ReplicationDriver, clock: Clock) -> None:
        self._replication_driver = replication_driver
        self._clock = clock
        self.serves = replication_driver.serves
        self.frozen = replication_driver.frozen
        self.begin = replication_driver.begin
        self.end = replication_driver.end

    @property
    def epoch(self) -> int:
        return self._replication_driver.slot_map.epoch

    def is_certain(self) -> bool:
        return self._replication_driver.replication.slot_lease.leased(self._clock.mono())

    def owns(self, slot: int) -> bool:
        slot_lease = self._replication_driver.replication.slot_lease
        return slot_lease.slot_map.slots[slot].owner == slot_lease.node_id

    def answers(self, slot: int) -> bool:
        """Ours by the map, and no other server can have taken it meanwhile; frozen or not."""
        slot_lease = self._replication_driver.replication.slot_lease
        one = slot_lease.slot_map.slots[slot]
        guarded = one.in_step or slot in slot_lease.guarded
        ours = one.owner == slot_lease.node_id
        return ours and (not guarded or slot_lease.leased(self._clock.mono()))


class _Port(StreamPort):
    def __init__(self, line: LinkConnection, ownership: KeptOwnership) -> None:
        self._line = line
        self._ownership = ownership

    def put(self, stream: int, body: Body) -> None:
        self._line.send_frame(stream, self._ownership.epoch, body)


class LinkServer:
    """The `LinkHandler` of all accepted links."""

    def __init__(
        self,
        *,
        store: QueueStore,
        refs: RefStore,
        grants: GrantStore,
        driver: Driver,
        delivery: Delivery,
        subscribers: Subscribers,
        uncommitted: UncommittedQueues,
        moderation: Moderation,
        replication_driver: ReplicationDriver,
        ownership: KeptOwnership,
        peers: Peers,
        settings: QueueSettings,
        tasks: Tasks,
        clock: Clock,
    ) -> None:
        self._store = store
        self._refs = refs
        self._grants = grants
        self._driver = driver
        self._delivery = delivery
        self._subscribers = subscribers
        self._queues = uncommitted
        self._moderation = moderation
        self._replication_driver = replication_driver
        self._ownership = ownership
        self._peers = peers
        self._settings = settings
        self._tasks = tasks
        self._clock = clock
        self._lines: dict[LinkConnection, tuple[Streams, _Port]] = {}
        self._copying: set[LinkConnection] = set()  # links of servers that send copies
        self._owned: set[int] = set()
        replication_driver.on_map.append(self._learned)

    @property
    def streams(self) -> int:
        return sum(len(streams) for streams, _ in self._lines.values())

    def close(self) -> None:
        for line in list(self._lines):
            line.abort()

    # Links

    def ready(self, line: LinkConnection) -> None:
        port = _Port(line, self._ownership)
        streams = Streams(
            port,
            self._driver,
            out_blocks_max=self._settings.out_blocks_max,
            streams_max=STREAMS_MAX,
        )
        self._lines[line] = (streams, port)
        if not self._owned:
            self._owned = set(
                self._replication_driver.slot_map.owned_by(
                    self._replication_driver.replication.slot_lease.node_id
                )
            )

    def lost(self, line: LinkConnection) -> None:
        known = self._lines.pop(line, None)
        if known is not None:
            known[0].close_all()
        node_id = node_of(line.peer_name)
        if node_id is not None and line in self._copying:
            self._copying.discard(line)
            self._peers.left(node_id)

    def congested(self, line: LinkConnection, *, is_congested: bool) -> None:
        """Rule 4."""
        known = self._lines.get(line)
        if known is None:
            return
        streams, port = known
        port.is_congested = is_congested
        if is_congested:
            line.pause()
        else:
            line.resume()
            streams.has_room()

    def arrived(self, line: LinkConnection, frame: Frame) -> None:
        self._replication_driver.saw_epoch(frame.epoch)
        (streams, _), stream, body = self._lines[line], frame.stream, frame.body
        match body:
            case ClientTransmission(transmission):
                streams.sent(stream, transmission)
            case Sagain(entity_id):
                streams.begin_again(stream, entity_id)
            case Sopen():
                streams.open(stream, body, self._clock.mono())
            case Sclose():
                streams.close(stream)
            case Spause() | Sresume():
                streams.pause(stream, paused=isinstance(body, Spause))
            case Cping():
                line.send_frame(stream, self._ownership.epoch, Cpong(self._ownership.epoch))
            case CopyPart() | CopyAck():
                node_id = node_of(line.peer_name)
                self._copying.add(line)
                if node_id is None or not self._peers.arrived(node_id, body):
                    line.abort()
            case Newq() | Sres() | Sdlv():
                found = streams.get(stream)
                if found is None:
                    line.send_frame(stream, self._ownership.epoch, Sclose())
                else:
                    self._spawn(line, stream, self._of_session(*found, body))
            case Newc() | Newx() | SetRef() | GetRef() | DelRef() | Knows() | Moderate():
                self._spawn(line, stream, self._outside_sessions(body))
            case _:
                line.abort()  # a message that only servers send

    def _spawn(
        self, line: LinkConnection, stream: int, work: Coroutine[Any, Any, list[LinkMessage]]
    ) -> None:
        self._tasks.spawn("link message", self._send_results(line, stream, work))

    async def _send_results(
        self, line: LinkConnection, stream: int, work: Coroutine[Any, Any, list[LinkMessage]]
    ) -> None:
        try:
            messages = await work
        except UnavailableError:
            line.abort()  # the edge asks again over its next link
            return
        for message in messages:
            line.send_frame(stream, self._ownership.epoch, message)

    # Messages

    async def _of_session(
        self, client: Client, session: StreamSession, asked: Newq | Sres | Sdlv
    ) -> list[LinkMessage]:
        match asked:
            case Newq():
                return await self._queues.ask(client, session, asked)
            case Sres(recipient_id):
                return [await self._resume(client, session, recipient_id)]
            case Sdlv(recipient_id, gets, message_id):
                await self._was_delivered(client, recipient_id, message_id, gets=gets)
                return []

    async def _outside_sessions(
        self, asked: Newc | Newx | SetRef | GetRef | DelRef | Knows | Moderate
    ) -> list[LinkMessage]:
        match asked:
            case Newc(tx_id):
                return [await self._queues.commit(tx_id)]
            case Newx(tx_id):
                return [self._queues.withdraw(tx_id)]
            case Moderate():
                return [await self._moderate(asked)]
            case Knows(kind, entity_id, home):
                return [await self.knows(kind, entity_id, home)]
            case _:
                return [await self._reference(asked)]

    async def known_anywhere(
        self, peer_requests: PeerRequests, kind: RefKind, entity_id: bytes, home: Slot
    ) -> bool | None:
        """Asks the server of the slot whether it has such a queue; None without an answer."""
        server = self._replication_driver.slot_map.slots[home].server
        if server == self._replication_driver.replication.slot_lease.node_id:
            messages = await self.knows(kind, entity_id, home)
        else:
            messages = await peer_requests.ask(server, Knows(kind, entity_id, home))
        if isinstance(messages, Cok):
            return True
        return False if isinstance(messages, NotFound) else None

    async def knows(self, kind: RefKind, entity_id: bytes, home: Slot) -> LinkMessage:
        if not self._ownership.begin(home):
            return not_ours(self._ownership, CorrId(b""), home)
        try:
            queue = await self._store.find(PARTY_OF[kind], entity_id)
            return Cok() if queue is not None and queue.slot == home else NotFound()
        finally:
            self._ownership.end(home)

    async def _moderate(self, asked: Moderate) -> LinkMessage:
        """Executes the order, or answers where the queue is."""
        entity_id = asked.entity_id
        if len(entity_id) != ID_BYTES:
            return NotFound()
        queue = await self._own(entity_id)
        slot = slot_of(entity_id) if queue is None else queue.slot
        if not self._ownership.begin(slot):
            if queue is None and self._ownership.is_certain() and not self._ownership.owns(slot):
                return Unknown(CorrId(b""), self._ownership.epoch)
            return not_ours(self._ownership, CorrId(b""), slot)
        try:
            if queue is None:
                queue = await self._own(entity_id)  # it may have arrived before `begin`
            if queue is not None and queue.slot != slot:
                return Frozen(CorrId(b""))
            if queue is not None:
                return Moderated(await moderated(self._moderation, entity_id, asked.order))
            for kind in (RefKind.SENDER, RefKind.LINK):
                found = await self._refs.get_ref(kind, entity_id)
                if found is None:
                    continue
                if not self._ownership.serves(found.home):
                    return RefIs(found.home)
                # We own the home slot too, so no other server can confirm that it is gone.
                return NotFound() if await self._own(entity_id) is None else Frozen(CorrId(b""))
            return NotFound()
        finally:
            self._ownership.end(slot)

    async def _own(self, entity_id: bytes) -> Queue | None:
        """The queue of this id, unless it is a copy."""
        queue = await self._moderation.find(entity_id)
        if queue is None or is_copy(self._ownership, queue, entity_id):
            return None
        return queue

    async def _reference(self, asked: SetRef | GetRef | DelRef) -> LinkMessage:
        if len(asked.entity_id) != ID_BYTES:
            return NotFound()
        slot = slot_of(asked.entity_id)
        if not self._ownership.begin(slot):
            return not_ours(self._ownership, CorrId(b""), slot)
        try:
            match asked:
                case SetRef(kind, entity_id, home, tx_id):
                    ref = Ref(Slot(home), tx_id)
                    return Cok() if await self._refs.set_ref(kind, entity_id, ref) else Duplicate()
                case GetRef(kind, entity_id):
                    found = await self._refs.get_ref(kind, entity_id)
                    return NotFound() if found is None else RefIs(found.home)
                case DelRef(kind, entity_id, tx_id):
                    await self._refs.drop_ref(kind, entity_id, tx_id)
                    return Cok()
        finally:
            self._ownership.end(slot)

    async def _resume(
        self, client: Client, session: StreamSession, recipient_id: RecipientId
    ) -> LinkMessage:
        """Resumes a subscription that came with NEW, if its grant moved here with the queue."""
        slot = slot_of(recipient_id) if len(recipient_id) == ID_BYTES else Slot(0)
        if not self._ownership.begin(slot):
            # No correlation id names this request: the queue's id is used instead.
            return not_ours(self._ownership, CorrId(recipient_id), slot)
        try:
            granted = await self._grants.get_grant(recipient_id)
            queue = await self._store.find(Party.RECIPIENT, recipient_id)
            if queue is None or granted != session.session_id:
                return NotFound()
            taken = self._subscribers.subscribe(client, queue)
            if taken is None:
                return NotFound()
            self._delivery.put_off(taken[0])
            self._driver.has_room(client)
            return Cok()
        finally:
            self._ownership.end(slot)

    async def _was_delivered(
        self, client: Client, recipient_id: RecipientId, message_id: MessageId, *, gets: bool
    ) -> None:
        queue = await self._store.find(Party.RECIPIENT, recipient_id)
        if queue is None:
            return
        if gets:
            subscription = self._subscribers.get_only(client, queue)
        else:
            subscription = client.subscriptions.get(recipient_id)
        if subscription is not None and (gets or subscription.delivered is None):
            subscription.hand_over(message_id, self._clock.mono())

    # The map

    def _learned(self, slot_map: SlotMap) -> None:
        """Ends subscriptions to slots that have moved; their edges renew them there."""
        here = self._replication_driver.replication.slot_lease.node_id
        before, self._owned = self._owned, set(slot_map.owned_by(here))
        lost = before - self._owned
        if not lost:
            return
        for subscription in list(self._subscribers):
            if subscription.slot in lost:
                self._subscribers.queue_gone(subscription.recipient_id)
        for streams, _ in self._lines.values():
            streams.lost(lost)
