"""Nodes in Redis: leases, the parties of each node, and expiry of sessions without a node.

Rule 1: a node is alive while its row exists with its incarnation; the row lives for one lease.
Rule 2: index entries of a session are written before the session: the set of a node's parties, and
        the sweep's index, whose entries may be early and never late. The sweep keeps an EXPECTED
        entry for `second_look_ms` even if it finds no waiting session: the session may be written
        after the look.
Rule 3: several nodes may sweep and reap at once; the scripts make that harmless.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from waystation.presence.model import PartyId, SessionKey, SessionRecord
from waystation.presence.store import Owner, PartyReset, PresenceNode
from waystation.storage.redis.presence_rows import (
    PartyKeys,
    decode_member,
    decode_record,
    encode_record,
    field_of,
    ids_of,
)
from waystation.storage.redis.scripts import PARTY_SWEPT, load_party
from waystation.storage.redis.session import Session

EXPIRE = load_party("party_expire")
ORPHAN = load_party("party_orphan")
RECLAIM = load_party("party_reclaim")
RESET = load_party("party_reset")

FORGOTTEN_MS: Final = 86_400_000  # lifetime of a dead node's set of parties
EXPIRE_AT_ONCE: Final = 100
RECLAIM_AT_ONCE: Final = 200
STRIKE_AT_ONCE: Final = 1000
EXPECTED: Final = 0  # the score of a party in which a session is about to wait


class NodeRows:
    def __init__(self, session: Session, keys: PartyKeys, *, log_max: int, linger_s: float) -> None:
        self.session = session
        self.keys = keys
        self.log_max = log_max
        self.linger_ms = round(linger_s * 1000)
        self.owner = Owner("", 0)
        self._known: set[PartyId] = set()  # parties that are in this node's set
        self._released: dict[PartyId, float] = {}  # when this node's last session left
        self._listing = asyncio.Lock()  # one writer of this node's set at a time
        self._live: list[str] = []

    async def remember_party(self, party_id: PartyId) -> None:
        """Called before this node's first session joins the party."""
        if self._released.pop(party_id, None) is not None:
            self._known.discard(party_id)  # it may be about to be removed from the set
        if party_id not in self._known:
            async with self._listing:
                key = self.keys.parties_of(self.owner.node_id)
                await self.session.run(key, (("SADD", key, f"{party_id:016x}"),))
                self._known.add(party_id)

    def release_party(self, party_id: PartyId) -> None:
        """Called when this node knows of no session of its own in the party."""
        if party_id in self._known:
            self._released[party_id] = asyncio.get_running_loop().time()

    async def strike_released(self) -> None:
        """Removes parties without sessions of this node from its set, so that a reap skips them.
        Only after a delay, because a join whose answer was lost may have added a session."""
        late = asyncio.get_running_loop().time() - self.released_for_s
        async with self._listing:
            over = [one for one, at in self._released.items() if at <= late][:STRIKE_AT_ONCE]
            if not over:
                return
            key = self.keys.parties_of(self.owner.node_id)
            await self.session.run(key, (("SREM", key, *(f"{one:016x}" for one in over)),))
            for party_id in over:
                # A concurrent `remember_party` waits for the lock and adds the party again.
                if self._released.pop(party_id, None) is not None:
                    self._known.discard(party_id)

    released_for_s = 120.0

    async def expect_party(self, party_id: PartyId) -> None:
        """Called before a session starts to wait for its end; from now on the sweep checks it."""
        key = self.keys.sweep(self.keys.shard(party_id))
        await self.session.run(key, (("ZADD", key, "LT", EXPECTED, f"{party_id:016x}"),))

    # --- leases ----------------------------------------------------------------------------------

    async def heartbeat(self, node: PresenceNode, lease_ms: int) -> None:
        key, row = self.keys.node(node.node_id), msgspec.json.encode(node)
        await self.session.run(key, (("SET", key, row, "PX", lease_ms),))
        nodes, parties = self.keys.nodes, self.keys.parties_of(node.node_id)
        await self.session.run(nodes, (("ZADD", nodes, node.heartbeat_ms, node.node_id),))
        await self.session.run(parties, (("PERSIST", parties),))
        await self.strike_released()

    async def resign(self, node_id: str) -> None:
        """A clean end: other nodes will not reap this node's sessions."""
        key, nodes = self.keys.node(node_id), self.keys.nodes
        await self.session.run(key, (("DEL", key),))
        await self.session.run(nodes, (("ZREM", nodes, node_id),))

    async def nodes(self) -> tuple[list[PresenceNode], list[str]]:
        """The nodes that are alive, and the ids of those whose lease has ended."""
        names: Any = (
            await self.session.run(self.keys.nodes, (("ZRANGE", self.keys.nodes, 0, -1),))
        )[0]
        ids = [name.decode() for name in names]
        rows = await asyncio.gather(
            *(self.session.run(key, (("GET", key),)) for key in map(self.keys.node, ids))
        )
        alive = [msgspec.json.decode(row[0], type=PresenceNode) for row in rows if row[0]]
        living = {node.node_id for node in alive}
        self._live = sorted(living)
        return alive, [name for name in ids if name not in living]

    async def lapsing_ms(self, key: SessionKey) -> int:
        """Remaining lease of a session's node; 0 if the lease is not about to end."""
        sessions = self.keys.of(key.party_id)[1]
        raw: Any = (await self.session.run(sessions, (("HGET", sessions, field_of(key)),)))[0]
        if raw is None:
            return 0
        node = self.keys.node(decode_record(key, raw).owner)
        left: Any = (await self.session.run(node, (("PTTL", node),)))[0]
        return max(0, int(left)) if int(left) < self.lapse_from_ms else 0

    reap_ms = 30_000  # time for one node to reap another's sessions
    lapse_from_ms = 6000  # a living node renews its lease long before so little is left
    second_look_ms = 2000  # after an expectation; shorter than any TTL in production

    # --- sessions of dead nodes ------------------------------------------------------------------

    async def reap(self, node_id: str) -> int:
        """Detaches the sessions of a dead node: they wait for one TTL from now. Returns how
        many."""
        reaper = self.keys.reaper(node_id)
        taken = await self.session.run(
            reaper, (("SET", reaper, self.owner.node_id, "NX", "PX", self.reap_ms),)
        )
        if not taken[0]:
            return 0
        count = await self._orphan(node_id)
        # Not deleted: if the node is back, it has written to the set and would not write again.
        key = self.keys.parties_of(node_id)
        await self.session.run(key, (("PEXPIRE", key, FORGOTTEN_MS),))
        nodes = self.keys.nodes
        await self.session.run(nodes, (("ZREM", nodes, node_id),))
        if await self._living(node_id):  # the node is back: the next reap must find it
            await self.session.run(nodes, (("ZADD", nodes, 0, node_id),))
        await self.session.run(reaper, (("DEL", reaper),))  # it may come back and die again
        return count

    async def detach_earlier_incarnations(self) -> int:
        """Detaches the sessions of earlier incarnations of this node: they wait for one TTL. No
        other node reaps them, because this node is alive again."""
        count = await self._orphan(self.owner.node_id)
        key = self.keys.parties_of(self.owner.node_id)
        await self.session.run(key, (("DEL", key),))
        return count

    async def _orphan(self, node_id: str) -> int:
        key = self.keys.parties_of(node_id)
        names: Any = (await self.session.run(key, (("SMEMBERS", key),)))[0]
        count = 0
        for name in names:
            party_id = PartyId(int(name, 16))
            snapshot: Any = (
                await self.session.run(
                    self.keys.of(party_id)[1], (("HVALS", self.keys.of(party_id)[1]),)
                )
            )[0]
            lives = {
                row.split(b"|")[2]
                for row in snapshot
                if row.split(b"|")[1].decode() == node_id and row[:1] == b"1"
            }
            for incarnation in sorted(lives - await self._living(node_id)):
                await self.expect_party(party_id)
                reply: Any = await self.session.run_script(
                    ORPHAN, self.keys.of(party_id), node_id, incarnation
                )
                count += int(reply[0])
        return count

    async def _living(self, node_id: str) -> set[bytes]:
        """The node's current incarnation, if it is alive: this process may have been slow."""
        if node_id == self.owner.node_id:
            return {str(self.owner.incarnation).encode()}
        key = self.keys.node(node_id)
        row: Any = (await self.session.run(key, (("GET", key),)))[0]
        if row is None:
            return set()
        return {str(msgspec.json.decode(row, type=PresenceNode).incarnation).encode()}

    async def reclaim(self, sessions: Sequence[tuple[SessionKey, int]]) -> list[SessionKey]:
        """Called after a pause of this process: reactivates the sessions that this node still holds
        and returns those that have moved to other nodes."""
        self._known.clear()  # a reap may have removed parties from this node's set
        by_party: dict[PartyId, list[tuple[SessionKey, int]]] = {}
        for key, fence in sessions:
            by_party.setdefault(key.party_id, []).append((key, fence))
        moved: list[SessionKey] = []
        for party_id, mine in by_party.items():
            await self.remember_party(party_id)
            for at in range(0, len(mine), RECLAIM_AT_ONCE):
                args: list[str | int] = [self.owner.node_id, self.owner.incarnation]
                for key, fence in mine[at : at + RECLAIM_AT_ONCE]:
                    args += [field_of(key), fence]
                reply: Any = await self.session.run_script(RECLAIM, self.keys.of(party_id), *args)
                moved += [SessionKey(party_id, *ids_of(field)) for field in reply]
        return moved

    async def expire_due(self, limit: int) -> int:
        """Sweeps the shards that are assigned to this node among the living ones."""
        now: Any = (await self.session.run(self.keys.nodes, (("TIME",),)))[0]
        now_ms = int(now[0]) * 1000 + int(now[1]) // 1000
        shards = [shard for shard in range(self.keys.shards) if self._is_ours(shard)]
        looks = await asyncio.gather(
            *(
                self.session.run(
                    key,
                    (("ZRANGEBYSCORE", key, "-inf", now_ms, "WITHSCORES", "LIMIT", 0, limit),),
                )
                for key in map(self.keys.sweep, shards)
            )
        )
        count = 0
        for shard, look in zip(shards, looks, strict=True):
            for name, score in zip(look[0][::2], look[0][1::2], strict=True):
                count += await self._expire(self.keys.sweep(shard), name, float(score), now_ms)
        return count

    async def _expire(self, sweep: str, name: bytes, score: float, now_ms: int) -> int:
        reply: Any = await self.session.run_script(
            EXPIRE,
            self.keys.of(PartyId(int(name, 16))),
            EXPIRE_AT_ONCE,
            self.log_max,
            self.linger_ms,
        )
        following: int | str = int(reply[1]) if reply[1] else ""
        if score == EXPECTED:
            again = now_ms + self.second_look_ms
            following = min(following, again) if isinstance(following, int) else again
        await self.session.run_script(PARTY_SWEPT, (sweep,), name, int(score), following)
        return int(reply[0])

    def _is_ours(self, shard: int) -> bool:
        """By rendezvous hashing; sweeping a shard twice is harmless."""
        if not self._live:
            return True

        def weight(node_id: str) -> int:
            return hash_of(f"{node_id}/{shard}")

        return max(self._live, key=weight) == self.owner.node_id

    # --- a store that lost writes ----------------------------------------------------------------

    async def positions(self, parties: Sequence[PartyId]) -> list[tuple[int, int] | None]:
        """Epoch and seq of each party, None for an unknown one."""
        rows: list[Any] = await asyncio.gather(
            *(
                self.session.run(meta, (("HMGET", meta, "epoch", "seq"),))
                for meta in (self.keys.of(party_id)[0] for party_id in parties)
            )
        )
        return [
            None if row[0][0] is None else (int(row[0][0]), int(row[0][1] or 0)) for row in rows
        ]

    async def reset(
        self,
        party_id: PartyId,
        *,
        epoch: int,
        seq: int,
        new_epoch: int,
        floor_ms: int,
        records: Sequence[SessionRecord],
    ) -> PartyReset:
        self._known.discard(party_id)  # this node's set of parties may be lost too
        await self.remember_party(party_id)
        args: list[str | int] = [epoch, seq, new_epoch, floor_ms]
        for record in records:
            args += [field_of(record.key), encode_record(record)]
        reply: Any = await self.session.run_script(RESET, self.keys.of(party_id), *args)
        return PartyReset(
            epoch=int(reply[0]),
            seq=int(reply[1]),
            members=[decode_member(row) for row in reply[2]],
        )


def hash_of(text: str) -> int:
    """FNV-1a with a finaliser: equal in every process, unlike `hash`."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    value ^= value >> 33
    return value * 0xFF51AFD7ED558CCD & 0xFFFFFFFFFFFFFFFF
