"""The presence store on Redis: scripts change parties, channels notify nodes of new entries.

Every operation on a party is one atomic script, so all nodes see one order. Sessions expire by
Redis's clock; the fence in a session's record decides which node may write to it.
"""

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from waystation.presence.model import (
    Entry,
    Member,
    PartyId,
    SessionKey,
    SessionRecord,
    Status,
)
from waystation.presence.store import (
    Attached,
    AttachSpec,
    CursorRow,
    Duplicate,
    Exists,
    Joined,
    JoinSpec,
    Left,
    Missing,
    Notice,
    Owner,
    PartyListener,
    PartySnapshot,
    Rejected,
    Signalled,
)
from waystation.storage.redis.backend import CAPABILITIES
from waystation.storage.redis.cluster_routing import RedisCluster
from waystation.storage.redis.presence_nodes import NodeRows
from waystation.storage.redis.presence_rows import (
    PartyKeys,
    decode_entry,
    decode_member,
    decode_notice,
    decode_record,
    encode_notice,
    field_of,
    ids_of,
)
from waystation.storage.redis.scripts import load_party
from waystation.storage.redis.session import OneServer, Session
from waystation.storage.redis.subscriber import Subscriber
from waystation.storage.redis.url import RedisUrl
from waystation.storage.settings import Store

JOIN = load_party("party_join")
ATTACH = load_party("party_attach")
DETACH = load_party("party_detach")
LEAVE = load_party("party_leave")
SIGNAL = load_party("party_signal")
CURSORS = load_party("party_cursors")

EPOCH_BITS: Final = 63
CURSORS_PER_CALL: Final = 300
WAIT_MS: Final = 50


