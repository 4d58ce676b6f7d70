"""Membership in a cluster: the node's lease and fencing, dead nodes, comparison with the store.

Rule 1: a node renews its lease every `heartbeat_s`. After `self_fence_s` without a renewal it is
        fenced: no joins, leaves or timeouts. A process that was paused is fenced when it wakes,
        before it does anything else.
Rule 2: after the next renewal, a fenced node asks the store for its sessions. Sessions whose fence
        has not moved stay; the streams of the others end with TAKEN_OVER. The time without a lease
        does not count as silence.
Rule 3: the sessions of a node whose lease has ended are detached and wait for one TTL.
Rule 4: every `gap_check_s` positions are compared with the store. If this node is behind, it reads
        the log. If it is ahead, or the epoch differs, the store has lost data and this node writes
        its sessions back.
Rule 5: after `store_outage_grace_s` without the store, streams end with STORE_UNAVAILABLE.
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import Final

from waystation.base.clock import Clock
from waystation.presence.errors import STORE_TROUBLE
from waystation.presence.model import Detached, SessionRecord, Status, tick_of
from waystation.presence.node_state import NodeState
from waystation.presence.party.party import Party
from waystation.presence.party.party_sync import PartySync
from waystation.presence.party.registry import Registry
from waystation.presence.reports import Reports
from waystation.presence.session.client_stream import StreamControl
from waystation.presence.session.session import Session, State
from waystation.presence.session.session_end import SessionEnd
from waystation.presence.store import PresenceNode, SharedPresenceStore

REAPED_FOR_S: Final = 30.0  # another node may act for so long on our expired lease
RESYNC_AFTER_S: Final = 2.0  # time for other nodes to write their sessions back
EPOCH_BITS: Final = 63
COUNTER_BITS: Final = 21


class Membership:
    def __init__(
        self,
        control: StreamControl,
        registry: Registry,
        store: SharedPresenceStore,
        session_end: SessionEnd,
        party_sync: PartySync,
        *,
        reports: Reports,
        node: NodeState,
        clock: Clock,
        describe: Callable[[], PresenceNode],
    ) -> None:
        self._control = control
        self._registry = registry
        self._session_end = session_end
        self._party_sync = party_sync
        self._reports = reports
        self._owner = node.owner
        self._store = store
        self._clock = clock
        self._describe = describe
        self._settings = registry.settings
        self._renewed_at = clock.mono()
        self._fenced = False
        # A node that found our previous process dead may still move its sessions.
        self._doubtful_until = clock.mono() + REAPED_FOR_S
        self.nodes: list[PresenceNode] = []
        self.on_change: Callable[[], None] = lambda: None
        node.fenced = self.fenced

    @property
    def lease_age_s(self) -> float:
        return self._clock.mono() - self._renewed_at

    def fenced(self) -> bool:
        """Whether the node is fenced; asked before each change."""
        if not self._fenced and self.lease_age_s >= self._settings.self_fence_s:
            self._fenced = True
            self._reports.node_state("fenced", len(self._registry.sessions))
        return self._fenced

    # --- the lease -------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            try:
                await self.beat()
            except Exception as exc:  # the lease must be renewed whatever failed
                self._reports.trouble("heartbeat.failed", exc)
            await asyncio.sleep(self._settings.heartbeat_s)

    async def beat(self) -> None:
        began = self._clock.mono()
        lease_ms = round(self._settings.lease_s * 1000)
        try:
            await self._store.heartbeat(self._describe(), lease_ms)
            alive, dead = await self._store.nodes()
            if self.fenced():
                self._doubtful_until = began + REAPED_FOR_S
            if began < self._doubtful_until:
                await self._take_back()
            self._renewed_at = began
            if alive != self.nodes:
                self.nodes = alive
                self.on_change()
            for node_id in dead:
                lost = await self._store.reap(node_id)
                self._reports.node_state("reaped", lost, node_id)
        except STORE_TROUBLE as exc:
            self._reports.store_trouble("heartbeat", exc)
            if self.fenced() and self.lease_age_s >= self._settings.store_outage_grace_s:
                for client in list(self._registry.open_streams):
                    self._control.end(client, Status.STORE_UNAVAILABLE, cause=Detached.TRANSPORT)

    async def _take_back(self) -> None:
        # If the store has lost data, write our sessions back first: they have not moved.
        await self._compare()
        sessions = [(one, one.fence) for one in self._registry.sessions.values()]
        moved = await self._moved(sessions)
        if moved:  # or the store lost data between the two calls
            await self._compare()
            moved = await self._moved(moved)
        for session, fence in moved:
            # A session that was attached again, or is leaving, is settled by that answer.
            if session.fence == fence and not session.leaving:
                self._session_end.attached_elsewhere(session)
        if not self._fenced:
            return
        for session, fence in sessions:
            if session.state is not State.DETACHED or await self._still_waits(session):
                continue
            if session.state is State.DETACHED and session.fence == fence:
                self._session_end.attached_elsewhere(session)
        now = self._registry.now().mono
        for session in self._registry.sessions.values():
            _shift(session, self._renewed_at, now)
            self._registry.arm_life(session)
        self._fenced = False
        self._reports.node_state("ready", len(self._registry.sessions), "renewed")

    async def _moved(self, sessions: list[tuple[Session, int]]) -> list[tuple[Session, int]]:
        """Sessions with a stream that the store does not hold as ours, with their fences."""
        active = [(one, fence) for one, fence in sessions if one.state is State.ACTIVE]
        moved = set(await self._store.reclaim([(one.key, fence) for one, fence in active]))
        return [(one, fence) for one, fence in active if one.key in moved]

    async def _still_waits(self, session: Session) -> bool:
        """Whether a detached session is still ours; its detach may not have been recorded."""
        cursor = session.delivery.saved_cursor
        return await self._store.detach(
            session.key, session.fence, cursor=cursor, cause=session.cause
        )

    async def leave(self) -> None:
        try:
            await self._store.resign(self._describe().node_id)
        except STORE_TROUBLE as exc:
            self._reports.store_trouble("resign", exc)

    # --- positions -------------------------------------------------------------------------------

    async def compare_on(self) -> None:
        while True:
            await asyncio.sleep(self._settings.gap_check_s)
            try:
                await self.compare()
            except STORE_TROUBLE as exc:
                self._reports.store_trouble("compare", exc)
            except Exception as exc:  # a failure with one party must not stop the comparison
                self._reports.trouble("compare.failed", exc)

    async def compare(self) -> None:
        if not self.fenced():  # a fenced node must first reclaim its sessions
            await self._compare()

    async def _compare(self) -> None:
        followed = [one for one in self._registry.parties.values() if one.loaded]
        # Entries may arrive while the store is asked: compare with the position before.
        ours = [(one.epoch, one.seq) for one in followed]
        positions = await self._store.positions([one.party_id for one in followed])
        for party, (epoch, seq), position in zip(followed, ours, positions, strict=True):
            if not party.sessions or party.epoch != epoch:
                continue
            if position is None or position[0] != epoch or position[1] < seq:
                await self._put_back(party)
            elif position[1] > party.seq:
                await self._party_sync.fill(party)

    async def _put_back(self, party: Party) -> None:
        """Writes the sessions of a party back: the store has lost entries that we have seen."""
        # The store may have recorded or lost the unanswered LEAVE of a session. The session ends
        # here in both cases, and `verify_later` detaches it if the store still has it.
        for one in list(party.sessions.values()):
            if one.may_have_left and not one.leaving:
                self._session_end.drop(one, Status.OK)
                self._session_end.verify_later(one.key, one.token_hash)
        if not party.sessions:
            return
        self._reports.resync("store_reset")
        owner = self._owner
        now_ms = self._clock.now_ms()
        records = [
            SessionRecord(
                key=one.key,
                active=one.state is State.ACTIVE,
                owner=owner.node_id,
                incarnation=owner.incarnation,
                fence=one.fence,
                joined_seq=one.joined_seq,
                joined_at_ms=one.joined_at_ms,
                cursor=max(0, one.delivery.saved_cursor),
                ttl_ms=round(one.ttl_s * 1000),
                flags=one.flags,
                token_hash=one.token_hash,
                detached_at_ms=0 if one.state is State.ACTIVE else now_ms,
                deadline_ms=0,
                cause=0 if one.state is State.ACTIVE else int(one.cause),
            )
            for one in party.sessions.values()
            # While fenced, detached sessions may have been expired by another node: only sessions
            # with a stream are written back, unless the log says that they have left.
            if (one.state is State.ACTIVE or not self._fenced)
            and (one.key.client_id, one.key.session_id) in party.roster
        ]
        reset = await self._store.reset(
            party.party_id,
            epoch=party.epoch,
            seq=party.seq,
            new_epoch=secrets.randbits(EPOCH_BITS) or 1,
            floor_ms=tick_of(party.message_id) >> COUNTER_BITS,
            records=records,
        )
        party.load(seq=reset.seq, epoch=reset.epoch, members=reset.members)
        self._control.run("resync", self._resync_later(party))

    async def _resync_later(self, party: Party) -> None:
        await asyncio.sleep(RESYNC_AFTER_S)
        try:
            snapshot = await self._store.snapshot(party.party_id)
        except STORE_TROUBLE as exc:
            self._reports.store_trouble("resync", exc)
            self._control.run("resync", self._resync_later(party))
            return
        if snapshot is not None and party.sessions:
            members = [(one.key.client_id, one.key.session_id) for one in snapshot.sessions]
            for client_id, session_id in members:
                party.roster.add(client_id, session_id)
            self._party_sync.resync_all(party, self._registry.now())


def _shift(session: Session, lost_at: float, now: float) -> None:
    """Moves the timeouts of a session by the time without a lease, `lost_at` to `now`."""
    lost_s = now - lost_at
    session.detached_mono = min(now, session.detached_mono + lost_s)
    session.last_rx = min(now, session.last_rx + lost_s)
    since = session.delivery.unacked_since
    if since is not None:
        session.delivery.unacked_since = min(now, since + lost_s)
