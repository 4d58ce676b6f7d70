"""Nodes in Redis: who is alive, which parties a node has touched, sessions that nobody attends.

Rule 1: a node is alive while its row exists with its incarnation; the row lives for one lease.
Rule 2: what leads to a session is written before the session is: the set of a node's parties, and
        the sweep's index, which may be early and never late.
        Whoever sweeps believes an expectation for a moment longer than it finds nobody: the
        session that is about to wait may come after the look.
Rule 3: sweeping and reaping may be done by several nodes at once; scripts make it harmless.
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

FORGOTTEN_MS: Final = 86_400_000  # after so long, which parties a dead node was in
EXPIRE_AT_ONCE: Final = 100
RECLAIM_AT_ONCE: Final = 200
STRIKE_AT_ONCE: Final = 1000
EXPECTED: Final = 0  # the score of a party where somebody is about to wait


class NodeRows:
    def __init__(self, session: Session, keys: PartyKeys, *, log_max: int, linger_s: float) -> None:
        self.session = session
        self.keys = keys
        self.log_max = log_max
        self.linger_ms = round(linger_s * 1000)
        self.owner = Owner("", 0)
        self._known: set[PartyId] = set()  # parties that stand in our set already
        self._released: dict[PartyId, float] = {}  # without a session of ours, since when
        self._listing = asyncio.Lock()  # one who writes our set of parties at a time
        self._live: list[str] = []

    async def remember_party(self, party_id: PartyId) -> None:
        """Before the first session of ours there."""
        if self._released.pop(party_id, None) is not None:
            self._known.discard(party_id)  # it may be about to be struck from the list
        if party_id not in self._known:
            async with self._listing:
                key = self.keys.parties_of(self.owner.node_id)
                await self.session.run(key, (("SADD", key, f"{party_id:016x}"),))
                self._known.add(party_id)

    def release_party(self, party_id: PartyId) -> None:
        """No session of ours is there, as far as we know."""
        if party_id in self._known:
            self._released[party_id] = asyncio.get_running_loop().time()

    async def strike_released(self) -> None:
        """Parties in which we have had nobody for a while need not be walked through if we die.
        For a while, because a join whose answer was lost may have put somebody there."""
        late = asyncio.get_running_loop().time() - self.released_for_s
        async with self._listing:
            over = [one for one, at in self._released.items() if at <= late][:STRIKE_AT_ONCE]
            if not over:
                return
            key = self.keys.parties_of(self.owner.node_id)
            await self.session.run(key, (("SREM", key, *(f"{one:016x}" for one in over)),))
            for party_id in over:
                # Whoever came while we were asking waits for us, and writes it down again.
                if self._released.pop(party_id, None) is not None:
                    self._known.discard(party_id)

    released_for_s = 120.0

    async def expect_party(self, party_id: PartyId) -> None:
        """Before a session of it waits for its end: the sweep looks there from now on."""
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
        """A clean end: nobody will look for our sessions as lost."""
        key, nodes = self.keys.node(node_id), self.keys.nodes
        await self.session.run(key, (("DEL", key),))
        await self.session.run(nodes, (("ZREM", nodes, node_id),))

    async def nodes(self) -> tuple[list[PresenceNode], list[str]]:
        """Those that are alive, and the names of those whose lease has ended."""
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
        """What is left of the lease of a session's node; 0 if it is well."""
        sessions = self.keys.of(key.party_id)[1]
        raw: Any = (await self.session.run(sessions, (("HGET", sessions, field_of(key)),)))[0]
        if raw is None:
            return 0
        node = self.keys.node(decode_record(key, raw).owner)
        left: Any = (await self.session.run(node, (("PTTL", node),)))[0]
        return max(0, int(left)) if int(left) < self.lapse_from_ms else 0

    reap_ms = 30_000  # how long one node has for seeing to another's sessions
    lapse_from_ms = 6000  # a lease that is well is renewed long before it has so little left
    second_look_ms = 2000  # after an expectation; shorter than any TTL in production

    # --- those whose node is gone ----------------------------------------------------------------

    async def reap(self, node_id: str) -> int:
        """Sessions of a node whose lease has ended wait for one TTL from now; how many."""
        reaper = self.keys.reaper(node_id)
        taken = await self.session.run(
            reaper, (("SET", reaper, self.owner.node_id, "NX", "PX", self.reap_ms),)
        )
        if not taken[0]:
            return 0
        count = await self._orphan(node_id)
        # Not deleted: should the node be back by now, it writes there, and would not do so again.
        key = self.keys.parties_of(node_id)
        await self.session.run(key, (("PEXPIRE", key, FORGOTTEN_MS),))
        nodes = self.keys.nodes
        await self.session.run(nodes, (("ZREM", nodes, node_id),))
        if await self._living(node_id):  # back meanwhile: whoever looks for the dead must find it
            await self.session.run(nodes, (("ZADD", nodes, 0, node_id),))
        await self.session.run(reaper, (("DEL", reaper),))  # it may come back, and die again
        return count

    async def part_with_earlier_lives(self) -> int:
        """Sessions that an earlier life of this node held wait for one TTL. Nobody else will see
        to them: the node is alive again, perhaps before its lease had ended."""
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
        """The life that the node has now, if it has one: we may have been slow, or asleep."""
        if node_id == self.owner.node_id:
            return {str(self.owner.incarnation).encode()}
        key = self.keys.node(node_id)
        row: Any = (await self.session.run(key, (("GET", key),)))[0]
        if row is None:
            return set()
        return {str(msgspec.json.decode(row, type=PresenceNode).incarnation).encode()}

    async def reclaim(self, sessions: Sequence[tuple[SessionKey, int]]) -> list[SessionKey]:
        """After a pause of ours: sessions that are still ours are active again. Those returned
        have moved on."""
        self._known.clear()  # whoever took us for dead has forgotten which parties are ours
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
        """Of the shards that fall to us among the nodes that are alive."""
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
        """The highest rendezvous hash decides; sweeping twice is harmless."""
        if not self._live:
            return True

        def weight(node_id: str) -> int:
            return hash_of(f"{node_id}/{shard}")

        return max(self._live, key=weight) == self.owner.node_id

    # --- a store that went back ------------------------------------------------------------------

    async def positions(self, parties: Sequence[PartyId]) -> list[tuple[int, int] | None]:
        """Epoch and seq of each, None where the store knows nothing of it."""
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
        self._known.discard(party_id)  # what was lost may be our list of parties as well
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
    """FNV-1a with a finish: the same in every process, which `hash` is not."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    value ^= value >> 33
    return value * 0xFF51AFD7ED558CCD & 0xFFFFFFFFFFFFFFFF
