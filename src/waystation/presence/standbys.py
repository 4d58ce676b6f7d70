"""Standby streams: a second stream of a session, on another node, ready to become the primary.

Rule 1: a standby is no presence of its own: it is not listed, not announced and gets no party
        messages. Its PING keeps the session alive, by a notice to the node that holds it.
Rule 2: it proves itself like a resume, and changes nothing until it is promoted.
Rule 3: on the node that holds the primary stream there is nothing to gain: NOT_SUPPORTED.
Rule 4: it keeps the rate of a session, and one that is silent for a TTL, or does not read its
        answers, is ended: every ping costs a notice, and nobody else would miss the stream.
"""

from typing import TYPE_CHECKING

from waystation.base.limits import TokenBucket

from .conversation import Conversation, Phase
from .errors import STORE_TROUBLE
from .log import Now
from .model import Status
from .resume_token import hashed
from .session import Refusal
from .store import Notice, Proof, weigh
from .wire import broker as write
from .wire.client import Ack, ClientInput, Join, Leave, Ping, Promote, Unfit

if TYPE_CHECKING:
    from .broker import Broker


class _Standby:
    __slots__ = ("bucket", "handle", "join", "last_rx", "ttl_s")

    def __init__(self, join: Join, ttl_s: float, bucket: TokenBucket, mono: float) -> None:
        self.join = join
        self.ttl_s = ttl_s
        self.bucket = bucket
        self.last_rx = mono
        self.handle = 0


class Standbys:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._open: dict[Conversation, _Standby] = {}

    def __len__(self) -> int:
        return len(self._open)

    async def stand_by(self, conversation: Conversation, join: Join) -> Refusal | None:
        broker, key = self._broker, join.key
        if not broker.shared or key in broker.registry.sessions:
            return Refusal(Status.NOT_SUPPORTED, "a standby stands on another node")
        if not join.resume_token:
            return Refusal(Status.RESUME_REJECTED, "a standby needs the resume token")
        snapshot = await broker.store.snapshot(key.party_id)
        found = [one for one in snapshot.sessions if one.key == key] if snapshot else []
        if not found:
            return Refusal(Status.SESSION_NOT_FOUND, "there is no such session")
        now = broker.registry.now()
        refusal = weigh(found[0], Proof(token_hash=hashed(join.resume_token)), now.ms)
        if refusal is not None:
            return Refusal(refusal)
        same = [one for one in self._open.values() if one.join.key == key]
        if len(same) >= broker.settings.max_standby:
            return Refusal(Status.SESSION_LIMIT, "the session has a standby here")
        if conversation.over:
            return None
        settings, ttl_s = broker.settings, found[0].ttl_ms / 1000
        bucket = TokenBucket(settings.rate_per_s, settings.rate_burst)
        standby = self._open[conversation] = _Standby(join, ttl_s, bucket, now.mono)
        self._watch(conversation, standby)
        conversation.phase = Phase.STANDBY
        conversation.key = key
        conversation.send(
            write.ack_with(
                conversation.next_id(),
                now.ms,
                (join.message_id,),
                status=Status.STANDBY_ATTACHED,
                session_ttl_ms=found[0].ttl_ms,
                node_id=broker.owner.node_id,
            )
        )
        return None

    def _watch(self, conversation: Conversation, standby: _Standby) -> None:
        broker = self._broker

        def look(now: Now) -> None:
            standby.handle = 0
            if now.mono >= standby.last_rx + standby.ttl_s:
                broker.end(conversation, Status.CLIENT_TIMEOUT)
            else:
                self._watch(conversation, standby)

        standby.handle = broker.registry.arm(standby.last_rx + standby.ttl_s, look)

    def take(self, conversation: Conversation, message: ClientInput, now: Now) -> None:
        broker, standby = self._broker, self._open[conversation]
        join = standby.join
        wait_s = standby.bucket.take(now.mono)
        if wait_s:
            refusal = Refusal(Status.RATE_LIMITED, "too many messages", int(wait_s * 1000) + 1)
            broker.refuse(conversation, refusal, message.message_id)
            return
        if not conversation.stream.writable:
            broker.end(conversation, Status.WRITE_STALLED, discard_unsent=True)
            return
        if not isinstance(message, Unfit):
            standby.last_rx = now.mono
        if isinstance(message, Unfit):
            refusal = Refusal(message.status, message.detail)
            broker.refuse(conversation, refusal, message.message_id)
        elif isinstance(message, Ping):
            conversation.ack(message.message_id, now)
            broker.run("standby ping", self._keep_alive(join))
        elif isinstance(message, Promote):
            conversation.busy = True
            broker.run("promote", self._promote(conversation, join, message))
        elif isinstance(message, Leave):
            refusal = Refusal(Status.NOT_SUPPORTED, "leave on the primary stream")
            broker.refuse(conversation, refusal, message.message_id)
        elif not isinstance(message, Ack):
            refusal = Refusal(Status.NOT_SUPPORTED, "not on a standby")
            broker.refuse(conversation, refusal, message.message_id)

    async def _keep_alive(self, join: Join) -> None:
        try:
            await self._broker.store.tell(
                Notice(
                    key=join.key,
                    status=Status.STANDBY_ATTACHED,
                    node_id=self._broker.owner.node_id,
                )
            )
        except STORE_TROUBLE as exc:
            self._broker.reports.store_trouble("standby", exc)

    async def _promote(self, conversation: Conversation, join: Join, message: Promote) -> None:
        broker = self._broker
        as_join = Join(
            message.message_id,
            message.ack_ids,
            message.party_seq,
            key=join.key,
            flags=join.flags & ~2,
            ttl_ms=join.ttl_ms,
            extended=True,
        )
        try:
            refusal = await broker.reception.enter(conversation, as_join, promoted=True)
        except STORE_TROUBLE as exc:
            broker.reports.store_trouble("promote", exc)
            busy_ms = round(broker.settings.store_busy_s * 1000)
            refusal = Refusal(Status.STORE_BUSY, "the store does not answer", busy_ms)
            broker.refuse(conversation, refusal, message.message_id)
            broker.go_on(conversation)
            return
        if refusal is not None:
            broker.end(conversation, refusal.status, answers=message.message_id)
            return
        self.forget(conversation)
        broker.go_on(conversation)

    def forget(self, conversation: Conversation) -> None:
        standby = self._open.pop(conversation, None)
        if standby is not None and standby.handle:
            self._broker.registry.wheel.cancel(standby.handle)
            standby.handle = 0