class RedisPresenceStore(NodeRows):
    capabilities = CAPABILITIES

    def __init__(
        self,
        session: Session,
        url: RedisUrl,
        *,
        prefix: str,
        log_max: int,
        linger_s: float,
        min_replicas: int,
        timeout_s: float,
    ) -> None:
        super().__init__(session, PartyKeys(prefix), log_max=log_max, linger_s=linger_s)
        self._min_replicas = min_replicas
        self._listener: PartyListener | None = None
        self._subscriber = Subscriber(
            url, session.server_of, hear=self._hear, on_gap=self._gap, timeout_s=timeout_s
        )

    @classmethod
    async def open(
        cls,
        url: RedisUrl,
        *,
        settings: Store,
        prefix: str = "pp",
        log_max: int = 4096,
        linger_s: float = 60.0,
        min_replicas: int = 0,
    ) -> "RedisPresenceStore":
        session = RedisCluster(url, settings) if url.cluster else OneServer(url, settings)
        return cls(
            session,
            url,
            prefix=prefix,
            log_max=log_max,
            linger_s=linger_s,
            min_replicas=min_replicas,
            timeout_s=settings.operation_timeout_s,
        )

    async def start(self, owner: Owner, listener: PartyListener) -> Sequence[SessionRecord]:
        self.owner = owner
        self._listener = listener
        await self.detach_earlier_incarnations()
        return ()

    # --- notifications of new entries ------------------------------------------------------------

    async def subscribe(self, party_id: PartyId) -> None:
        await self._subscriber.subscribe(self.keys.bell(party_id))

    def unsubscribe(self, party_id: PartyId) -> None:
        self._subscriber.unsubscribe(self.keys.bell(party_id))
        self.release_party(party_id)

    def _hear(self, channel: str, data: bytes) -> None:
        listener = self._listener
        if listener is None:
            return
        party_id = self.keys.party_of(channel)
        if data[:1] == b"n":
            listener.notice(decode_notice(party_id, data))
        else:
            _epoch, _, entry = data[1:].partition(b":")
            listener.entry(party_id, decode_entry(entry))

    def _gap(self, _channels: list[str]) -> None:
        """Makes subscribers compare positions: publications were lost while the connection was
        down."""

    async def tell(self, notice: Notice) -> None:
        channel = self.keys.bell(notice.key.party_id)
        await self.session.run(channel, (("SPUBLISH", channel, encode_notice(notice)),))

    # --- operations ------------------------------------------------------------------------------

    async def join(self, key: SessionKey, spec: JoinSpec) -> Joined | Exists | Rejected:
        await self.remember_party(key.party_id)
        reply: Any = await self.session.run_script(
            JOIN,
            self.keys.of(key.party_id),
            field_of(key),
            self.owner.node_id,
            self.owner.incarnation,
            spec.ttl_ms,
            spec.flags,
            spec.token_hash.hex(),
            spec.token_exp_ms,
            spec.party_max,
            spec.client_sessions_max,
            int(spec.evict_oldest),
            self.log_max,
            self.linger_ms,
            secrets.randbits(EPOCH_BITS) or 1,
            spec.known_epoch if spec.known_seq is not None else "",
            spec.known_seq or 0,
            int(spec.id_unique_in_party),
        )
        match reply[0]:
            case b"exists":
                return Exists(decode_record(key, reply[1]))
            case b"rejected":
                return Rejected(Status(reply[1]))
            case _:
                await self._replicated(key)
                members, entries = _told(reply[7], reply[8])
                return Joined(
                    seq=int(reply[1]),
                    epoch=int(reply[2]),
                    fence=1,
                    at_ms=int(reply[3]),
                    device_sessions=int(reply[4]),
                    party_size=int(reply[5]),
                    opened=reply[6] == 1,
                    members=members,
                    entries=entries,
                )

    async def attach(self, key: SessionKey, spec: AttachSpec) -> Attached | Missing | Rejected:
        await self.remember_party(key.party_id)
        proof = spec.proof
        reply: Any = await self.session.run_script(
            ATTACH,
            self.keys.of(key.party_id),
            field_of(key),
            self.owner.node_id,
            self.owner.incarnation,
            proof.token_hash.hex() if proof.token_hash is not None else "",
            int(proof.trusted),
            int(proof.token_required),
            proof.grace_ms,
            spec.new_hash.hex(),
            "" if spec.ttl_ms is None else spec.ttl_ms,
            spec.flags,
            spec.token_exp_ms,
            spec.known_epoch if spec.known_seq is not None else "",
            spec.known_seq or 0,
        )
        match reply[0]:
            case b"missing":
                return Missing()
            case b"rejected":
                status = Status(reply[1])
                in_use = status is Status.SESSION_ID_IN_USE
                return Rejected(status, await self.lapsing_ms(key) if in_use else 0)
            case _:
                members, entries = _told(reply[8], reply[9])
                return Attached(
                    record=decode_record(key, reply[1]),
                    was_active=reply[2] == b"1",
                    previous_owner=Owner(reply[3].decode(), int(reply[4])),
                    gap_ms=int(reply[5]),
                    seq=int(reply[6]),
                    epoch=int(reply[7]),
                    members=members,
                    entries=entries,
                )

    async def detach(self, key: SessionKey, fence: int, *, cursor: int, cause: int) -> bool:
        await self.expect_party(key.party_id)
        reply = await self.session.run_script(
            DETACH,
            self.keys.of(key.party_id),
            field_of(key),
            fence,
            cursor,
            int(cause),
            *self._holder(),
        )
        return reply == 1

    async def leave(self, key: SessionKey, fence: int, code: Status) -> Left | None:
        reply: Any = await self.session.run_script(
            LEAVE,
            self.keys.of(key.party_id),
            field_of(key),
            fence,
            int(code),
            self.log_max,
            self.linger_ms,
            *self._holder(),
        )
        if reply is None:
            return None
        await self._replicated(key)
        return Left(int(reply[0]), int(reply[1]), int(reply[2]))

    async def signal(
        self, key: SessionKey, fence: int, *, origin_id: int, payload: bytes
    ) -> Signalled | Duplicate | None:
        reply: Any = await self.session.run_script(
            SIGNAL,
            self.keys.of(key.party_id),
            field_of(key),
            fence,
            f"{origin_id:016x}",
            payload,
            self.log_max,
            *self._holder(),
        )
        if reply is None:
            return None
        return Signalled(int(reply)) if reply else Duplicate()

    def _holder(self) -> tuple[str, int]:
        """Distinguishes holders with equal fences: a reused id starts with the same fence."""
        return self.owner.node_id, self.owner.incarnation

    async def _replicated(self, key: SessionKey) -> None:
        if self._min_replicas:
            meta = self.keys.of(key.party_id)[0]
            await self.session.run(meta, (("WAIT", self._min_replicas, WAIT_MS),))

    async def save_cursors(self, rows: Sequence[CursorRow]) -> None:
        by_party: dict[PartyId, list[CursorRow]] = defaultdict(list)
        for row in rows:
            by_party[row.key.party_id].append(row)
        calls: list[Any] = []
        for party_id, mine in by_party.items():
            for at in range(0, len(mine), CURSORS_PER_CALL):
                args: list[str | int] = [*self._holder()]
                for row in mine[at : at + CURSORS_PER_CALL]:
                    args += [field_of(row.key), row.fence, row.cursor]
                calls.append(self.session.run_script(CURSORS, self.keys.of(party_id), *args))
        await asyncio.gather(*calls)

    # --- reading ---------------------------------------------------------------------------------

    async def read_log(
        self, party_id: PartyId, *, after_seq: int, limit: int
    ) -> Sequence[Entry] | None:
        meta, _, _, log, _, _ = self.keys.of(party_id)
        seq, first, rows = await self.session.run(
            meta,
            (
                ("HGET", meta, "seq"),
                ("XRANGE", log, "-", "+", "COUNT", 1),
                ("XRANGE", log, f"({max(after_seq, 0)}-0", "+", "COUNT", limit),
            ),
        )
        if seq is None or after_seq > int(seq):
            return None
        first_seq = int(first[0][0].split(b"-")[0]) if first else int(seq) + 1
        if after_seq < first_seq - 1:
            return None
        return [decode_entry(row[1][1]) for row in rows]

    async def snapshot(self, party_id: PartyId) -> PartySnapshot | None:
        meta, sessions, *_ = self.keys.of(party_id)
        row, all_ = await self.session.run(
            meta, (("HMGET", meta, "epoch", "seq"), ("HGETALL", sessions))
        )
        if row[0] is None:
            return None
        records: list[SessionRecord] = []
        for at in range(0, len(all_), 2):
            key = SessionKey(party_id, *ids_of(all_[at]))
            records.append(decode_record(key, all_[at + 1]))
        return PartySnapshot(epoch=int(row[0]), seq=int(row[1] or 0), sessions=records)

    async def check(self) -> None:
        await self.session.run(self.keys.nodes, (("PING",),))

    async def close(self) -> None:
        self._listener = None
        await self._subscriber.close()
        await self.session.close()


def _told(kind: bytes, rows: Sequence[bytes]) -> tuple[list[Member] | None, list[Entry]]:
    if kind == b"members":
        return [decode_member(row) for row in rows], []
    return None, [decode_entry(row) for row in rows]
