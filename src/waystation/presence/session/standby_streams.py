"""Standby streams: a second stream of a session, on another node, ready to become the primary.

Rule 1: a standby is not listed, not announced and receives no party messages. Its PING keeps the
        session alive, by a notice to the node of the primary stream.
Rule 2: it needs the resume token, as a resume does, and changes nothing until it is promoted.
Rule 3: on the node of the primary stream a standby is refused with NOT_SUPPORTED.
Rule 4: the rate limit of sessions applies. A standby that is silent for a TTL, or does not read its
        answers, is ended: each PING costs a notice.
"""

from waystation.base.limits import TokenBucket
from waystation.presence.errors import STORE_TROUBLE
from waystation.presence.model import Now, Status
from waystation.presence.node_state import NodeState
from waystation.presence.party.registry import Registry
from waystation.presence.reports import Reports
from waystation.presence.store import Notice, PresenceStore, Proof, weigh
from waystation.presence.wire import server_messages as write
from waystation.presence.wire.client_messages import (
    Ack,
    ClientInput,
    Join,
    Leave,
    Ping,
    Promote,
    Unfit,
)

from .client_stream import ClientStream, Phase, StreamControl
from .join import JoinRequests
from .resume_token import hashed
from .session import Refusal, store_busy


class _Standby:
    __slots__ = ("bucket", "handle", "join", "last_rx", "ttl_s")

    def __init__(self, join: Join, ttl_s: float, bucket: TokenBucket, mono: float) -> None:
        self.join = join
        self.ttl_s = ttl_s
        self.bucket = bucket
        self.last_rx = mono
        self.handle = 0


class StandbyStreams:
    def __init__(
        self,
        control: StreamControl,
        registry: Registry,
        store: PresenceStore,
        join_requests: JoinRequests,
        reports: Reports,
        *,
        node: NodeState,
    ) -> None:
        self._control = control
        self._registry = registry
        self._settings = registry.settings
        self._store = store
        self._join_requests = join_requests
        self._reports = reports
        self._node = node
        self._open: dict[ClientStream, _Standby] = {}

    def __len__(self) -> int:
        return len(self._open)

    async def stand_by(self, client: ClientStream, join: Join) -> Refusal | None:
        key = join.key
        if not self._node.shared or key in self._registry.sessions:
            return Refusal(
                Status.NOT_SUPPORTED, "open the standby on another node than the primary"
            )
        if not join.resume_token:
            return Refusal(
                Status.RESUME_REJECTED, "a standby needs the resume token of its session"
            )
        snapshot = await self._store.snapshot(key.party_id)
        found = [one for one in snapshot.sessions if one.key == key] if snapshot else []
        if not found:
            return Refusal(Status.SESSION_NOT_FOUND, "no such session")
        now = self._registry.now()
        refusal = weigh(found[0], Proof(token_hash=hashed(join.resume_token)), now.ms)
        if refusal is not None:
            return Refusal(refusal)
        same = [one for one in self._open.values() if one.join.key == key]
        if len(same) >= self._settings.max_standby:
            detail = (
                f"the session has {len(same)} standbys here (limit {self._settings.max_standby})"
            )
            return Refusal(Status.SESSION_LIMIT, detail)
        if client.over:
            return None
        settings, ttl_s = self._settings, found[0].ttl_ms / 1000
        bucket = TokenBucket(settings.rate_per_s, settings.rate_burst)
        standby = self._open[client] = _Standby(join, ttl_s, bucket, now.mono)
        self._watch(client, standby)
        client.phase = Phase.STANDBY
        client.key = key
        client.send(
            write.ack_with(
                client.next_id(),
                now.ms,
                (join.message_id,),
                status=Status.STANDBY_ATTACHED,
                session_ttl_ms=found[0].ttl_ms,
                node_id=self._node.node_id,
            )
        )
        return None

    def _watch(self, client: ClientStream, standby: _Standby) -> None:

        def look(now: Now) -> None:
            standby.handle = 0
            if now.mono >= standby.last_rx + standby.ttl_s:
                self._control.end(client, Status.CLIENT_TIMEOUT)
            else:
                self._watch(client, standby)

        standby.handle = self._registry.arm(standby.last_rx + standby.ttl_s, look)

    def take(self, client: ClientStream, message: ClientInput, now: Now) -> None:
        standby = self._open[client]
        join = standby.join
        wait_s = standby.bucket.take(now.mono)
        if wait_s:
            refusal = Refusal(
                Status.RATE_LIMITED,
                "message rate exceeded; wait for retry_after_ms",
                int(wait_s * 1000) + 1,
            )
            self._control.refuse(client, refusal, message.message_id)
            return
        if not client.stream.writable:
            self._control.end(client, Status.WRITE_STALLED, discard_unsent=True)
            return
        if not isinstance(message, Unfit):
            standby.last_rx = now.mono
        if isinstance(message, Unfit):
            refusal = Refusal(message.status, message.detail)
            self._control.refuse(client, refusal, message.message_id)
        elif isinstance(message, Ping):
            client.ack(message.message_id, now)
            self._control.run("standby ping", self._keep_alive(join))
        elif isinstance(message, Promote):
            client.busy = True
            self._control.run("promote", self._promote(client, join, message))
        elif isinstance(message, Leave):
            refusal = Refusal(Status.NOT_SUPPORTED, "send LEAVE on the primary stream")
            self._control.refuse(client, refusal, message.message_id)
        elif not isinstance(message, Ack):
            refusal = Refusal(Status.NOT_SUPPORTED, "a standby accepts PING, PROMOTE and ACK only")
            self._control.refuse(client, refusal, message.message_id)

    async def _keep_alive(self, join: Join) -> None:
        try:
            await self._store.tell(
                Notice(
                    key=join.key,
                    status=Status.STANDBY_ATTACHED,
                    node_id=self._node.node_id,
                )
            )
        except STORE_TROUBLE as exc:
            self._reports.store_trouble("standby", exc)

    async def _promote(self, client: ClientStream, join: Join, message: Promote) -> None:
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
            refusal = await self._join_requests.enter(client, as_join, promoted=True)
        except STORE_TROUBLE as exc:
            self._reports.store_trouble("promote", exc)
            self._control.refuse(client, store_busy(self._settings), message.message_id)
            self._control.go_on(client)
            return
        if refusal is not None:
            self._control.end(client, refusal.status, answers=message.message_id)
            return
        self.forget(client)
        self._control.go_on(client)

    def forget(self, client: ClientStream) -> None:
        standby = self._open.pop(client, None)
        if standby is not None and standby.handle:
            self._registry.wheel.cancel(standby.handle)
            standby.handle = 0
