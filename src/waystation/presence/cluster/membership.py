"""A node among others: its lease, its fence, lost nodes, and parties that must be compared.

Rule 1: a node renews its lease every `heartbeat_s`. One that has not renewed for `self_fence_s`
        changes nothing any more: no joins, leaves or timeouts. A process that was paused is in that
        state when it wakes, before anything else happens.
Rule 2: after it could renew again, it asks for its sessions: those whose fence has not moved are
        its own as before, the streams of the others end with TAKEN_OVER. Time that passed
        meanwhile does not count against anybody.
Rule 3: a neighbour whose lease has ended is reaped: its sessions wait for one TTL.
Rule 4: every `gap_check_s` positions are compared with the store. Behind: the log is read. Ahead,
        or another epoch: the store has lost something, and our sessions are put back.
Rule 5: without the store for `store_outage_grace_s`, streams end with STORE_UNAVAILABLE.
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

REAPED_FOR_S: Final = 30.0  # so long somebody may be at work who took us for dead
RESYNC_AFTER_S: Final = 2.0  # other nodes put their sessions back meanwhile
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
        # Whoever found the life before us dead may still be at work.
        self._doubtful_until = clock.mono() + REAPED_FOR_S
        self.nodes: list[PresenceNode] = []
        self.on_change: Callable[[], None] = lambda: None
        node.fenced = self.fenced

    @property
    def lease_age_s(self) -> float:
        return self._clock.mono() - self._renewed_at

    def fenced(self) -> bool:
        """Asked before anything is changed."""
        if not self._fenced and self.lease_age_s >= self._settings.self_fence_s:
            self._fenced = True
            self._reports.node_state("fenced", len(self._registry.sessions))
        return self._fenced

    # --- the lease -------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            try:
                await self.beat()
            except Exception as exc:  # whatever it was, a node without a lease serves nobody
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
        # A store that has less than it had is told again first: who is missing there has not moved.
        await self._compare()
        sessions = [(one, one.fence) for one in self._registry.sessions.values()]
        moved = await self._moved(sessions)
        if moved:  # or the store has lost them between the two
            await self._compare()
            moved = await self._moved(moved)
        for session, fence in moved:
            # Whoever was attached again meanwhile, or is leaving, has an answer of its own.
            if session.fence == fence and not session.leaving:
                self._session_end.moved_on(session)
        if not self._fenced:
            return
        for session, fence in sessions:
            if session.state is not State.DETACHED or await self._still_waits(session):
                continue
            if session.state is State.DETACHED and session.fence == fence:
                self._session_end.moved_on(session)
        now = self._registry.now().mono
        for session in self._registry.sessions.values():
            _shift(session, self._renewed_at, now)
            self._registry.arm_life(session)
        self._fenced = False
        self._reports.node_state("ready", len(self._registry.sessions), "renewed")

    async def _moved(self, sessions: list[tuple[Session, int]]) -> list[tuple[Session, int]]:
        """Those with a stream whom the store does not know as ours, each with its fence."""
        active = [(one, fence) for one, fence in sessions if one.state is State.ACTIVE]
        moved = set(await self._store.reclaim([(one.key, fence) for one, fence in active]))
        return [(one, fence) for one, fence in active if one.key in moved]

    async def _still_waits(self, session: Session) -> bool:
        """Whether a session without a stream is still ours; its loss may never have been told."""
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
            except Exception as exc:  # one party's trouble must not end the care for all
                self._reports.trouble("compare.failed", exc)

    async def compare(self) -> None:
        if not self.fenced():  # else we must first know which sessions are still ours
            await self._compare()

    async def _compare(self) -> None:
        followed = [one for one in self._registry.parties.values() if one.loaded]
        # What we hear while the store is asked it may not have known when it answered.
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
        """The store has forgotten something that we have seen."""
        # Its LEAVE may have been the last thing that the store knew of the party. It was to go, so
        # it goes; and if it is the LEAVE that was forgotten, the store is told that it has gone.
        for one in list(party.sessions.values()):
            if one.perhaps_left and not one.leaving:
                self._session_end.gone(one, Status.OK)
                self._session_end.doubt(one.key, one.token_hash)
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
            # Of those that waited for their streams while we could not ask, some may have been
            # told to have left; whoever has a stream is there, unless we heard that it has left.
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
    """Nobody grows older while we could not ask: from `lost_at` until this very moment."""
    lost_s = now - lost_at
    session.detached_mono = min(now, session.detached_mono + lost_s)
    session.last_rx = min(now, session.last_rx + lost_s)
    since = session.delivery.unacked_since
    if since is not None:
        session.delivery.unacked_since = min(now, since + lost_s)
